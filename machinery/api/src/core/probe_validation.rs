//! The rules of probes and lifecycle hooks: exactly one action, and valid times.

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::validation::port_number_or_name;

/// Validates the lifecycle and the three probes of a container; `grace` is `spec.terminationGracePeriodSeconds`.
pub(super) fn validate_hooks(container: &At<'_>, grace: Option<i64>, errors: &mut Errors) {
    container.get("lifecycle").when_object(errors, |at, e| validate_lifecycle(at, grace, e));
    for (field, readiness) in [("livenessProbe", false), ("readinessProbe", true), ("startupProbe", false)] {
        container.get(field).when_object(errors, |at, e| validate_probe(at, readiness, e));
    }
}

fn validate_lifecycle(at: &At<'_>, grace: Option<i64>, errors: &mut Errors) {
    for hook in ["postStart", "preStop"] {
        let actions = ["exec", "httpGet", "tcpSocket", "sleep"];
        at.get(hook).when_object(errors, |at, e| validate_handler(at, &actions, grace, e));
    }
}

fn validate_probe(at: &At<'_>, readiness: bool, errors: &mut Errors) {
    validate_handler(at, &["exec", "httpGet", "tcpSocket", "grpc"], None, errors);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        at.get(field).nonnegative(errors);
    }
    let grace = at.get("terminationGracePeriodSeconds");
    if grace.number().is_some_and(|seconds| seconds <= 0) {
        errors.push(grace.invalid("must be greater than 0"));
    }
    if readiness {
        if grace.is_set() {
            errors.push(grace.invalid("must not be set for readinessProbes"));
        }
    } else if at.get("successThreshold").number() != Some(1) {
        let successes = at.get("successThreshold");
        errors.push(FieldError::invalid(&successes.path, successes.number().unwrap_or_default(), "must be 1"));
    }
}

/// Validates that there is exactly one action of those that are possible here.
fn validate_handler(at: &At<'_>, actions: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut set = actions.iter().map(|action| (*action, at.get(action))).filter(|(_, action)| action.is_object());
    let Some((kind, action)) = set.next() else {
        errors.push(at.required("must specify a handler type"));
        return;
    };
    match kind {
        "exec" => {
            action.get("command").must(errors);
        }
        "httpGet" => validate_http_get(&action, errors),
        "sleep" => {
            let seconds = action.get("seconds").number().unwrap_or_default();
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
                let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.push(FieldError::invalid(&action.path, seconds, detail));
            }
        }
        _ => errors.extend(port_number_or_name(action.get("port").value, &action.path.child("port"))),
    }
    for (_, other) in set {
        errors.push(other.forbidden("may not specify more than 1 handler type"));
    }
}

fn validate_http_get(at: &At<'_>, errors: &mut Errors) {
    at.get("path").must(errors);
    errors.extend(port_number_or_name(at.get("port").value, &at.path.child("port")));
    let scheme = at.get("scheme");
    if !["HTTP", "HTTPS"].contains(&scheme.text()) {
        errors.push(scheme.not_supported(&["HTTP", "HTTPS"]));
    }
    for header in at.get("httpHeaders").items() {
        let name = header.get("name").text();
        let messages = names::http_header_name(name).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&at.path.child("httpHeaders"), name, m)));
    }
}
