//! The rules of probes and lifecycle hooks: exactly one action, and valid times.

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::rules;
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
    rules::check(if readiness { ".core.v1.Probe/readiness" } else { ".core.v1.Probe" }, at, errors);
}

/// Validates that there is exactly one action of those that are possible here.
fn validate_handler(at: &At<'_>, actions: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut set = actions.iter().map(|action| (*action, at.get(action))).filter(|(_, action)| action.is_object());
    let Some((kind, action)) = set.next() else {
        errors.push(at.required("must specify a handler type"));
        return;
    };
    match kind {
        "exec" => rules::check(".core.v1.ExecAction", &action, errors),
        "httpGet" => rules::check(".core.v1.HTTPGetAction", &action, errors),
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

/// Validates the names of headers; errors name the list.
pub(crate) fn header_names(headers: &At<'_>, errors: &mut Errors) {
    for header in headers.items() {
        let name = header.get("name").text();
        let messages = names::http_header_name(name).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&headers.path, name, m)));
    }
}
