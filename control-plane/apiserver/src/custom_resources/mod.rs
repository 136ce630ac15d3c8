//! Custom resources: a CustomResourceDefinition becomes a kind, and the kind takes the same path as all others.
//!
//! One task watches the CRDs: it accepts their names, makes kinds of their served versions, and replaces the resource
//! table and discovery. It never handles requests; those use only the table.

mod behaviour;
mod controller;
mod correlation;
mod crd;
mod defaults;
mod embedded;
mod expressions;
mod finalizer;
mod formats;
mod keywords;
mod known;
mod lists;
mod numbers;
mod rules;
mod scale;
mod schema;
mod selectable;
mod structural;
mod validation;

use corten_api::Kind;

pub use controller::Controller;
pub use crd::validate_bundle;
pub use embedded::coerce;
pub use expressions::validate as validate_expressions;
pub use rules::valid_message;
pub use schema::unknown_fields;

use crate::registry::Registry;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// The error of a creation while the CRD is terminating.
pub const TERMINATING: &str = "create not allowed while custom resource definition is terminating";

/// Reports whether the objects of a kind are being deleted, because its CRD is.
pub fn is_terminating(registry: &Registry, kind: &Kind) -> bool {
    let name = format!("{}.{}", kind.plural, kind.group);
    let crd = registry.cached(GROUP, "v1", PLURAL, "", &name);
    let deleted = crd.filter(|crd| crd.header.deletion_timestamp.is_some());
    deleted.is_some_and(|crd| crd::is_terminating(&crd.value()))
}
