//! The group `scheduling.k8s.io`, one file per kind.

use crate::kind::Kind;

pub(crate) mod priorityclass;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![priorityclass::kind()]
}
