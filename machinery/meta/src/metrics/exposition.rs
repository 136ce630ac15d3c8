//! The Prometheus text format, version 0.0.4: families of samples, with label values escaped.

use std::fmt::Write;

/// A text of metrics that grows family by family.
#[derive(Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family; its samples must follow at once.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let (level, space) = stability(name).map_or(("", ""), |level| (level, " "));
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {level}{space}{help}\n# TYPE {name} {kind}");
    }

    /// One sample; labels in the order given.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        if !labels.is_empty() {
            self.0.push('{');
            for (index, (label, text)) in labels.iter().enumerate() {
                if index > 0 {
                    self.0.push(',');
                }
                let _ = write!(self.0, "{label}=\"");
                self.escape(text);
                self.0.push('"');
            }
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {}", number(value));
    }

    fn escape(&mut self, text: &str) {
        for letter in text.chars() {
            match letter {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
    }

    pub fn finish(self) -> String {
        self.0
    }
}

/// The families that upstream promises to keep as they are.
const STABLE: &[&str] = &[
    "apiserver_admission_controller_admission_duration_seconds",
    "apiserver_admission_step_admission_duration_seconds",
    "apiserver_admission_webhook_admission_duration_seconds",
    "apiserver_current_inflight_requests",
    "apiserver_longrunning_requests",
    "apiserver_request_duration_seconds",
    "apiserver_request_total",
    "apiserver_requested_deprecated_apis",
    "apiserver_response_sizes",
    "apiserver_storage_objects",
    "apiserver_storage_size_bytes",
    "cronjob_controller_job_creation_skew_duration_seconds",
    "job_controller_job_pods_finished_total",
    "job_controller_job_sync_duration_seconds",
    "job_controller_job_syncs_total",
    "job_controller_jobs_finished_total",
    "kubernetes_healthcheck",
    "kubernetes_healthchecks_total",
    "node_collector_evictions_total",
    "scheduler_framework_extension_point_duration_seconds",
    "scheduler_pending_pods",
    "scheduler_pod_scheduling_attempts",
    "scheduler_preemption_attempts_total",
    "scheduler_preemption_victims",
    "scheduler_queue_incoming_pods_total",
    "scheduler_schedule_attempts_total",
    "scheduler_scheduling_attempt_duration_seconds",
];

/// Those that it promises for some releases; all of a work queue too.
const BETA: &[&str] = &[
    "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
    "apiserver_authentication_config_controller_automatic_reloads_total",
    "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
    "apiserver_authorization_config_controller_automatic_reloads_total",
    "apiserver_cel_compilation_duration_seconds",
    "apiserver_cel_evaluation_duration_seconds",
    "apiserver_flowcontrol_current_executing_requests",
    "apiserver_flowcontrol_current_executing_seats",
    "apiserver_flowcontrol_current_inqueue_requests",
    "apiserver_flowcontrol_dispatched_requests_total",
    "apiserver_flowcontrol_nominal_limit_seats",
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_wait_duration_seconds",
    "apiserver_storage_events_received_total",
    "apiserver_validating_admission_policy_check_duration_seconds",
    "apiserver_validating_admission_policy_check_total",
    "apiserver_watch_list_duration_seconds",
    "disabled_metrics_total",
    "hidden_metrics_total",
    "kubernetes_build_info",
    "kubernetes_feature_enabled",
    "registered_metrics_total",
    "running_managed_controllers",
    "scheduler_pod_scheduling_sli_duration_seconds",
];

/// How the names of other families of upstream's components begin.
const COMPONENTS: &[&str] = &[
    "aggregator_",
    "apiserver_",
    "authentication_",
    "authorization_",
    "etcd_",
    "pod_security_",
    "rest_client_",
    "scheduler_",
    "serviceaccount_",
    "version_info",
];

/// How much of a promise a family is, as upstream's help says it.
fn stability(name: &str) -> Option<&'static str> {
    match name {
        _ if STABLE.contains(&name) => Some("[STABLE]"),
        _ if BETA.contains(&name) || name.starts_with("workqueue_") => Some("[BETA]"),
        _ if COMPONENTS.iter().any(|component| name.starts_with(component)) => Some("[ALPHA]"),
        _ => None,
    }
}

/// A number as upstream's library writes it: very small ones with an exponent of at least two digits.
pub fn number(value: f64) -> String {
    if value == 0.0 || value.abs() >= 1e-4 {
        return value.to_string();
    }
    let text = format!("{value:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) if exponent.len() < 2 => format!("{digits}e-0{exponent}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let mut out = Exposition::default();
        out.family("a_total", "counter", "Something.");
        out.sample("a_total", &[("x", "1\"2\\3\n4"), ("y", "")], 2.0);
        out.sample("a_total", &[], 0.5);
        let expected = "# HELP a_total Something.\n# TYPE a_total counter\n\
                        a_total{x=\"1\\\"2\\\\3\\n4\",y=\"\"} 2\na_total 0.5\n";
        assert_eq!(out.finish(), expected);
    }

    #[test]
    fn a_family_says_how_stable_it_is() {
        for (name, expected) in [
            ("apiserver_request_total", Some("[STABLE]")),
            ("workqueue_depth", Some("[BETA]")),
            ("apiserver_storage_revision", Some("[ALPHA]")),
            ("process_open_fds", None),
        ] {
            assert_eq!(stability(name), expected, "{name}");
        }
    }

    #[test]
    fn numbers_are_written_as_upstream_does() {
        for (value, expected) in [
            (0.0, "0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (0.000_022_5, "2.25e-05"),
            (1e-12, "1e-12"),
        ] {
            assert_eq!(number(value), expected);
        }
    }
}
