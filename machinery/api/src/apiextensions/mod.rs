//! The group `apiextensions.k8s.io`, one file per kind.

use crate::kind::Kind;

mod approval;
mod customresourcedefinition;
mod schemas;
pub(crate) mod validation;

pub use approval::Approval;
pub use customresourcedefinition::CUSTOM_RESOURCE_CLEANUP;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![customresourcedefinition::kind()]
}
