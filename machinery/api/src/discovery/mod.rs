//! The group `discovery.k8s.io`, one file a kind.

use crate::kind::Kind;

mod endpointslice;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![endpointslice::kind()]
}
