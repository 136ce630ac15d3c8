//! The families of `/metrics/probes`.

use corten_meta::metrics::families;

families! {
    PROBES = Counter "prober_probe_total" ["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
        "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
}
