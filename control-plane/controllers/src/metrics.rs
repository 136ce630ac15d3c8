//! The metrics of controllers beyond those of their queues. Names and labels are upstream's.
//!
//! A plan names the metrics to count (`runtime::Count`); no other code in this package touches a series, except in the
//! few controllers that make no plans.

use corten_meta::metrics::{Family, Kind, Registry, exponential};

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, labels, help }
}

const fn histogram(
    name: &'static str,
    bounds: &'static [f64],
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: Kind::Histogram(bounds), labels, help }
}

static SYNC_SECONDS: [f64; 15] = exponential(0.004, 2.0);
static MILLISECONDS: [f64; 15] = exponential(0.001, 2.0);
static NODE_SECONDS: [f64; 8] = exponential(0.001, 4.0);
static MANY: [f64; 15] = exponential(2.0, 2.0);
static SKEW_SECONDS: [f64; 10] = exponential(1.0, 2.0);
static TTL_SECONDS: [f64; 14] = exponential(0.1, 2.0);
static EVICTION_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];
static FIVEFOLD: [f64; 5] = exponential(1.0, 5.0);
static AGE_RATIO: [f64; 6] = exponential(0.25, 2.0);
static PER_SYNC: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub static JOB_SYNCS: Family =
    counter("job_controller_job_syncs_total", &["completion_mode", "result", "action"], "Number of Job syncs.");
pub static JOB_SYNC_SECONDS: Family = histogram(
    "job_controller_job_sync_duration_seconds",
    &SYNC_SECONDS,
    &["completion_mode", "result", "action"],
    "Duration of Job syncs.",
);
pub static JOBS_FINISHED: Family =
    counter("job_controller_jobs_finished_total", &["completion_mode", "result", "reason"], "Jobs that ended.");
pub static JOB_PODS_FINISHED: Family = counter(
    "job_controller_job_pods_finished_total",
    &["completion_mode", "result"],
    "Pods of Jobs that ended and were counted.",
);
pub static JOB_PODS_CREATED: Family =
    counter("job_controller_job_pods_creation_total", &["reason", "status"], "Pods that were created for Jobs.");
pub static JOB_INDEXES_FINISHED: Family = counter(
    "job_controller_job_finished_indexes_total",
    &["status", "backoffLimit"],
    "Indexes of Jobs that succeeded or were lost.",
);
pub static JOB_FAILURES_HANDLED: Family = counter(
    "job_controller_pod_failures_handled_by_failure_policy_total",
    &["action"],
    "Number of pod failures that a rule of the pod failure policy matched.",
);
pub static JOB_PODS_HELD: Family = counter(
    "job_controller_terminated_pods_tracking_finalizer_total",
    &["event"],
    "Number of terminated pods with the tracking finalizer: added and removed.",
);
pub static DELETION_AGE_RATIO: Family = histogram(
    "replicaset_controller_sorting_deletion_age_ratio",
    &AGE_RATIO,
    &[],
    "Ratio of the age of a deleted ready pod to that of the youngest pod.",
);
pub static CRON_SKEW: Family = histogram(
    "cronjob_controller_job_creation_skew_duration_seconds",
    &SKEW_SECONDS,
    &[],
    "How long after its time a Job of a schedule was created.",
);
pub static TTL_DELETION: Family = histogram(
    "ttl_after_finished_controller_job_deletion_duration_seconds",
    &TTL_SECONDS,
    &[],
    "Seconds from the end of the Job's TTL until its deletion.",
);
pub static PODS_COLLECTED: Family = counter(
    "pod_gc_collector_force_delete_pods_total",
    &["namespace", "reason"],
    "Number of pods that the pod garbage collector deleted by force.",
);
pub static TAINT_DELETIONS: Family = counter(
    "taint_eviction_controller_pod_deletions_total",
    &[],
    "Number of pods deleted because of a taint of their node.",
);
pub static TAINT_DELETION_SECONDS: Family = histogram(
    "taint_eviction_controller_pod_deletion_duration_seconds",
    &EVICTION_SECONDS,
    &[],
    "Seconds from the moment when a taint takes effect until the deletion of the pod.",
);
pub static DEVICE_DELETIONS: Family = counter(
    "device_taint_eviction_controller_pod_deletions_total",
    &[],
    "Number of pods deleted because of a taint of one of their devices.",
);
pub static DEVICE_DELETION_SECONDS: Family = histogram(
    "device_taint_eviction_controller_pod_deletion_duration_seconds",
    &EVICTION_SECONDS,
    &[],
    "Seconds from the moment when a device taint takes effect until the deletion of the pod.",
);
pub static SLICE_SYNCS: Family =
    counter("endpoint_slice_controller_syncs", &["result"], "Number of EndpointSlice syncs.");
pub static SLICE_CHANGES: Family =
    counter("endpoint_slice_controller_changes", &["operation"], "Number of EndpointSlice changes.");
pub static SLICES_PER_SYNC: Family = histogram(
    "endpoint_slice_controller_endpointslices_changed_per_sync",
    &PER_SYNC,
    &["topology", "traffic_distribution"],
    "Number of EndpointSlices changed on each Service sync.",
);
pub static SLICES: Family = gauge("endpoint_slice_controller_num_endpoint_slices", &[], "Number of EndpointSlices.");
pub static SLICES_DESIRED: Family = gauge(
    "endpoint_slice_controller_desired_endpoint_slices",
    &[],
    "Number of EndpointSlices that would exist with perfect allocation.",
);
pub static ENDPOINTS_DESIRED: Family =
    gauge("endpoint_slice_controller_endpoints_desired", &[], "Number of desired endpoints.");
pub static ENDPOINTS_ADDED: Family = histogram(
    "endpoint_slice_controller_endpoints_added_per_sync",
    &MANY,
    &[],
    "Number of endpoints added on each Service sync.",
);
pub static ENDPOINTS_REMOVED: Family = histogram(
    "endpoint_slice_controller_endpoints_removed_per_sync",
    &MANY,
    &[],
    "Number of endpoints removed on each Service sync.",
);
pub static DISTRIBUTIONS: Family = gauge(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    &["traffic_distribution"],
    "Services by where their traffic should go.",
);
pub static MIRROR_SECONDS: Family = histogram(
    "endpoint_slice_mirroring_controller_endpoints_sync_duration",
    &MILLISECONDS,
    &[],
    "Duration of Endpoints syncs in seconds.",
);
pub static MIRROR_CHANGES: Family = counter(
    "endpoint_slice_mirroring_controller_changes",
    &["operation"],
    "EndpointSlices that were written for Endpoints.",
);
pub static EPHEMERAL_CLAIMS: Family =
    counter("ephemeral_volume_controller_create_total", &[], "Claims that were created for ephemeral volumes.");
pub static EPHEMERAL_CLAIM_FAILURES: Family = counter(
    "ephemeral_volume_controller_create_failures_total",
    &[],
    "Claims that could not be created for ephemeral volumes.",
);
pub static VOLUMES: Family =
    gauge("pv_collector_total_pv_count", &["plugin_name", "volume_mode"], "Number of PersistentVolumes.");
pub static VOLUMES_BOUND: Family =
    gauge("pv_collector_bound_pv_count", &["storage_class"], "PersistentVolumes that are bound.");
pub static VOLUMES_UNBOUND: Family =
    gauge("pv_collector_unbound_pv_count", &["storage_class"], "PersistentVolumes that are not.");
static CLAIM_LABELS: [&str; 3] = ["namespace", "storage_class", "volume_attributes_class"];
pub static CLAIMS_BOUND: Family =
    gauge("pv_collector_bound_pvc_count", &CLAIM_LABELS, "PersistentVolumeClaims that are bound.");
pub static CLAIMS_UNBOUND: Family =
    gauge("pv_collector_unbound_pvc_count", &CLAIM_LABELS, "PersistentVolumeClaims that are not.");
pub static VOLUMES_ATTACHED: Family = gauge(
    "attachdetach_controller_total_volumes",
    &["plugin_name", "state"],
    "Volumes that should be attached, and that are.",
);
pub static FORCED_DETACHES: Family = counter(
    "attach_detach_controller_attachdetach_controller_forced_detaches",
    &["reason"],
    "Number of volumes that were detached by force.",
);
pub static RANGES_GIVEN: Family = counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total",
    &["clusterCIDR"],
    "Number of CIDRs allocated to nodes.",
);
pub static RANGES_USED: Family =
    gauge("node_ipam_controller_cidrset_usage_cidrs", &["clusterCIDR"], "Ratio of allocated CIDRs.");
pub static SYNC_ERRORS: Family = counter(
    "garbagecollector_controller_resources_sync_error_total",
    &[],
    "Number of failed discoveries of resources, also partial ones.",
);
pub static ROOT_CA_SYNCS: Family =
    counter("root_ca_cert_publisher_sync_total", &["code"], "Number of namespace syncs of the root CA certificate.");
pub static ROOT_CA_SECONDS: Family = histogram(
    "root_ca_cert_publisher_sync_duration_seconds",
    &MILLISECONDS,
    &["code"],
    "Duration of namespace syncs of the root CA certificate.",
);
pub static NODE_SYNC_SECONDS: Family = histogram(
    "node_collector_update_node_health_duration_seconds",
    &NODE_SECONDS,
    &[],
    "Duration of the health check of one node.",
);
pub static ZONE_SIZE: Family = gauge("node_collector_zone_size", &["zone"], "Nodes by zone.");
pub static ZONE_UNHEALTHY: Family =
    gauge("node_collector_unhealthy_nodes_in_zone", &["zone"], "Nodes that are not ready, by zone.");
pub static EVICTIONS: Family =
    counter("node_collector_evictions_total", &["zone"], "Number of nodes whose pods were evicted, by zone.");
pub static CLAIMS_CREATED: Family = counter(
    "resourceclaim_controller_creates_total",
    &["status", "admin_access"],
    "ResourceClaims that were created for pods.",
);
pub static CLAIMS: Family = gauge(
    "resourceclaim_controller_resource_claims",
    &["allocated", "admin_access", "source"],
    "Number of ResourceClaims.",
);
pub static RETROACTIVE_CLASSES: Family = counter(
    "retroactive_storageclass_total",
    &[],
    "Number of attempts to set the default StorageClass of existing claims.",
);
pub static RETROACTIVE_CLASS_ERRORS: Family = counter(
    "retroactive_storageclass_errors_total",
    &[],
    "Number of failed attempts to set the default StorageClass of existing claims.",
);
pub static SCALINGS: Family = counter(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    &["action", "error"],
    "Number of HorizontalPodAutoscaler reconciliations, by action and error.",
);
pub static SCALING_SECONDS: Family = histogram(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    &MILLISECONDS,
    &["action", "error"],
    "Duration of HorizontalPodAutoscaler reconciliations.",
);
pub static METRICS_EVALUATED: Family = counter(
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    &["action", "error", "metric_type"],
    "Number of metric computations, by action, error and metric type.",
);
pub static AUTOSCALERS: Family = gauge(
    "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
    &[],
    "Number of HorizontalPodAutoscalers.",
);
pub static DESIRED_REPLICAS: Family = gauge(
    "horizontal_pod_autoscaler_controller_desired_replicas",
    &["namespace", "hpa_name"],
    "The replicas that autoscalers want.",
);
pub static METRIC_SECONDS: Family = histogram(
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    &MILLISECONDS,
    &["action", "error", "metric_type"],
    "Duration of metric computations.",
);
pub static ZONE_HEALTH: Family = gauge("node_collector_zone_health", &["zone"], "Percentage of ready nodes in a zone.");
pub static RANGES_FREED: Family = counter(
    "node_ipam_controller_cidrset_cidrs_releases_total",
    &["clusterCIDR"],
    "Number of CIDRs released by deleted nodes.",
);
/// Upstream's spelling.
pub static RANGES_THERE: Family = gauge(
    "node_ipam_controller_cirdset_max_cidrs",
    &["clusterCIDR"],
    "Number of CIDRs that can be allocated to nodes.",
);
pub static RANGE_TRIES: Family = histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    &FIVEFOLD,
    &["clusterCIDR"],
    "Number of CIDRs that were already allocated when one was searched.",
);
pub static FOREIGN_JOBS: Family = counter(
    "job_controller_jobs_by_external_controller_total",
    &["controller_name"],
    "Number of Jobs with an external controller.",
);
pub static PODS_NOT_COLLECTED: Family = counter(
    "pod_gc_collector_force_delete_pod_errors_total",
    &["namespace", "reason"],
    "Number of errors when the pod garbage collector deleted pods by force.",
);
static MEMBERS_OF: [&str; 3] = ["statefulset_namespace", "statefulset_name", "pod_management_policy"];
pub static MOST_UNAVAILABLE: Family = gauge(
    "statefulset_controller_statefulset_max_unavailable",
    &MEMBERS_OF,
    "The maximum number of unavailable pods of a StatefulSet during an update.",
);
pub static UNAVAILABLE: Family = gauge(
    "statefulset_controller_statefulset_unavailable_replicas",
    &MEMBERS_OF,
    "Pods of a StatefulSet that are missing or not available.",
);
pub static MIRROR_SKIPPED: Family = histogram(
    "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
    &MANY,
    &[],
    "Number of addresses skipped on each Endpoints sync because they are invalid or exceed the limit.",
);
pub static MIRROR_ADDED: Family = histogram(
    "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
    &MANY,
    &[],
    "Number of endpoints added on each Endpoints sync.",
);
pub static MIRROR_UPDATED: Family = histogram(
    "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
    &MANY,
    &[],
    "Number of endpoints updated on each Endpoints sync.",
);
pub static MIRROR_REMOVED: Family = histogram(
    "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
    &MANY,
    &[],
    "Number of endpoints removed on each Endpoints sync.",
);
pub static MIRROR_ENDPOINTS: Family = gauge(
    "endpoint_slice_mirroring_controller_endpoints_desired",
    &[],
    "Number of desired endpoints in mirrored EndpointSlices.",
);
pub static MIRROR_SLICES: Family =
    gauge("endpoint_slice_mirroring_controller_num_endpoint_slices", &[], "Number of mirrored EndpointSlices.");
pub static MIRROR_DESIRED: Family = gauge(
    "endpoint_slice_mirroring_controller_desired_endpoint_slices",
    &[],
    "Number of mirrored EndpointSlices that would exist with perfect allocation.",
);

/// The families without labels. They are exposed from the start, with the value zero.
static PLAIN: [&Family; 27] = [
    &DELETION_AGE_RATIO,
    &CRON_SKEW,
    &TTL_DELETION,
    &TAINT_DELETIONS,
    &TAINT_DELETION_SECONDS,
    &DEVICE_DELETIONS,
    &DEVICE_DELETION_SECONDS,
    &SLICES,
    &SLICES_DESIRED,
    &ENDPOINTS_DESIRED,
    &ENDPOINTS_ADDED,
    &ENDPOINTS_REMOVED,
    &MIRROR_SECONDS,
    &EPHEMERAL_CLAIMS,
    &EPHEMERAL_CLAIM_FAILURES,
    &SYNC_ERRORS,
    &NODE_SYNC_SECONDS,
    &RETROACTIVE_CLASSES,
    &RETROACTIVE_CLASS_ERRORS,
    &AUTOSCALERS,
    &MIRROR_SKIPPED,
    &MIRROR_ADDED,
    &MIRROR_UPDATED,
    &MIRROR_REMOVED,
    &MIRROR_ENDPOINTS,
    &MIRROR_SLICES,
    &MIRROR_DESIRED,
];

/// Exposes the families without labels before anything is counted.
pub fn begin(registry: &Registry) {
    PLAIN.iter().for_each(|family| drop(registry.series(family, &[])));
}

const fn skips(name: &'static str) -> Family {
    counter(name, &["group", "resource"], "Number of reconciliations that were delayed because a cache was stale.")
}

static SKIPS: [(&str, Family); 5] = [
    ("replicaset-controller", skips("replicaset_controller_stale_sync_skips_total")),
    ("replication-controller", skips("replicaset_controller_stale_sync_skips_total")),
    ("daemon-set-controller", skips("daemonset_controller_stale_sync_skips_total")),
    ("statefulset-controller", skips("statefulset_controller_stale_sync_skips_total")),
    ("job-controller", skips("job_controller_stale_sync_skips_total")),
];

/// Returns the family that counts skipped reconciles of a controller, for the controllers that upstream counts them of.
pub fn skips_of(controller: &str) -> Option<&'static Family> {
    SKIPS.iter().find(|(name, _)| *name == controller).map(|(_, family)| family)
}
