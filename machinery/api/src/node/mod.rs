//! The group `node.k8s.io`, one file a kind.

use crate::kind::Kind;

mod runtimeclass;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![runtimeclass::kind()]
}
