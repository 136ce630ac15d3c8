//! The group `apiregistration.k8s.io`, one file a kind.

use crate::kind::Kind;

mod apiservice;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![apiservice::kind()]
}
