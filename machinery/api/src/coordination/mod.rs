//! The group `coordination.k8s.io`, one file per kind.

use crate::kind::Kind;

mod lease;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![lease::kind()]
}
