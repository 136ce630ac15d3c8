//! The group `certificates.k8s.io`, one file a kind.

use crate::kind::Kind;

mod certificatesigningrequest;
mod der;
mod request;
mod validation;

pub use request::{AlternativeName, CertificateRequest, RequestError};

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![certificatesigningrequest::kind()]
}
