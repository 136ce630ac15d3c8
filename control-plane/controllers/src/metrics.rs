//! The metrics of controllers beyond those of their queues. Names and labels are upstream's.
//!
//! A plan names the metrics to count (`runtime::Count`); no other code in this package touches a series, except in the
//! few controllers that make no plans.

use corten_meta::metrics::{Family, Registry, exponential, families};

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

families! {
    JOB_SYNCS = Counter "job_controller_job_syncs_total" ["completion_mode", "result", "action"],
        "[STABLE] The number of job syncs";
    JOB_SYNC_SECONDS = Histogram(&SYNC_SECONDS) "job_controller_job_sync_duration_seconds"
        ["completion_mode", "result", "action"],
        "[STABLE] The time it took to sync a job";
    JOBS_FINISHED = Counter "job_controller_jobs_finished_total" ["completion_mode", "result", "reason"],
        "[STABLE] The number of finished jobs";
    JOB_PODS_FINISHED = Counter "job_controller_job_pods_finished_total" ["completion_mode", "result"],
        "[STABLE] The number of finished Pods that are fully tracked";
    JOB_PODS_CREATED = Counter "job_controller_job_pods_creation_total" ["reason", "status"],
        "Pods that were created for Jobs.";
    JOB_INDEXES_FINISHED = Counter "job_controller_job_finished_indexes_total" ["status", "backoffLimit"],
        "Indexes of Jobs that succeeded or were lost.";
    JOB_FAILURES_HANDLED = Counter "job_controller_pod_failures_handled_by_failure_policy_total" ["action"],
        "Number of pod failures that a rule of the pod failure policy matched.";
    JOB_PODS_HELD = Counter "job_controller_terminated_pods_tracking_finalizer_total" ["event"],
        "Number of terminated pods with the tracking finalizer: added and removed.";
    DELETION_AGE_RATIO = Histogram(&AGE_RATIO) "replicaset_controller_sorting_deletion_age_ratio" [],
        "Ratio of the age of a deleted ready pod to that of the youngest pod.";
    CRON_SKEW = Histogram(&SKEW_SECONDS) "cronjob_controller_job_creation_skew_duration_seconds" [],
        "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job is created";
    TTL_DELETION = Histogram(&TTL_SECONDS) "ttl_after_finished_controller_job_deletion_duration_seconds" [],
        "Seconds from the end of the Job's TTL until its deletion.";
    PODS_COLLECTED = Counter "pod_gc_collector_force_delete_pods_total" ["namespace", "reason"],
        "Number of pods that the pod garbage collector deleted by force.";
    TAINT_DELETIONS = Counter "taint_eviction_controller_pod_deletions_total" [],
        "Number of pods deleted because of a taint of their node.";
    TAINT_DELETION_SECONDS = Histogram(&EVICTION_SECONDS) "taint_eviction_controller_pod_deletion_duration_seconds" [],
        "Seconds from the moment when a taint takes effect until the deletion of the pod.";
    DEVICE_DELETIONS = Counter "device_taint_eviction_controller_pod_deletions_total" [],
        "Number of pods deleted because of a taint of one of their devices.";
    DEVICE_DELETION_SECONDS = Histogram(&EVICTION_SECONDS)
        "device_taint_eviction_controller_pod_deletion_duration_seconds" [],
        "Seconds from the moment when a device taint takes effect until the deletion of the pod.";
    SLICE_SYNCS = Counter "endpoint_slice_controller_syncs" ["result"], "Number of EndpointSlice syncs.";
    SLICE_CHANGES = Counter "endpoint_slice_controller_changes" ["operation"], "Number of EndpointSlice changes.";
    SLICES_PER_SYNC = Histogram(&PER_SYNC) "endpoint_slice_controller_endpointslices_changed_per_sync"
        ["topology", "traffic_distribution"],
        "Number of EndpointSlices changed on each Service sync.";
    SLICES = Gauge "endpoint_slice_controller_num_endpoint_slices" [], "Number of EndpointSlices.";
    SLICES_DESIRED = Gauge "endpoint_slice_controller_desired_endpoint_slices" [],
        "Number of EndpointSlices that would exist with perfect allocation.";
    ENDPOINTS_DESIRED = Gauge "endpoint_slice_controller_endpoints_desired" [], "Number of desired endpoints.";
    ENDPOINTS_ADDED = Histogram(&MANY) "endpoint_slice_controller_endpoints_added_per_sync" [],
        "Number of endpoints added on each Service sync.";
    ENDPOINTS_REMOVED = Histogram(&MANY) "endpoint_slice_controller_endpoints_removed_per_sync" [],
        "Number of endpoints removed on each Service sync.";
    DISTRIBUTIONS = Gauge "endpoint_slice_controller_services_count_by_traffic_distribution" ["traffic_distribution"],
        "Services by where their traffic should go.";
    MIRROR_SECONDS = Histogram(&MILLISECONDS) "endpoint_slice_mirroring_controller_endpoints_sync_duration" [],
        "Duration of Endpoints syncs in seconds.";
    MIRROR_CHANGES = Counter "endpoint_slice_mirroring_controller_changes" ["operation"],
        "EndpointSlices that were written for Endpoints.";
    EPHEMERAL_CLAIMS = Counter "ephemeral_volume_controller_create_total" [],
        "Claims that were created for ephemeral volumes.";
    EPHEMERAL_CLAIM_FAILURES = Counter "ephemeral_volume_controller_create_failures_total" [],
        "Claims that could not be created for ephemeral volumes.";
    REPLICA_AGE = Gauge "corten_volume_replica_age_seconds" ["persistentvolume"],
        "Age in seconds of the copy of a volume on another node; -1 without a whole copy.";
    VOLUMES = Gauge "pv_collector_total_pv_count" ["plugin_name", "volume_mode"], "Number of PersistentVolumes.";
    VOLUMES_BOUND = Gauge "pv_collector_bound_pv_count" ["storage_class"], "PersistentVolumes that are bound.";
    VOLUMES_UNBOUND = Gauge "pv_collector_unbound_pv_count" ["storage_class"], "PersistentVolumes that are not.";
    CLAIMS_BOUND = Gauge "pv_collector_bound_pvc_count" ["namespace", "storage_class", "volume_attributes_class"],
        "PersistentVolumeClaims that are bound.";
    CLAIMS_UNBOUND = Gauge "pv_collector_unbound_pvc_count" ["namespace", "storage_class", "volume_attributes_class"],
        "PersistentVolumeClaims that are not.";
    VOLUMES_ATTACHED = Gauge "attachdetach_controller_total_volumes" ["plugin_name", "state"],
        "Volumes that should be attached, and that are.";
    FORCED_DETACHES = Counter "attach_detach_controller_attachdetach_controller_forced_detaches" ["reason"],
        "Number of volumes that were detached by force.";
    RANGES_GIVEN = Counter "node_ipam_controller_cidrset_cidrs_allocations_total" ["clusterCIDR"],
        "Number of CIDRs allocated to nodes.";
    RANGES_USED = Gauge "node_ipam_controller_cidrset_usage_cidrs" ["clusterCIDR"], "Ratio of allocated CIDRs.";
    SYNC_ERRORS = Counter "garbagecollector_controller_resources_sync_error_total" [],
        "Number of failed discoveries of resources, also partial ones.";
    ROOT_CA_SYNCS = Counter "root_ca_cert_publisher_sync_total" ["code"],
        "Number of namespace syncs of the root CA certificate.";
    ROOT_CA_SECONDS = Histogram(&MILLISECONDS) "root_ca_cert_publisher_sync_duration_seconds" ["code"],
        "Duration of namespace syncs of the root CA certificate.";
    NODE_SYNC_SECONDS = Histogram(&NODE_SECONDS) "node_collector_update_node_health_duration_seconds" [],
        "Duration of the health check of one node.";
    ZONE_SIZE = Gauge "node_collector_zone_size" ["zone"], "Nodes by zone.";
    ZONE_UNHEALTHY = Gauge "node_collector_unhealthy_nodes_in_zone" ["zone"], "Nodes that are not ready, by zone.";
    EVICTIONS = Counter "node_collector_evictions_total" ["zone"],
        "[STABLE] Number of Node evictions that happened since current instance of NodeController started.";
    CLAIMS_CREATED = Counter "resourceclaim_controller_creates_total" ["status", "admin_access"],
        "ResourceClaims that were created for pods.";
    CLAIMS = Gauge "resourceclaim_controller_resource_claims" ["allocated", "admin_access", "source"],
        "Number of ResourceClaims.";
    RETROACTIVE_CLASSES = Counter "retroactive_storageclass_total" [],
        "Number of attempts to set the default StorageClass of existing claims.";
    RETROACTIVE_CLASS_ERRORS = Counter "retroactive_storageclass_errors_total" [],
        "Number of failed attempts to set the default StorageClass of existing claims.";
    SCALINGS = Counter "horizontal_pod_autoscaler_controller_reconciliations_total" ["action", "error"],
        "Number of HorizontalPodAutoscaler reconciliations, by action and error.";
    SCALING_SECONDS = Histogram(&MILLISECONDS) "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds"
        ["action", "error"],
        "Duration of HorizontalPodAutoscaler reconciliations.";
    METRICS_EVALUATED = Counter "horizontal_pod_autoscaler_controller_metric_computation_total"
        ["action", "error", "metric_type"],
        "Number of metric computations, by action, error and metric type.";
    AUTOSCALERS = Gauge "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers" [],
        "Number of HorizontalPodAutoscalers.";
    DESIRED_REPLICAS = Gauge "horizontal_pod_autoscaler_controller_desired_replicas" ["namespace", "hpa_name"],
        "The replicas that autoscalers want.";
    METRIC_SECONDS = Histogram(&MILLISECONDS) "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds"
        ["action", "error", "metric_type"],
        "Duration of metric computations.";
    ZONE_HEALTH = Gauge "node_collector_zone_health" ["zone"], "Percentage of ready nodes in a zone.";
    RANGES_FREED = Counter "node_ipam_controller_cidrset_cidrs_releases_total" ["clusterCIDR"],
        "Number of CIDRs released by deleted nodes.";
    /// Upstream's spelling.
    RANGES_THERE = Gauge "node_ipam_controller_cirdset_max_cidrs" ["clusterCIDR"],
        "Number of CIDRs that can be allocated to nodes.";
    RANGE_TRIES = Histogram(&FIVEFOLD) "node_ipam_controller_cidrset_allocation_tries_per_request" ["clusterCIDR"],
        "Number of CIDRs that were already allocated when one was searched.";
    FOREIGN_JOBS = Counter "job_controller_jobs_by_external_controller_total" ["controller_name"],
        "Number of Jobs with an external controller.";
    PODS_NOT_COLLECTED = Counter "pod_gc_collector_force_delete_pod_errors_total" ["namespace", "reason"],
        "Number of errors when the pod garbage collector deleted pods by force.";
    MOST_UNAVAILABLE = Gauge "statefulset_controller_statefulset_max_unavailable"
        ["statefulset_namespace", "statefulset_name", "pod_management_policy"],
        "The maximum number of unavailable pods of a StatefulSet during an update.";
    UNAVAILABLE = Gauge "statefulset_controller_statefulset_unavailable_replicas"
        ["statefulset_namespace", "statefulset_name", "pod_management_policy"],
        "Pods of a StatefulSet that are missing or not available.";
    MIRROR_SKIPPED = Histogram(&MANY) "endpoint_slice_mirroring_controller_addresses_skipped_per_sync" [],
        "Number of addresses skipped on each Endpoints sync because they are invalid or exceed the limit.";
    MIRROR_ADDED = Histogram(&MANY) "endpoint_slice_mirroring_controller_endpoints_added_per_sync" [],
        "Number of endpoints added on each Endpoints sync.";
    MIRROR_UPDATED = Histogram(&MANY) "endpoint_slice_mirroring_controller_endpoints_updated_per_sync" [],
        "Number of endpoints updated on each Endpoints sync.";
    MIRROR_REMOVED = Histogram(&MANY) "endpoint_slice_mirroring_controller_endpoints_removed_per_sync" [],
        "Number of endpoints removed on each Endpoints sync.";
    MIRROR_ENDPOINTS = Gauge "endpoint_slice_mirroring_controller_endpoints_desired" [],
        "Number of desired endpoints in mirrored EndpointSlices.";
    MIRROR_SLICES = Gauge "endpoint_slice_mirroring_controller_num_endpoint_slices" [],
        "Number of mirrored EndpointSlices.";
    MIRROR_DESIRED = Gauge "endpoint_slice_mirroring_controller_desired_endpoint_slices" [],
        "Number of mirrored EndpointSlices that would exist with perfect allocation.";
    REPLICASET_SKIPS = Counter "replicaset_controller_stale_sync_skips_total" ["group", "resource"],
        "Number of reconciliations that were delayed because a cache was stale.";
    DAEMONSET_SKIPS = Counter "daemonset_controller_stale_sync_skips_total" ["group", "resource"],
        "Number of reconciliations that were delayed because a cache was stale.";
    STATEFULSET_SKIPS = Counter "statefulset_controller_stale_sync_skips_total" ["group", "resource"],
        "Number of reconciliations that were delayed because a cache was stale.";
    JOB_SKIPS = Counter "job_controller_stale_sync_skips_total" ["group", "resource"],
        "Number of reconciliations that were delayed because a cache was stale.";
}

/// Exposes the families without labels before anything is counted, with the value zero.
pub fn begin(registry: &Registry) {
    let plain = FAMILIES.iter().filter(|family| family.labels.is_empty());
    plain.for_each(|family| drop(registry.series(family, &[])));
}

/// Returns the family that counts skipped reconciles of a controller, for the controllers that upstream counts them of.
pub fn skips_of(controller: &str) -> Option<&'static Family> {
    match controller {
        "replicaset-controller" | "replication-controller" => Some(&REPLICASET_SKIPS),
        "daemon-set-controller" => Some(&DAEMONSET_SKIPS),
        "statefulset-controller" => Some(&STATEFULSET_SKIPS),
        "job-controller" => Some(&JOB_SKIPS),
        _ => None,
    }
}
