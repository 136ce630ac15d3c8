//! Nobody asks for a client certificate of the cluster's masters: it would be beyond RBAC, and could not be taken back.

use base64::Engine;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::{Attributes, Operation, Plugin};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn resources(&self) -> &'static [(&'static str, &'static str)] {
        &[("certificates.k8s.io", "certificatesigningrequests")]
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let about = a.is("certificates.k8s.io", "certificatesigningrequests", "");
            let text = |pointer: &str| a.object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            if !about || a.operation != Operation::Create || text("/spec/signerName") != SIGNER {
                return Ok(());
            }
            let organizations =
                organizations(text("/spec/request")).map_err(|e| a.forbidden(format!("failed to parse CSR: {e}")))?;
            if organizations.iter().any(|group| group == "system:masters") {
                return Err(a.forbidden(format!("use of {SIGNER} signer with system:masters group is not allowed")));
            }
            Ok(())
        })
    }
}

/// The organizations that a signing request, in PEM and base64, asks for.
fn organizations(request: &str) -> Result<Vec<String>, String> {
    let pem = base64::engine::general_purpose::STANDARD.decode(request).map_err(|e| e.to_string())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).map_err(|e| e.to_string())?;
    let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| e.to_string())?;
    let subject = &parsed.certification_request_info.subject;
    Ok(subject.iter_organization().filter_map(|o| o.as_str().ok()).map(str::to_owned).collect())
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
        assert_eq!(organizations(&encoded).unwrap(), ["system:masters"]);
        assert!(organizations("bm9uc2Vuc2U=").is_err());
    }
}
