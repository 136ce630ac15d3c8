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

    const NAME: &'static str = "certificate-controller";

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
