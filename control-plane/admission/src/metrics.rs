//! The metric families of admission, under upstream's names, and the bounds of its histograms.

use corten_meta::metrics::families;

/// The bounds of admission, in seconds.
pub const ADMISSION: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
/// The bounds of calls of webhooks, of match conditions, and of policies.
const WEBHOOK: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const CONDITIONS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const POLICY: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];

families! {
    WEBHOOK_SECONDS = Histogram(WEBHOOK) "apiserver_admission_webhook_admission_duration_seconds"
        ["name", "operation", "rejected", "type"],
        "[STABLE] Admission webhook latency histogram in seconds, identified by name and broken out for each operation \
         and API resource and type (validate or admit).";
    WEBHOOK_REQUESTS = Counter "apiserver_admission_webhook_request_total"
        ["code", "name", "operation", "rejected", "type"],
        "[ALPHA] The number of calls of admission webhooks.";
    WEBHOOK_REJECTIONS = Counter "apiserver_admission_webhook_rejection_count"
        ["error_type", "name", "operation", "rejection_code", "type"],
        "[ALPHA] The number of writes that webhooks rejected.";
    WEBHOOK_FAIL_OPEN = Counter "apiserver_admission_webhook_fail_open_count" ["name", "type"],
        "[ALPHA] The number of writes that were admitted although a webhook failed.";
    CONDITION_SECONDS = Histogram(CONDITIONS) "apiserver_admission_match_condition_evaluation_seconds"
        ["kind", "name", "operation", "type"],
        "[ALPHA] The duration of evaluating match conditions.";
    CONDITION_ERRORS = Counter "apiserver_admission_match_condition_evaluation_errors_total"
        ["kind", "name", "operation", "type"],
        "[ALPHA] The number of match conditions that failed to evaluate.";
    CONDITION_EXCLUSIONS = Counter "apiserver_admission_match_condition_exclusions_total"
        ["kind", "name", "operation", "type"],
        "[ALPHA] The number of writes that match conditions excluded from a webhook or policy.";
    VALIDATING_POLICY_CHECKS = Counter "apiserver_validating_admission_policy_check_total"
        ["enforcement_action", "error_type", "policy", "policy_binding"],
        "[BETA] Validation admission policy check total, labeled by policy and further identified by binding and \
         enforcement action taken.";
    VALIDATING_POLICY_SECONDS = Histogram(POLICY) "apiserver_validating_admission_policy_check_duration_seconds"
        ["enforcement_action", "error_type", "policy", "policy_binding"],
        "[BETA] Validation admission latency for individual validation expressions in seconds, labeled by policy and \
         further including binding and enforcement action taken.";
    MUTATING_POLICY_CHECKS = Counter "apiserver_mutating_admission_policy_check_total"
        ["error_type", "policy", "policy_binding"],
        "[ALPHA] The number of mutations by mutating policies.";
    MUTATING_POLICY_SECONDS = Histogram(POLICY) "apiserver_mutating_admission_policy_check_duration_seconds"
        ["error_type", "policy", "policy_binding"],
        "[ALPHA] The duration of mutations by mutating policies.";
    POD_SECURITY_EVALUATIONS = Counter "pod_security_evaluations_total"
        ["decision", "mode", "policy_level", "policy_version", "request_operation", "resource", "subresource"],
        "[ALPHA] The number of Pod Security evaluations of pods and pod templates.";
    ADMISSION_STEP_SECONDS = Histogram(ADMISSION) "apiserver_admission_step_admission_duration_seconds"
        ["operation", "rejected", "type"],
        "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and \
         step type (validate or admit).";
    ADMISSION_PLUGIN_SECONDS = Histogram(ADMISSION) "apiserver_admission_controller_admission_duration_seconds"
        ["name", "operation", "rejected", "type"],
        "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each \
         operation and API resource and type (validate or admit).";
}
