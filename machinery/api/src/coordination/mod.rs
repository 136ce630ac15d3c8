//! The group `coordination.k8s.io`, one file a kind.

use crate::kind::Kind;

mod lease;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![lease::kind()]
}
