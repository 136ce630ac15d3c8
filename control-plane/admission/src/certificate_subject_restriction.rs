//! CertificateSubjectRestriction: refuses requests for client certificates in `system:masters`, because RBAC does not
//! restrict that group and such a certificate cannot be revoked.
//!
//! A request that cannot be decoded completely is refused too: its organizations are unknown.

use base64::Engine;
use corten_api::CertificateRequest;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let is_signing_request = a.is("certificates.k8s.io", "certificatesigningrequests", "");
            let string = |pointer: &str| a.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            if !is_signing_request || a.operation != Operation::Create || string("/spec/signerName") != SIGNER {
                return Ok(());
            }
            let request = requested(&a.object).map_err(|e| a.forbidden(format!("failed to parse CSR: {e}")))?;
            if request.organizations.iter().any(|group| group == "system:masters") {
                return Err(a.forbidden(format!("use of {SIGNER} signer with system:masters group is not allowed")));
            }
            Ok(())
        })
    }
}

/// Decodes the certificate request of a CertificateSigningRequest.
pub fn requested(object: &Value) -> Result<CertificateRequest, String> {
    let encoded = object.pointer("/spec/request").and_then(Value::as_str).unwrap_or_default();
    let pem = base64::engine::general_purpose::STANDARD.decode(encoded).map_err(|e| e.to_string())?;
    CertificateRequest::parse(&pem).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_organizations_of_a_request_are_read() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
        let object = |request: &str| serde_json::json!({ "spec": { "request": request } });
        assert_eq!(requested(&object(&encoded)).unwrap().organizations, ["system:masters"]);
        assert!(requested(&object("bm9uc2Vuc2U=")).is_err());
    }
}
