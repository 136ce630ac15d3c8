//! The metrics of authentication, authorization and admission, under upstream's names. Frequent ones have atomic
//! counters of their own; rare ones are found by name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corten_meta::metrics::{Family, Kind};

use super::{Exposition, Histogram, Metrics};

/// The bounds of the durations of authentication and authorization, in seconds.
const ACCESS_SECONDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
/// The bounds of calls of authorization webhooks, of admission webhooks, of match conditions, and of policies.
const AUTHORIZATION_WEBHOOK_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const WEBHOOK: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const CONDITIONS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];
const WATCH_LIST: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const JWT: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const POLICY: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];

macro_rules! families {
    ($($name:ident = $full:literal, $kind:expr, [$($label:literal),*], $help:literal;)*) => {
        $(pub static $name: Family = Family { name: $full, kind: $kind, labels: &[$($label),*], help: $help };)*
    };
}

families! {
    WEBHOOK_SECONDS = "apiserver_admission_webhook_admission_duration_seconds", Kind::Histogram(WEBHOOK),
        ["name", "operation", "rejected", "type"], "The duration of calls of admission webhooks.";
    WEBHOOK_REQUESTS = "apiserver_admission_webhook_request_total", Kind::Counter,
        ["code", "name", "operation", "rejected", "type"], "The number of calls of admission webhooks.";
    WEBHOOK_REJECTIONS = "apiserver_admission_webhook_rejection_count", Kind::Counter,
        ["error_type", "name", "operation", "rejection_code", "type"], "The number of writes that webhooks rejected.";
    WEBHOOK_FAIL_OPEN = "apiserver_admission_webhook_fail_open_count", Kind::Counter,
        ["name", "type"], "The number of writes that were admitted although a webhook failed.";
    CONDITION_SECONDS = "apiserver_admission_match_condition_evaluation_seconds", Kind::Histogram(CONDITIONS),
        ["kind", "name", "operation", "type"], "The duration of evaluating match conditions.";
    CONDITION_ERRORS = "apiserver_admission_match_condition_evaluation_errors_total", Kind::Counter,
        ["kind", "name", "operation", "type"], "The number of match conditions that failed to evaluate.";
    CONDITION_EXCLUSIONS = "apiserver_admission_match_condition_exclusions_total", Kind::Counter,
        ["kind", "name", "operation", "type"],
        "The number of writes that match conditions excluded from a webhook or policy.";
    VALIDATING_POLICY_CHECKS = "apiserver_validating_admission_policy_check_total", Kind::Counter,
        ["enforcement_action", "error_type", "policy", "policy_binding"],
        "The number of checks of validating policies.";
    VALIDATING_POLICY_SECONDS = "apiserver_validating_admission_policy_check_duration_seconds", Kind::Histogram(POLICY),
        ["enforcement_action", "error_type", "policy", "policy_binding"],
        "The duration of checks of validating policies.";
    MUTATING_POLICY_CHECKS = "apiserver_mutating_admission_policy_check_total", Kind::Counter,
        ["error_type", "policy", "policy_binding"], "The number of mutations by mutating policies.";
    MUTATING_POLICY_SECONDS = "apiserver_mutating_admission_policy_check_duration_seconds", Kind::Histogram(POLICY),
        ["error_type", "policy", "policy_binding"], "The duration of mutations by mutating policies.";
    AUTHORIZATION_DECISIONS = "apiserver_authorization_decisions_total", Kind::Counter,
        ["decision", "name", "type"], "The number of decisions of authorizers.";
    AUTHORIZATION_WEBHOOK = "apiserver_authorization_webhook_evaluations_total", Kind::Counter,
        ["name", "result"], "The number of calls of authorization webhooks.";
    AUTHORIZATION_WEBHOOK_SECONDS = "apiserver_authorization_webhook_duration_seconds",
        Kind::Histogram(AUTHORIZATION_WEBHOOK_BOUNDS), ["name", "result"],
        "The duration of calls of authorization webhooks.";
    AUTHORIZATION_WEBHOOK_FAIL_OPEN = "apiserver_authorization_webhook_evaluations_fail_open_total", Kind::Counter,
        ["name", "result"], "The number of failed calls that count as no opinion.";
    AUTHORIZATION_CONDITION_SECONDS = "apiserver_authorization_match_condition_evaluation_seconds",
        Kind::Histogram(CONDITIONS), ["name", "type"], "The duration of evaluating match conditions of authorizers.";
    AUTHORIZATION_CONDITION_ERRORS = "apiserver_authorization_match_condition_evaluation_errors_total", Kind::Counter,
        ["name", "type"], "The number of match conditions of authorizers that failed to evaluate.";
    AUTHORIZATION_CONDITION_EXCLUSIONS = "apiserver_authorization_match_condition_exclusions_total", Kind::Counter,
        ["name", "type"], "The number of requests that match conditions excluded from an authorizer.";
    POD_SECURITY_EVALUATIONS = "pod_security_evaluations_total", Kind::Counter,
        ["decision", "mode", "policy_level", "policy_version", "request_operation", "resource", "subresource"],
        "The number of Pod Security evaluations of pods and pod templates.";
    DEPRECATED_APIS = "apiserver_requested_deprecated_apis", Kind::Gauge,
        ["group", "removed_release", "resource", "subresource", "version"],
        "The deprecated APIs that clients requested.";
    WATCH_LIST_SECONDS = "apiserver_watch_list_duration_seconds", Kind::Histogram(WATCH_LIST),
        ["group", "resource", "scope", "version"], "The time until a watch has sent the initial objects.";
    TERMINATIONS = "apiserver_request_terminations_total", Kind::Counter,
        ["code", "component", "group", "resource", "scope", "subresource", "verb", "version"],
        "The number of requests that the server terminated to protect itself.";
    NODE_PORT_ERRORS = "apiserver_nodeport_repair_port_errors_total", Kind::Counter, ["type"],
        "The number of errors of node ports that the repair found: leak, repair, outOfRange, duplicate.";
    NODE_PORT_REPAIR_ERRORS = "apiserver_nodeport_repair_reconcile_errors_total", Kind::Counter, [],
        "The number of repairs of node ports that failed.";
    VALID_TOKENS = "serviceaccount_valid_tokens_total", Kind::Counter, [], "The number of uses of bound tokens.";
    LEGACY_TOKENS = "serviceaccount_legacy_tokens_total", Kind::Counter, [], "The number of uses of tokens of Secrets.";
    JWT_SECONDS = "apiserver_authentication_jwt_authenticator_latency_seconds", Kind::Histogram(JWT),
        ["jwt_issuer_hash", "result"], "The duration of verifying the tokens of an issuer.";
    JWKS_FETCHED_AT = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds", Kind::Gauge,
        ["apiserver_id_hash", "jwt_issuer_hash", "result"], "The time of the last fetch of an issuer's keys.";
    JWKS_INFO = "apiserver_authentication_jwt_authenticator_jwks_fetch_last_key_set_info", Kind::Gauge,
        ["apiserver_id_hash", "hash", "jwt_issuer_hash"], "The hash of an issuer's last fetched keys.";
}

/// The metrics of a configuration that may change while the server runs.
pub struct Configuration {
    reloads: Family,
    reloaded_at: Family,
    info: Family,
}

macro_rules! configurations {
    ($($name:ident = $what:literal;)*) => {
        $(pub static $name: Configuration = Configuration {
            reloads: Family {
                name: concat!("apiserver_", $what, "_config_controller_automatic_reloads_total"),
                kind: Kind::Counter,
                labels: &["apiserver_id_hash", "status"],
                help: concat!("Reloads of the ", $what, " configuration."),
            },
            reloaded_at: Family {
                name: concat!("apiserver_", $what, "_config_controller_automatic_reload_last_timestamp_seconds"),
                kind: Kind::Gauge,
                labels: &["apiserver_id_hash", "status"],
                help: concat!("The time of the last reload of the ", $what, " configuration."),
            },
            info: Family {
                name: concat!("apiserver_", $what, "_config_controller_last_config_info"),
                kind: Kind::Gauge,
                labels: &["apiserver_id_hash", "hash"],
                help: concat!("The hash of the ", $what, " configuration in use."),
            },
        };)*
    };
}

configurations! {
    AUTHENTICATION_CONFIGURATION = "authentication";
    AUTHORIZATION_CONFIGURATION = "authorization";
    ENCRYPTION_CONFIGURATION = "encryption";
}

/// Returns the hash of a string, for a label; an empty string stays empty.
pub fn hash(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// The number and durations of authentications or authorizations, by result.
#[derive(Default)]
pub struct Attempts {
    results: [Histogram<{ ACCESS_SECONDS.len() }>; 3],
}

impl Attempts {
    /// Counts one; `result` is an index of the results that it is rendered with.
    pub fn count(&self, result: usize, took: Duration) {
        if let Some(histogram) = self.results.get(result) {
            histogram.observe(took.as_secs_f64(), ACCESS_SECONDS);
        }
    }

    pub fn render(&self, out: &mut Exposition, [attempts, seconds]: [&str; 2], help: &str, results: &[&str]) {
        out.family(attempts, "counter", help);
        for (result, histogram) in results.iter().zip(&self.results) {
            out.sample(attempts, &[("result", result)], histogram.count() as f64);
        }
        out.family(seconds, "histogram", "The duration of these attempts.");
        for (result, histogram) in results.iter().zip(&self.results).filter(|(_, h)| h.count() > 0) {
            histogram.render(out, seconds, &[("result", result)], ACCESS_SECONDS);
        }
    }
}

/// The decisions of the built-in authorizers: by authorizer, allowed and denied.
#[derive(Default)]
pub struct Decisions([[AtomicU64; 2]; AUTHORIZERS.len()]);

/// The types of the authorizers that call no webhook.
pub const AUTHORIZERS: [&str; 4] = ["AlwaysAllow", "AlwaysDeny", "Node", "RBAC"];

impl Decisions {
    /// Counts a decision; its index is that of `allowed` or `denied`.
    pub fn count(&self, authorizer: usize, decision: usize) {
        if let Some(counter) = self.0.get(authorizer).and_then(|counters| counters.get(decision)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Metrics {
    /// Adds one to a rare series.
    pub fn add(&self, family: &'static Family, labels: &[&str]) {
        self.rare.series(family, labels).add(1.0);
    }

    /// Sets a gauge to one.
    pub fn note(&self, family: &'static Family, labels: &[&str]) {
        self.rare.series(family, labels).set(1.0);
    }

    pub fn took(&self, family: &'static Family, labels: &[&str], took: Duration) {
        self.rare.series(family, labels).observe(took.as_secs_f64());
    }

    /// Records the configuration in use.
    pub fn configured(&self, of: &'static Configuration, text: &str) {
        self.rare.only(&of.info, 1, &[&self.id_hash, &hash(text)]);
    }

    /// Counts the reload of a configuration; a successful one is in use then.
    pub fn reloaded(&self, of: &'static Configuration, text: &str, success: bool) {
        let labels = [self.id_hash.as_str(), if success { "success" } else { "failure" }];
        self.add(&of.reloads, &labels);
        self.rare.series(&of.reloaded_at, &labels).set(jiff::Timestamp::now().as_second() as f64);
        if success {
            self.configured(of, text);
        }
    }

    /// Counts a fetch of an issuer's keys; `None` is a failed one.
    pub fn fetched_keys(&self, issuer: &str, keys: Option<&str>) {
        let issuer = hash(issuer);
        let result = if keys.is_some() { "success" } else { "failure" };
        let at = self.rare.series(&JWKS_FETCHED_AT, &[&self.id_hash, &issuer, result]);
        at.set(jiff::Timestamp::now().as_second() as f64);
        if let Some(keys) = keys {
            // Each issuer has one set of keys.
            self.rare.only(&JWKS_INFO, 1, &[&self.id_hash, &hash(keys), &issuer]);
        }
    }

    /// Counts the verification of an issuer's token, and its duration.
    pub fn verified_token(&self, issuer: &str, success: bool, took: Duration) {
        let result = if success { "success" } else { "failure" };
        self.took(&JWT_SECONDS, &[&hash(issuer), result], took);
    }

    /// Renders the rare series, and the frequent ones that share a family with them.
    pub fn render_rare(&self) -> String {
        for (authorizer, counters) in AUTHORIZERS.iter().zip(&self.decisions.0) {
            for (word, counter) in ["allowed", "denied"].iter().zip(counters) {
                let count = counter.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = [*word, &authorizer.to_lowercase(), *authorizer];
                    self.rare.series(&AUTHORIZATION_DECISIONS, &labels).set(count as f64);
                }
            }
        }
        self.rare.render()
    }
}
