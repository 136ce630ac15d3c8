//! Custom resources: a definition becomes a kind, and the kind takes the same path as all others.
//!
//! One task follows the definitions: it accepts their names, makes kinds of their served versions, and swaps the
//! resource table and discovery. It never handles requests; those see only the table.

mod behaviour;
mod controller;
mod correlation;
mod defaults;
mod definition;
mod embedded;
mod ending;
mod expressions;
mod formats;
mod known;
mod lists;
mod marks;
mod numbers;
mod rules;
mod scale;
mod schema;
mod selectable;
mod structural;
mod validation;

use corten_api::Kind;

pub use controller::Controller;
pub use definition::validate_bundle;
pub use embedded::coerce;
pub use expressions::validate as validate_expressions;
pub use rules::usable_message;
pub use schema::unknown_fields;

use crate::registry::Registry;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// Why nothing is created any more.
pub const TERMINATING: &str = "create not allowed while custom resource definition is terminating";

/// Whether the objects of a kind are being deleted, as its CustomResourceDefinition is on its way out.
pub fn is_terminating(registry: &Registry, kind: &Kind) -> bool {
    let name = format!("{}.{}", kind.plural, kind.group);
    let definition = registry.cached(GROUP, "v1", PLURAL, "", &name);
    let ending = definition.filter(|definition| definition.header.deletion_timestamp.is_some());
    ending.is_some_and(|definition| definition::is_terminating(&definition.value()))
}
