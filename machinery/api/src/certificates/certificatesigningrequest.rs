//! CertificateSigningRequest.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use corten_meta::time::human_duration;
use jiff::{SignedDuration, Timestamp};

use crate::cells::{age, list, name, number, or, text};
use crate::defaulting::absent;
use crate::kind::{Behaviour, Kind, Role};

struct CertificateSigningRequest;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests")
        .cluster()
        .short(&["csr"])
        .sub("approval", Role::Approval, &["get", "patch", "update"], ("", "", "CertificateSigningRequest"))
        .status()
        .selectable(&["spec.signerName"])
        .table("Name, Age, SignerName, Requestor, RequestedDuration, Condition")
        .behaviour(CertificateSigningRequest)
}

impl Behaviour for CertificateSigningRequest {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = Path::root("spec");
        let mut errors = Vec::new();
        for field in ["request", "signerName"] {
            if text(object, &format!("/spec/{field}")).is_empty() {
                errors.push(FieldError::required(&spec.child(field), ""));
            }
        }
        if list(object, "/spec/usages").is_empty() {
            errors.push(FieldError::required(&spec.child("usages"), "usages must be set"));
        }
        let seconds = number(object, "/spec/expirationSeconds");
        if !absent(object, "/spec/expirationSeconds") && seconds < 600 {
            let path = spec.child("expirationSeconds");
            errors.push(FieldError::invalid(
                &path,
                seconds,
                "may not specify a duration less than 600 seconds (10 minutes)",
            ));
        }
        errors
    }

    /// A request is never changed after it was made; only its status is.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        if let Some(object) = new.as_object_mut() {
            object.insert("spec".to_string(), old["spec"].clone());
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let duration = if absent(object, "/spec/expirationSeconds") {
            "<none>".to_string()
        } else {
            human_duration(SignedDuration::from_secs(number(object, "/spec/expirationSeconds")))
        };
        vec![
            name(object),
            age(object, now),
            or(text(object, "/spec/signerName"), "<none>").into(),
            text(object, "/spec/username").into(),
            duration.into(),
            condition(object).into(),
        ]
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        (field == "spec.signerName").then(|| text(object, "/spec/signerName").to_string())
    }
}

fn condition(object: &Value) -> String {
    let has = |kind: &str| list(object, "/status/conditions").iter().any(|c| text(c, "/type") == kind);
    let mut words = if has("Denied") {
        "Denied".to_string()
    } else if has("Approved") {
        "Approved".to_string()
    } else {
        "Pending".to_string()
    };
    if has("Failed") {
        words.push_str(",Failed");
    }
    if !text(object, "/status/certificate").is_empty() {
        words.push_str(",Issued");
    }
    words
}
