//! The rules of CertificateSigningRequest: the request, its approval and the certificate.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;
use corten_meta::field::FieldError;
use corten_meta::quote::quote;

use crate::check::{At, Errors};

/// The changes that a write may make to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum May {
    Neither,
    Approve,
    Issue,
}

/// Validates that the request is one PEM block; the signer checks its content.
pub(crate) fn certificate_request(request: &At<'_>, errors: &mut Errors) {
    let bytes = STANDARD.decode(request.text()).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let block =
        text.contains("-----BEGIN CERTIFICATE REQUEST-----") && text.contains("-----END CERTIFICATE REQUEST-----");
    if !block {
        let detail = "PEM block type must be CERTIFICATE REQUEST";
        errors.push(request.invalid(detail));
    }
}

/// Returns the error of an issued certificate, which must be a chain of certificates in PEM, and nothing else.
fn certificate_error(encoded: &str) -> Option<String> {
    const BEGIN: &str = "-----BEGIN ";
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut blocks = text.split(BEGIN).skip(1).filter_map(|block| block.split_once("-----")).peekable();
    if encoded.is_empty() {
        return None;
    }
    if blocks.peek().is_none() {
        return Some("must contain at least one CERTIFICATE PEM block".to_string());
    }
    for (kind, rest) in blocks {
        if kind != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {}", quote(kind)));
        }
        if rest.lines().take_while(|line| !line.starts_with("-----END")).any(|line| line.contains(':')) {
            return Some("no PEM block headers are permitted".to_string());
        }
    }
    None
}

pub(crate) fn request_conditions(conditions: &At<'_>, errors: &mut Errors) {
    let mut seen: Vec<&str> = Vec::new();
    for condition in conditions.items() {
        let kind = condition.get("type");
        let status = condition.get("status");
        kind.must(errors);
        let final_ = ["Approved", "Denied", "Failed"].contains(&kind.text());
        status.must_be_one_of(errors, if final_ { &["True"] } else { &["False", "True", "Unknown"] });
        let opposite = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(&opposite) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.push(kind.with(conditions.path.clone()).invalid(detail));
        }
        if seen.contains(&kind.text()) {
            errors.push(kind.duplicate());
        }
        seen.push(kind.text());
    }
}

/// Validates that approval and denial are set once, through their own subresource, and so is the certificate.
pub(super) fn validate_request_update(new: &Value, old: &Value, may: May) -> Errors {
    let status = At::object(new).get("status");
    let before = At::object(old).get("status");
    let of = |status: &At<'_>, kind: &str| -> Vec<Value> {
        let conditions = status.get("conditions").items();
        conditions.filter(|c| c.get("type").text() == kind).map(|c| c.value.clone()).collect()
    };
    let conditions = status.get("conditions");
    let certificate = status.get("certificate");
    let issued = before.get("certificate");
    let mut errors = Errors::new();
    if certificate.text() != issued.text()
        && let Some(why) = certificate_error(certificate.text())
    {
        errors.push(FieldError::invalid(&certificate.path, "<certificate data>", why));
    }
    for kind in ["Approved", "Denied", "Failed"] {
        let now = of(&status, kind);
        let then = of(&before, kind);
        let guarded = kind != "Failed" && may != May::Approve;
        let verb = match now.len().cmp(&then.len()) {
            std::cmp::Ordering::Less => "remove",
            std::cmp::Ordering::Greater if guarded => "add",
            std::cmp::Ordering::Equal if guarded && now != then => "modify",
            _ => continue,
        };
        let end = if verb == "modify" { "\n" } else { "" };
        errors.push(conditions.forbidden(format!("updates may not {verb} a condition of type {}{end}", quote(kind))));
    }
    if certificate.text() != issued.text() {
        if may != May::Issue {
            errors.push(certificate.forbidden("updates may not set certificate content"));
        } else if !issued.is_empty() {
            errors.push(certificate.forbidden("updates may not modify existing certificate content"));
        }
    }
    errors
}
