//! The families that the kubelet serves at `/metrics`, under upstream's names.

use corten_meta::metrics::families;

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

families! {
    RUNTIME_OPERATIONS = Counter "kubelet_runtime_operations_total" ["operation_type"],
        "[ALPHA] Cumulative number of runtime operations by operation type.";
    RUNTIME_OPERATION_SECONDS = Histogram(CALLS) "kubelet_runtime_operations_duration_seconds" ["operation_type"],
        "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.";
    RUNTIME_OPERATION_ERRORS = Counter "kubelet_runtime_operations_errors_total" ["operation_type"],
        "[ALPHA] Cumulative number of runtime operation errors by operation type.";
    POD_START_SECONDS = Histogram(STARTS) "kubelet_pod_start_duration_seconds" [],
        "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
    POD_START_SLI_SECONDS = Histogram(STARTS) "kubelet_pod_start_sli_duration_seconds" [],
        "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured \
         from pod creation timestamp to when all its containers are reported as started and observed via watch";
    POD_WORKER_SECONDS = Histogram(DEFAULT) "kubelet_pod_worker_duration_seconds" ["operation_type"],
        "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
    STARTED_PODS = Counter "kubelet_started_pods_total" [], "[ALPHA] Cumulative number of pods started";
    STARTED_POD_ERRORS = Counter "kubelet_started_pods_errors_total" [],
        "[ALPHA] Cumulative number of errors when starting pods";
    STARTED_USER_PODS = Counter "kubelet_started_user_namespaced_pods_total" [],
        "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.";
    STARTED_USER_POD_ERRORS = Counter "kubelet_started_user_namespaced_pods_errors_total" [],
        "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be \
         collected on Linux.";
    STARTED_CONTAINERS = Counter "kubelet_started_containers_total" ["container_type"],
        "[ALPHA] Cumulative number of containers started";
    STARTED_CONTAINER_ERRORS = Counter "kubelet_started_containers_errors_total" ["code", "container_type"],
        "[ALPHA] Cumulative number of errors when starting containers";
    TERMINATED_CONTAINERS = Counter "kubelet_terminated_containers_total" ["container_type", "exit_code", "reason"],
        "[ALPHA] Cumulative number of container terminations.";
    ADMISSION_REJECTIONS = Counter "kubelet_admission_rejections_total" ["reason"],
        "[ALPHA] Cumulative number pod admission rejections by the Kubelet.";
    EVICTIONS = Counter "kubelet_evictions" ["eviction_signal"],
        "[ALPHA] Cumulative number of pod evictions by eviction signal";
    IMAGE_PULL_SECONDS = Histogram(PULLS) "kubelet_image_pull_duration_seconds" ["image_size_in_bytes"],
        "[ALPHA] Duration in seconds to pull an image.";
    STORAGE_SECONDS = Histogram(STORAGE) "storage_operation_duration_seconds"
        ["migrated", "operation_name", "status", "volume_plugin"],
        "[ALPHA] Storage operation duration";
    DEVICE_REGISTRATIONS = Counter "kubelet_device_plugin_registration_total" ["resource_name"],
        "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.";
    DEVICE_SECONDS = Histogram(DEFAULT) "kubelet_device_plugin_alloc_duration_seconds" ["resource_name"],
        "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
    HTTP_REQUESTS = Counter "kubelet_http_requests_total" ["method", "path", "server_type"],
        "[ALPHA] Number of the http requests received since the server started";
    NODE_NAME = Gauge "kubelet_node_name" ["node"], "[ALPHA] The node's name. The count is always 1.";
    RUNNING_PODS = Gauge "kubelet_running_pods" [], "[BETA] Number of pods that have a running pod sandbox";
    RUNNING_CONTAINERS = Gauge "kubelet_running_containers" ["container_state"],
        "[BETA] Number of containers currently running";
    ACTIVE_PODS = Gauge "kubelet_active_pods" [],
        "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new \
         pods.";
    BUILD_INFO = Gauge "kubernetes_build_info" ["git_version", "major", "minor"],
        "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
         build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.";
    VOLUME_AVAILABLE = Gauge "kubelet_volume_stats_available_bytes" ["namespace", "persistentvolumeclaim"],
        "[ALPHA] Number of available bytes in the volume";
    VOLUME_CAPACITY = Gauge "kubelet_volume_stats_capacity_bytes" ["namespace", "persistentvolumeclaim"],
        "[ALPHA] Capacity in bytes of the volume";
    VOLUME_INODES = Gauge "kubelet_volume_stats_inodes" ["namespace", "persistentvolumeclaim"],
        "[ALPHA] Maximum number of inodes in the volume";
    VOLUME_INODES_FREE = Gauge "kubelet_volume_stats_inodes_free" ["namespace", "persistentvolumeclaim"],
        "[ALPHA] Number of free inodes in the volume";
    VOLUME_INODES_USED = Gauge "kubelet_volume_stats_inodes_used" ["namespace", "persistentvolumeclaim"],
        "[ALPHA] Number of used inodes in the volume";
    VOLUME_USED = Gauge "kubelet_volume_stats_used_bytes" ["namespace", "persistentvolumeclaim"],
        "[ALPHA] Number of used bytes in the volume";
    PROCESS_CPU = Counter "process_cpu_seconds_total" [], "Total user and system CPU time spent in seconds.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" [], "Maximum number of open file descriptors.";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" [], "Number of open file descriptors.";
    PROCESS_RESIDENT = Gauge "process_resident_memory_bytes" [], "Resident memory size in bytes.";
    PROCESS_STARTED = Gauge "process_start_time_seconds" [], "Start time of the process since unix epoch in seconds.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" [], "Virtual memory size in bytes.";
}
