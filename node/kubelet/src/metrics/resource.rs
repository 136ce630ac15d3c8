//! The families of `/metrics/resource`, which metrics-server scrapes.

use corten_meta::metrics::families;

families! {
    CONTAINER_CPU = Counter "container_cpu_usage_seconds_total" ["container", "namespace", "pod"],
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds";
    CONTAINER_MEMORY = Gauge "container_memory_working_set_bytes" ["container", "namespace", "pod"],
        "[STABLE] Current working set of the container in bytes";
    CONTAINER_STARTED = Gauge "container_start_time_seconds" ["container", "namespace", "pod"],
        "[STABLE] Start time of the container since unix epoch in seconds";
    CONTAINER_SWAP = Gauge "container_swap_usage_bytes" ["container", "namespace", "pod"],
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems";
    NODE_CPU = Counter "node_cpu_usage_seconds_total" [],
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds";
    NODE_MEMORY = Gauge "node_memory_working_set_bytes" [], "[STABLE] Current working set of the node in bytes";
    NODE_SWAP = Gauge "node_swap_usage_bytes" [],
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems";
    POD_CPU = Counter "pod_cpu_usage_seconds_total" ["namespace", "pod"],
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds";
    POD_MEMORY = Gauge "pod_memory_working_set_bytes" ["namespace", "pod"],
        "[STABLE] Current working set of the pod in bytes";
    SCRAPE_ERROR = Gauge "resource_scrape_error" [],
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
}
