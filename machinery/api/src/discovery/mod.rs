//! The group `discovery.k8s.io`, one file per kind.

use crate::kind::Kind;

pub(crate) mod endpointslice;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![endpointslice::kind()]
}
