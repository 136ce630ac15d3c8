//! CertificateSigningRequest.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests")
        .cluster()
        .short(&["csr"])
        .status()
        .table("Name, Age, SignerName, Requestor, RequestedDuration, Condition")
}
