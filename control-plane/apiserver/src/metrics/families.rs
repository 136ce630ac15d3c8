//! The families of the API server's metrics, under upstream's names, and the bounds of its histograms.

use corten_meta::metrics::families;

/// The bounds of upstream's request durations, in seconds.
pub const SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// The bounds of the remaining lifetime of certificates, in seconds: from half an hour to a year.
pub const CERTIFICATE_SECONDS: &[f64] = &[
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// The bounds of request durations for the SLI, which leaves out dry runs.
pub const SLI_SECONDS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
/// The bounds of response sizes, in bytes.
pub const RESPONSE_BYTES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// The bounds of the sizes of events, in bytes.
pub const EVENT_SIZES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0];

/// The bounds of the durations of authentication and authorization, in seconds.
pub const ACCESS_SECONDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
/// The bounds of calls of authorization webhooks, and of their match conditions.
const AUTHORIZATION_WEBHOOK_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const CONDITIONS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const WATCH_LIST: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const JWT: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// The bounds of the wait for seats, in seconds.
pub const WAIT_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

families! {
    AUTHORIZATION_DECISIONS = Counter "apiserver_authorization_decisions_total" ["decision", "name", "type"],
        "[ALPHA] The number of decisions of authorizers.";
    AUTHORIZATION_WEBHOOK = Counter "apiserver_authorization_webhook_evaluations_total" ["name", "result"],
        "[ALPHA] The number of calls of authorization webhooks.";
    AUTHORIZATION_WEBHOOK_SECONDS = Histogram(AUTHORIZATION_WEBHOOK_BOUNDS)
        "apiserver_authorization_webhook_duration_seconds" ["name", "result"],
        "[ALPHA] The duration of calls of authorization webhooks.";
    AUTHORIZATION_WEBHOOK_FAIL_OPEN = Counter "apiserver_authorization_webhook_evaluations_fail_open_total"
        ["name", "result"],
        "[ALPHA] The number of failed calls that count as no opinion.";
    AUTHORIZATION_CONDITION_SECONDS = Histogram(CONDITIONS) "apiserver_authorization_match_condition_evaluation_seconds"
        ["name", "type"],
        "[ALPHA] The duration of evaluating match conditions of authorizers.";
    AUTHORIZATION_CONDITION_ERRORS = Counter "apiserver_authorization_match_condition_evaluation_errors_total"
        ["name", "type"],
        "[ALPHA] The number of match conditions of authorizers that failed to evaluate.";
    AUTHORIZATION_CONDITION_EXCLUSIONS = Counter "apiserver_authorization_match_condition_exclusions_total"
        ["name", "type"],
        "[ALPHA] The number of requests that match conditions excluded from an authorizer.";
    DEPRECATED_APIS = Gauge "apiserver_requested_deprecated_apis"
        ["group", "removed_release", "resource", "subresource", "version"],
        "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, \
         subresource, and removed_release.";
    WATCH_LIST_SECONDS = Histogram(WATCH_LIST) "apiserver_watch_list_duration_seconds"
        ["group", "resource", "scope", "version"],
        "[BETA] Response latency distribution in seconds for watch list requests broken by group, version, resource \
         and scope.";
    TERMINATIONS = Counter "apiserver_request_terminations_total"
        ["code", "component", "group", "resource", "scope", "subresource", "verb", "version"],
        "[ALPHA] The number of requests that the server terminated to protect itself.";
    NODE_PORT_ERRORS = Counter "apiserver_nodeport_repair_port_errors_total" ["type"],
        "[ALPHA] The number of errors of node ports that the repair found: leak, repair, outOfRange, duplicate.";
    NODE_PORT_REPAIR_ERRORS = Counter "apiserver_nodeport_repair_reconcile_errors_total" [],
        "[ALPHA] The number of repairs of node ports that failed.";
    VALID_TOKENS = Counter "serviceaccount_valid_tokens_total" [], "[ALPHA] The number of uses of bound tokens.";
    LEGACY_TOKENS = Counter "serviceaccount_legacy_tokens_total" [], "[ALPHA] The number of uses of tokens of Secrets.";
    JWT_SECONDS = Histogram(JWT) "apiserver_authentication_jwt_authenticator_latency_seconds"
        ["jwt_issuer_hash", "result"],
        "[ALPHA] The duration of verifying the tokens of an issuer.";
    JWKS_FETCHED_AT = Gauge "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds"
        ["apiserver_id_hash", "jwt_issuer_hash", "result"],
        "[ALPHA] The time of the last fetch of an issuer's keys.";
    JWKS_INFO = Gauge "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info"
        ["apiserver_id_hash", "hash", "jwt_issuer_hash"],
        "[ALPHA] The hash of an issuer's last fetched keys.";
    AUTHENTICATION_RELOADS = Counter "apiserver_authentication_config_controller_automatic_reloads_total"
        ["apiserver_id_hash", "status"],
        "[BETA] Total number of automatic reloads of authentication configuration split by status and apiserver \
         identity.";
    AUTHENTICATION_RELOADED_AT = Gauge
        "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds"
        ["apiserver_id_hash", "status"],
        "[BETA] Timestamp of the last automatic reload of authentication configuration split by status and apiserver \
         identity.";
    AUTHENTICATION_INFO = Gauge "apiserver_authentication_config_controller_last_config_info"
        ["apiserver_id_hash", "hash"],
        "[ALPHA] The hash of the authentication configuration in use.";
    AUTHORIZATION_RELOADS = Counter "apiserver_authorization_config_controller_automatic_reloads_total"
        ["apiserver_id_hash", "status"],
        "[BETA] Total number of automatic reloads of authorization configuration split by status and apiserver \
         identity.";
    AUTHORIZATION_RELOADED_AT = Gauge
        "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds"
        ["apiserver_id_hash", "status"],
        "[BETA] Timestamp of the last automatic reload of authorization configuration split by status and apiserver \
         identity.";
    AUTHORIZATION_INFO = Gauge "apiserver_authorization_config_controller_last_config_info"
        ["apiserver_id_hash", "hash"],
        "[ALPHA] The hash of the authorization configuration in use.";
    ENCRYPTION_RELOADS = Counter "apiserver_encryption_config_controller_automatic_reloads_total"
        ["apiserver_id_hash", "status"],
        "[ALPHA] Reloads of the encryption configuration.";
    ENCRYPTION_RELOADED_AT = Gauge "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds"
        ["apiserver_id_hash", "status"],
        "[ALPHA] The time of the last reload of the encryption configuration.";
    ENCRYPTION_INFO = Gauge "apiserver_encryption_config_controller_last_config_info" ["apiserver_id_hash", "hash"],
        "[ALPHA] The hash of the encryption configuration in use.";
    REQUESTS = Counter "apiserver_request_total"
        ["code", "component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
        "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, \
         scope, component, and HTTP response code.";
    REQUEST_SECONDS = Histogram(SECONDS) "apiserver_request_duration_seconds"
        ["component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
        "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, \
         subresource, scope and component.";
    REQUEST_SLI_SECONDS = Histogram(SLI_SECONDS) "apiserver_request_sli_duration_seconds"
        ["component", "group", "resource", "scope", "subresource", "verb", "version"],
        "[ALPHA] The duration of requests that are no dry runs, by verb and resource.";
    RESPONSE_SIZES = Histogram(RESPONSE_BYTES) "apiserver_response_sizes"
        ["component", "group", "resource", "scope", "subresource", "verb", "version"],
        "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and \
         component.";
    LONG_RUNNING = Gauge "apiserver_longrunning_requests"
        ["component", "group", "resource", "scope", "subresource", "verb", "version"],
        "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, \
         scope and component. Not all requests are tracked this way.";
    IN_FLIGHT = Gauge "apiserver_current_inflight_requests" ["request_kind"],
        "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last \
         second.";
    TLS_HANDSHAKE_ERRORS = Counter "apiserver_tls_handshake_errors_total" [],
        "[ALPHA] The number of failed TLS handshakes.";
    AUTHENTICATION_ATTEMPTS = Counter "authentication_attempts" ["result"],
        "[ALPHA] The number of authentications, by result.";
    AUTHENTICATION_SECONDS = Histogram(ACCESS_SECONDS) "authentication_duration_seconds" ["result"],
        "[ALPHA] The duration of these attempts.";
    AUTHORIZATION_ATTEMPTS = Counter "authorization_attempts_total" ["result"],
        "[ALPHA] The number of authorizations, by result.";
    AUTHORIZATION_SECONDS = Histogram(ACCESS_SECONDS) "authorization_duration_seconds" ["result"],
        "[ALPHA] The duration of these attempts.";
    UNAVAILABLE_API_SERVICE = Gauge "aggregator_unavailable_apiservice" ["name"],
        "[ALPHA] Whether an API of another server is unavailable.";
    CERTIFICATE_EXPIRATION = Histogram(CERTIFICATE_SECONDS) "apiserver_client_certificate_expiration_seconds" [],
        "[ALPHA] The remaining lifetime of the client certificates of requests.";
    AUDIT_EVENTS = Counter "apiserver_audit_event_total" [], "[ALPHA] The number of audit events.";
    FLOW_NOMINAL_LIMIT = Gauge "apiserver_flowcontrol_nominal_limit_seats" ["priority_level"],
        "[BETA] Nominal number of execution seats configured for each priority level";
    FLOW_LOWER_LIMIT = Gauge "apiserver_flowcontrol_lower_limit_seats" ["priority_level"],
        "[ALPHA] The seats it never lends.";
    FLOW_UPPER_LIMIT = Gauge "apiserver_flowcontrol_upper_limit_seats" ["priority_level"],
        "[ALPHA] The seats it may have.";
    FLOW_CURRENT_LIMIT = Gauge "apiserver_flowcontrol_current_limit_seats" ["priority_level"],
        "[ALPHA] The seats it has.";
    FLOW_WAIT_SECONDS = Histogram(WAIT_SECONDS) "apiserver_flowcontrol_request_wait_duration_seconds"
        ["execute", "flow_schema", "priority_level"],
        "[BETA] Length of time a request spent waiting in its queue";
    FLOW_DISPATCHED = Counter "apiserver_flowcontrol_dispatched_requests_total" ["flow_schema", "priority_level"],
        "[BETA] Number of requests executed by API Priority and Fairness subsystem";
    FLOW_REJECTED = Counter "apiserver_flowcontrol_rejected_requests_total" ["flow_schema", "priority_level", "reason"],
        "[BETA] Number of requests rejected by API Priority and Fairness subsystem";
    FLOW_QUEUED = Gauge "apiserver_flowcontrol_current_inqueue_requests" ["flow_schema", "priority_level"],
        "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem";
    FLOW_EXECUTING = Gauge "apiserver_flowcontrol_current_executing_requests" ["flow_schema", "priority_level"],
        "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API \
         Priority and Fairness subsystem";
    FLOW_EXECUTING_SEATS = Gauge "apiserver_flowcontrol_current_executing_seats" ["flow_schema", "priority_level"],
        "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any \
         stage otherwise) requests in the API Priority and Fairness subsystem";
    RESOURCE_OBJECTS = Gauge "apiserver_resource_objects" ["group", "resource"],
        "[ALPHA] The number of stored objects, by resource.";
    STORAGE_OBJECTS = Gauge "apiserver_storage_objects" ["resource"],
        "[STABLE] (Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] Number of \
         stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.";
    RESOURCE_SIZE = Gauge "apiserver_resource_size_estimate_bytes" ["group", "resource"],
        "[ALPHA] The bytes of stored objects, by resource.";
    WATCH_CACHE_VERSION = Gauge "apiserver_watch_cache_resource_version" ["group", "resource"],
        "[ALPHA] The resourceVersion that the watch cache has reached, by resource.";
    STORAGE_EVENTS_RECEIVED = Counter "apiserver_storage_events_received_total" ["group", "resource"],
        "[BETA] Number of etcd events received split by kind.";
    WATCH_CACHE_RECEIVED = Counter "apiserver_watch_cache_events_received_total" ["group", "resource"],
        "[ALPHA] The number of changes that the watch cache received, by resource.";
    WATCH_CACHE_DISPATCHED = Counter "apiserver_watch_cache_events_dispatched_total" ["group", "resource"],
        "[ALPHA] The number of changes that the watch cache dispatched to its watchers, by resource.";
    TERMINATED_WATCHERS = Counter "apiserver_terminated_watchers_total" ["group", "resource"],
        "[ALPHA] The number of watches that were terminated because they were too slow, by resource.";
    STORE_REQUEST_SECONDS = Histogram(SECONDS) "etcd_request_duration_seconds" ["group", "operation", "resource"],
        "[ALPHA] The duration of requests to the store, by operation and resource.";
    STORE_REQUESTS = Counter "etcd_requests_total" ["group", "operation", "resource"],
        "[ALPHA] The number of requests to the store, by operation and resource.";
    WATCH_EVENTS = Counter "apiserver_watch_events_total" ["group", "resource", "version"],
        "[ALPHA] The number of events sent to watches, by resource.";
    WATCH_EVENT_SIZES = Histogram(EVENT_SIZES) "apiserver_watch_events_sizes" ["group", "resource", "version"],
        "[ALPHA] The sizes of watch events in bytes, by resource.";
    STORE_REVISION = Gauge "apiserver_storage_revision" [], "[ALPHA] The store's revision.";
    STORE_SIZE = Gauge "apiserver_storage_size_bytes" ["storage_cluster_id"],
        "[STABLE] Size of the storage database file physically allocated in bytes.";
    STORE_HEALTH = Gauge "corten_store_health" ["state"],
        "The state of the store after the last write: 1 for writable, failing or broken.";
    STORE_DISK_FREE = Gauge "corten_store_disk_free_bytes" [], "The free space of the store's disk, in bytes.";
    BUILD_INFO = Gauge
        "kubernetes_build_info"
        ["build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor",
         "platform"],
        "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, \
         build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.";
    VALIDATION_MISMATCHES = Counter "apiserver_validation_declarative_validation_mismatch_total" [],
        "[ALPHA] Results of declarative validation that differed from handwritten validation.";
    VALIDATION_PANICS = Counter "apiserver_validation_declarative_validation_panic_total" [],
        "[ALPHA] Panics of declarative validation.";
    VERSION_INFO = Gauge "version_info" ["binary", "component", "emulation", "min_compat"],
        "[ALPHA] The versions that this server is compatible with; always 1.";
    FEATURES_ENABLED = Gauge "kubernetes_feature_enabled" ["name", "stage"],
        "[BETA] This metric records the data about the stage and enablement of a k8s feature.";
    REGISTERED_METRICS = Counter "registered_metrics_total" ["deprecated_version", "stability_level"],
        "[BETA] The count of registered metrics broken by stability level and deprecation version.";
    HIDDEN_METRICS = Counter "hidden_metrics_total" [], "[BETA] The count of hidden metrics.";
    DISABLED_METRICS = Counter "disabled_metrics_total" [], "[BETA] The count of disabled metrics.";
}
