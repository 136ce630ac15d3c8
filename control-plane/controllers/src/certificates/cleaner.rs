//! Deletes old CertificateSigningRequests: approved, denied and failed ones after an hour, pending ones after a day,
//! and those whose certificate has expired.

use std::time::Duration;

use corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_meta::Key;
use jiff::{SignedDuration, Timestamp};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::conditions;
use crate::runtime::{Action, Controller, Plan, View, Watch};

const ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const PENDING: SignedDuration = SignedDuration::from_hours(24);

pub struct CertificateCleaner;

impl Controller for CertificateCleaner {
    type Observed = CertificateSigningRequest;

    fn name(&self) -> &'static str {
        "certificate-controller"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<CertificateSigningRequest>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<CertificateSigningRequest> {
        view.typed(key)
    }

    fn reconcile(&self, request: &CertificateSigningRequest, now: Timestamp) -> Plan {
        let Some(deadline) = deadline(request) else { return Plan::nothing() };
        match Duration::try_from(deadline.duration_since(now)) {
            Ok(left) if !left.is_zero() => Plan::later(left),
            _ => Plan::from(Action::delete(request)),
        }
    }
}

/// Returns the time at which the request is deleted.
fn deadline(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    let later = |time: &Time, wait: SignedDuration| time.0.checked_add(wait).unwrap_or(Timestamp::MAX);
    let after = |time: &Option<Time>, wait: SignedDuration| time.as_ref().map(|time| later(time, wait));
    if conditions(request).next().is_none() {
        return after(&request.metadata.creation_timestamp, PENDING);
    }
    let of = |condition: &corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition| match (
        condition.type_.as_str(),
        certificate,
    ) {
        ("Approved", None) => after(&condition.last_update_time, PENDING),
        ("Approved" | "Denied" | "Failed", _) => after(&condition.last_update_time, ANSWERED),
        _ => None,
    };
    let expires = certificate.and_then(|pem| expiry(&pem.0));
    conditions(request).filter_map(of).chain(expires).min()
}

fn expiry(pem: &[u8]) -> Option<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::{Model, converges, decide};
    use serde_json::{Value, json};

    fn request(created: &str, status: Value) -> Value {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "r", "creationTimestamp": created}, "spec": {"request": "", "signerName": "s"}, "status": status})
    }

    fn condition_list(kind: &str, at: &str) -> Value {
        json!([{"type": kind, "status": "True", "lastUpdateTime": at}])
    }

    #[test]
    fn requests_go_when_their_time_is_up() {
        let (recent, hours, days) = ("2026-01-02T03:00:00Z", "2026-01-02T01:00:00Z", "2025-12-30T00:00:00Z");
        for (status, created, kept) in [
            (json!({}), hours, true),
            (json!({}), days, false),
            (json!({"conditions": condition_list("Approved", hours)}), days, true),
            (json!({"conditions": condition_list("Approved", "9999-12-30T21:59:59Z")}), days, true),
            (json!({"conditions": condition_list("Approved", days)}), days, false),
            (json!({"conditions": condition_list("Approved", recent), "certificate": "eA=="}), days, true),
            (json!({"conditions": condition_list("Approved", hours), "certificate": "eA=="}), days, false),
            (json!({"conditions": condition_list("Denied", recent)}), days, true),
            (json!({"conditions": condition_list("Denied", hours)}), days, false),
            (json!({"conditions": condition_list("Failed", hours)}), days, false),
        ] {
            let mut model = Model::default();
            model.put(request(created, status.clone()));
            let waits = decide(&CertificateCleaner, &model, "", "r").requeue_after.is_some();
            converges(&CertificateCleaner, &mut model, "", "r");
            assert_eq!(!model.names("CertificateSigningRequest").is_empty(), kept, "{status} {created}");
            assert_eq!(waits, kept, "{status} {created}");
        }
    }
}
