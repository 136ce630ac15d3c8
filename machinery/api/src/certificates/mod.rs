//! The group `certificates.k8s.io`, one file per kind.

use crate::kind::Kind;

mod certificatesigningrequest;
mod der;
mod request;
pub(crate) mod validation;

pub use request::{AlternativeName, CertificateRequest, RequestError};

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![certificatesigningrequest::kind()]
}
