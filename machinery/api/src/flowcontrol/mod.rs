//! The group `flowcontrol.apiserver.k8s.io`, one file per kind.

use crate::kind::Kind;

mod flowschema;
mod prioritylevelconfiguration;
pub(crate) mod validation;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![flowschema::kind(), prioritylevelconfiguration::kind()]
}
