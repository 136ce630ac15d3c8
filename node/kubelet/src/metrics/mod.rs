//! The kubelet's metrics, under upstream's names: a list of families for each endpoint, and the series that are counted.
//! A series without a sample is not shown, as with upstream.

pub mod cadvisor;
mod families;
pub mod probes;
pub mod resource;

use std::time::Duration;

use corten_meta::metrics::{Family, Registry};
pub use families::*;
pub use probes::PROBES;

/// All counted series of the kubelet.
#[derive(Default)]
pub struct Metrics {
    counted: Registry,
    /// The series of `/metrics/probes`.
    probes: Registry,
}

impl Metrics {
    /// Increments a counter.
    pub fn count(&self, family: &'static Family, labels: &[&str]) {
        self.counted.series(family, labels).add(1.0);
    }

    /// Observes a duration.
    pub fn observe(&self, family: &'static Family, labels: &[&str], time: Duration) {
        self.counted.series(family, labels).observe(time.as_secs_f64());
    }

    /// Counts a probe.
    pub fn probed(&self, labels: &[&str]) {
        self.probes.series(&PROBES, labels).add(1.0);
    }

    /// Removes the probes of a deleted pod.
    pub fn forget_pod(&self, uid: &str) {
        self.probes.retain(&PROBES, |labels| labels.get(3).is_none_or(|known| known != uid));
    }

    /// Renders the series of `/metrics`.
    pub fn render(&self) -> String {
        self.counted.render()
    }

    /// Renders the series of `/metrics/probes`.
    pub fn render_probes(&self) -> String {
        self.probes.render()
    }
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
        let page = metrics.render();
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
    }

    #[test]
    fn the_probes_of_a_deleted_pod_are_removed() {
        let metrics = Metrics::default();
        metrics.probed(&["c", "default", "a", "1", "Liveness", "successful"]);
        metrics.probed(&["c", "default", "b", "2", "Liveness", "successful"]);
        metrics.forget_pod("1");
        let page = metrics.render_probes();
        assert!(page.contains("pod_uid=\"2\"") && !page.contains("pod_uid=\"1\""), "{page}");
        assert_eq!(metrics.render(), "");
    }
}
