//! The group `certificates.k8s.io`, one file a kind.

use crate::kind::Kind;

mod certificatesigningrequest;
mod validation;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![certificatesigningrequest::kind()]
}
