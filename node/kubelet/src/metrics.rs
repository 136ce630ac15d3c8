//! The kubelet's metrics, under upstream's names. A family is one line of the table below; a series without a sample is
//! not shown, as with upstream.
//!
//! Counting must never block its caller: one short lock, no allocation for a series that exists.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A metric family.
pub struct Family {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    /// The bounds of a histogram; a counter has none.
    buckets: &'static [f64],
}

const CALLS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const PULLS: &[f64] = &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];
const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

macro_rules! families {
    ($($id:ident = $name:literal, $labels:expr, $buckets:expr, $help:literal;)*) => {
        $(pub static $id: Family = Family { name: $name, help: $help, labels: &$labels, buckets: $buckets };)*
    };
}

families! {
    RUNTIME_OPERATIONS = "kubelet_runtime_operations_total", ["operation_type"], &[],
        "[ALPHA] Cumulative number of runtime operations by operation type.";
    RUNTIME_OPERATION_SECONDS = "kubelet_runtime_operations_duration_seconds", ["operation_type"], CALLS,
        "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.";
    RUNTIME_OPERATION_ERRORS = "kubelet_runtime_operations_errors_total", ["operation_type"], &[],
        "[ALPHA] Cumulative number of runtime operation errors by operation type.";
    POD_START_SECONDS = "kubelet_pod_start_duration_seconds", [], STARTS,
        "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
    POD_START_SLI_SECONDS = "kubelet_pod_start_sli_duration_seconds", [], STARTS,
        "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch";
    POD_WORKER_SECONDS = "kubelet_pod_worker_duration_seconds", ["operation_type"], DEFAULT,
        "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
    STARTED_PODS = "kubelet_started_pods_total", [], &[],
        "[ALPHA] Cumulative number of pods started";
    STARTED_POD_ERRORS = "kubelet_started_pods_errors_total", [], &[],
        "[ALPHA] Cumulative number of errors when starting pods";
    STARTED_USER_PODS = "kubelet_started_user_namespaced_pods_total", [], &[],
        "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.";
    STARTED_USER_POD_ERRORS = "kubelet_started_user_namespaced_pods_errors_total", [], &[],
        "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.";
    STARTED_CONTAINERS = "kubelet_started_containers_total", ["container_type"], &[],
        "[ALPHA] Cumulative number of containers started";
    STARTED_CONTAINER_ERRORS = "kubelet_started_containers_errors_total", ["code", "container_type"], &[],
        "[ALPHA] Cumulative number of errors when starting containers";
    TERMINATED_CONTAINERS = "kubelet_terminated_containers_total", ["container_type", "exit_code", "reason"], &[],
        "[ALPHA] Cumulative number of container terminations.";
    ADMISSION_REJECTIONS = "kubelet_admission_rejections_total", ["reason"], &[],
        "[ALPHA] Cumulative number pod admission rejections by the Kubelet.";
    EVICTIONS = "kubelet_evictions", ["eviction_signal"], &[],
        "[ALPHA] Cumulative number of pod evictions by eviction signal";
    IMAGE_PULL_SECONDS = "kubelet_image_pull_duration_seconds", ["image_size_in_bytes"], PULLS,
        "[ALPHA] Duration in seconds to pull an image.";
    STORAGE_SECONDS = "storage_operation_duration_seconds",
        ["migrated", "operation_name", "status", "volume_plugin"], STORAGE,
        "[ALPHA] Storage operation duration";
    DEVICE_REGISTRATIONS = "kubelet_device_plugin_registration_total", ["resource_name"], &[],
        "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.";
    DEVICE_SECONDS = "kubelet_device_plugin_alloc_duration_seconds", ["resource_name"], DEFAULT,
        "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
    HTTP_REQUESTS = "kubelet_http_requests_total", ["method", "path", "server_type"], &[],
        "[ALPHA] Number of the http requests received since the server started";
    PROBES = "prober_probe_total", ["container", "namespace", "pod", "pod_uid", "probe_type", "result"], &[],
        "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
}

#[derive(Clone, Default)]
struct Sample {
    /// The number of observations.
    count: u64,
    sum: f64,
    /// The number of observations in each bucket, not cumulated.
    within: Vec<u64>,
}

/// The samples of a family, by label values.
type Samples = BTreeMap<Vec<String>, Sample>;

/// All samples of the kubelet.
#[derive(Default)]
pub struct Metrics {
    samples: Mutex<BTreeMap<&'static str, (&'static Family, Samples)>>,
}

impl Metrics {
    /// Increments a counter.
    pub fn count(&self, family: &'static Family, labels: &[&str]) {
        self.change(family, labels, |sample| sample.count += 1);
    }

    /// Observes a duration.
    pub fn observe(&self, family: &'static Family, labels: &[&str], time: Duration) {
        let seconds = time.as_secs_f64();
        self.change(family, labels, |sample| {
            sample.count += 1;
            sample.sum += seconds;
            sample.within.resize(family.buckets.len(), 0);
            if let Some(bucket) = family.buckets.iter().position(|bound| seconds <= *bound) {
                sample.within[bucket] += 1;
            }
        });
    }

    /// Removes the series of a family that `keep` refuses: those of deleted pods.
    pub fn retain(&self, family: &'static Family, keep: impl Fn(&[String]) -> bool) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = samples.get_mut(family.name) {
            known.retain(|labels, _| keep(labels));
        }
    }

    fn change(&self, family: &'static Family, labels: &[&str], change: impl FnOnce(&mut Sample)) {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, known) = samples.entry(family.name).or_insert_with(|| (family, BTreeMap::new()));
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        change(known.entry(labels).or_default());
    }

    /// Writes the matching families in the text format.
    pub fn write(&self, page: &mut String, fits: impl Fn(&Family) -> bool) {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        for (family, known) in samples.values().filter(|(family, _)| fits(family)) {
            let kind = if family.buckets.is_empty() { "counter" } else { "histogram" };
            let _ = writeln!(page, "# HELP {0} {1}\n# TYPE {0} {kind}", family.name, family.help);
            for (values, sample) in known {
                write_sample(page, family, values, sample);
            }
        }
    }
}

impl Family {
    /// Reports whether the family is served at `/metrics/probes`.
    pub fn is_of_probes(&self) -> bool {
        self.name == PROBES.name
    }
}

fn write_sample(page: &mut String, family: &Family, values: &[String], sample: &Sample) {
    let pairs = family.labels.iter().zip(values);
    let labels: Vec<String> = pairs.map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    let with = |more: Option<String>| {
        let all: Vec<String> = labels.iter().cloned().chain(more).collect();
        if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
    };
    if family.buckets.is_empty() {
        let _ = writeln!(page, "{}{} {}", family.name, with(None), sample.count);
        return;
    }
    let mut within = 0;
    for (bound, count) in family.buckets.iter().zip(&sample.within) {
        within += count;
        let _ = writeln!(page, "{}_bucket{} {within}", family.name, with(Some(format!("le=\"{bound}\""))));
    }
    let _ = writeln!(page, "{}_bucket{} {}", family.name, with(Some("le=\"+Inf\"".into())), sample.count);
    let _ = writeln!(page, "{}_sum{} {}", family.name, with(None), sample.sum);
    let _ = writeln!(page, "{}_count{} {}", family.name, with(None), sample.count);
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_histograms_are_written_as_prometheus_reads_them() {
        let metrics = Metrics::default();
        metrics.count(&EVICTIONS, &["memory.available"]);
        metrics.count(&EVICTIONS, &["memory.available"]);
        metrics.observe(&POD_START_SECONDS, &[], Duration::from_millis(700));
        metrics.observe(&POD_START_SECONDS, &[], Duration::from_secs(7200));
        let mut page = String::new();
        metrics.write(&mut page, |_| true);
        for expected in [
            "# TYPE kubelet_evictions counter\n",
            "kubelet_evictions{eviction_signal=\"memory.available\"} 2\n",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.5\"} 0\n",
            "kubelet_pod_start_duration_seconds_bucket{le=\"1\"} 1\n",
            "kubelet_pod_start_duration_seconds_bucket{le=\"3600\"} 1\n",
            "kubelet_pod_start_duration_seconds_bucket{le=\"+Inf\"} 2\n",
            "kubelet_pod_start_duration_seconds_sum 7200.7\n",
            "kubelet_pod_start_duration_seconds_count 2\n",
        ] {
            assert!(page.contains(expected), "{expected} is not in\n{page}");
        }
        metrics.retain(&EVICTIONS, |_| false);
        let mut page = String::new();
        metrics.write(&mut page, |family| family.name == EVICTIONS.name);
        assert!(!page.contains("memory.available"));
    }
}
