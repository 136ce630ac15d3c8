//! The group `apiregistration.k8s.io`, one file per kind.

use crate::kind::Kind;

pub(crate) mod apiservice;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![apiservice::kind()]
}
