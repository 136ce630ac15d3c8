//! Schemas of custom resources: the errors of a schema itself, and pruning, defaults, validation and rules of objects.
//!
//! [`CustomResource`] is the behaviour of a kind that a CustomResourceDefinition describes; the API server treats it
//! like the behaviour of a built-in kind. Messages, paths and order of errors are upstream's. Everything here is pure:
//! whatever a schema or an object holds, it ends soon and without a panic.

mod behaviour;
mod correlation;
mod defaults;
mod embedded;
mod expressions;
mod formats;
mod keywords;
mod lists;
mod numbers;
mod rules;
mod scale;
mod schema;
mod selectable;
mod structural;
mod validation;

pub use behaviour::{CustomResource, PrinterColumn};
pub use embedded::coerce;
pub use expressions::validate as validate_expressions;
pub use rules::valid_message;
pub use schema::unknown_fields;
