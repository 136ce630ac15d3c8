//! The group `scheduling.k8s.io`, one file a kind.

use crate::kind::Kind;

mod priorityclass;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![priorityclass::kind()]
}
