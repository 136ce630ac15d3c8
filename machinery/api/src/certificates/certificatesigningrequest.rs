//! CertificateSigningRequest.

use corten_meta::Value;
use corten_meta::field::FieldError;
use corten_meta::time::human_duration;
use jiff::{SignedDuration, Timestamp};

use super::validation;
use crate::cells::{age, list, name, number, or, text};
use crate::defaulting::absent;
use crate::kind::{Behaviour, Kind, NameRule, Role};

struct CertificateSigningRequest;

pub fn kind() -> Kind {
    Kind::new("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests")
        .cluster()
        .short(&["csr"])
        .sub("approval", Role::Approval, &["get", "patch", "update"], ("", "", "CertificateSigningRequest"))
        .status()
        .spec_is_reset()
        .name_rule(NameRule::None)
        .selectable(&["spec.signerName"])
        .table("Name, Age, SignerName, Requestor, RequestedDuration, Condition")
        .behaviour(CertificateSigningRequest)
}

impl Behaviour for CertificateSigningRequest {
    fn rules(&self) -> &'static str {
        ".certificates.v1.CertificateSigningRequest"
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_request_update(new, old, validation::May::Neither)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = self.validate(new);
        errors.extend(validation::validate_request_update(new, old, validation::May::Issue));
        errors
    }

    fn validate_part_update(&self, role: Role, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = self.validate(new);
        let may = if role == Role::Approval { validation::May::Approve } else { validation::May::Neither };
        errors.extend(validation::validate_request_update(new, old, may));
        errors
    }

    /// Keeps the spec: only the status of a request changes.
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
