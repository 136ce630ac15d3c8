//! Doors for the fuzz targets: what users write into objects for controllers to read. Nothing else may use this.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::certificates::request::Request;
use crate::cronjob::schedule::Schedule;
use crate::job::indexes::Indexes;

/// Reads a certificate signing request and checks it for every signer.
pub fn signing_request(pem: &[u8], usages: &[String]) {
    let Ok(request) = Request::parse(pem) else { return };
    let signers = ["kube-apiserver-client-kubelet", "kubelet-serving", "kube-apiserver-client", "legacy-unknown"];
    for signer in signers {
        let _ = request.check(&format!("kubernetes.io/{signer}"), usages);
    }
}

/// Reads a schedule and returns its first time after 1970, if there is one.
pub fn schedule(text: &str) -> Option<Timestamp> {
    Schedule::parse(text).ok()?.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC)
}

/// Reads completion indexes and writes them again.
pub fn indexes(text: &str) -> String {
    Indexes::parse(text).to_string()
}

/// Reads the metrics of pods; returns how many pods they are of.
pub fn pod_metrics(list: &corten_meta::Value) -> usize {
    crate::horizontal_pod_autoscaler::metrics::parse(list).len()
}
