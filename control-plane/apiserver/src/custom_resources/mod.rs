//! Custom resources: a CustomResourceDefinition becomes a kind, and the kind takes the same path as all others.
//!
//! One task watches the CRDs: it accepts their names, makes kinds of their served versions, and replaces the resource
//! table and discovery. It never handles requests; those use only the table.

mod controller;
mod crd;
mod finalizer;
mod known;
mod rules;

use corten_admission::Objects;
use corten_api::Kind;

pub use controller::Controller;
use crd::validate_bundle;
pub use rules::CustomResourceRules;

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

/// The error of a creation while the CRD is terminating.
pub const TERMINATING: &str = "create not allowed while custom resource definition is terminating";

/// Reports whether the objects of a kind are being deleted, because its CRD is.
fn is_terminating(objects: &dyn Objects, kind: &Kind) -> bool {
    let name = format!("{}.{}", kind.plural, kind.group);
    let crd = objects.cached(GROUP, PLURAL, "", &name);
    let deleted = crd.filter(|crd| crd.header.deletion_timestamp.is_some());
    deleted.is_some_and(|crd| crd::is_terminating(&crd.value()))
}
