//! The rules of Event. The newer form of the API requires more; both store the same object.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::rules;

/// The form of the API that the event came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The form of `v1`.
    Core,
    /// The form of `events.k8s.io/v1`.
    Events,
}

/// Validates the rules of both forms, on the stored one.
pub(crate) fn validate_event(event: &Value, form: Form) -> Errors {
    let event = At::object(event);
    let namespace = event.get("metadata").get("namespace");
    let involved = event.get("involvedObject").get("namespace");
    let mut errors = Errors::new();
    let timed = event.get("eventTime").is_set();
    let matches = match (involved.text(), timed) {
        ("", false) => ["", "default"].contains(&namespace.text()),
        (own, false) => own == namespace.text(),
        ("", true) => ["default", "kube-system"].contains(&namespace.text()),
        (_, true) => true,
    };
    if !matches {
        errors.push(FieldError::invalid(&involved.path, involved.text(), "does not match event.namespace"));
    }
    if timed {
        validate_reporter(&event, form, &mut errors);
    }
    errors
}

fn validate_reporter(event: &At<'_>, form: Form, errors: &mut Errors) {
    let field = if form == Form::Core { "reportingComponent" } else { "reportingController" };
    let controller = event.get("reportingComponent").with(Path::root(field));
    controller.must(errors);
    controller.follows_also_empty(errors, names::qualified_name);
    for (field, longest, needed) in
        [("reportingInstance", 128, true), ("action", 128, true), ("reason", 128, true), ("message", 1024, false)]
    {
        let at = event.get(field);
        if needed {
            at.must(errors);
        }
        if at.text().len() > longest {
            errors.push(FieldError::invalid(&at.path, "", format!("can have at most {longest} characters")));
        }
    }
}

/// Validates the required and forbidden fields of a new event of the newer form.
pub(crate) fn validate_new_form(event: &Value) -> Errors {
    let event = At::object(event);
    let mut errors = Errors::new();
    validate_series(&event.get("series"), &mut errors);
    event.get("eventTime").must(&mut errors);
    let kind = event.get("type").text();
    if !["Normal", "Warning"].contains(&kind) {
        errors.push(FieldError::invalid(&Path::root("type"), "", format!("has invalid value: {kind}")));
    }
    let unset = |at: &At<'_>| at.is_empty() || at.number() == Some(0);
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !unset(&event.get(field)) {
            errors.push(FieldError::invalid(&Path::root(field), "", "needs to be unset"));
        }
    }
    errors
}

fn validate_series(series: &At<'_>, errors: &mut Errors) {
    if !series.is_object() {
        return;
    }
    if series.get("count").number().unwrap_or_default() < 2 {
        errors.push(FieldError::invalid(&Path::root("series.count"), "", "should be at least 2"));
    }
    series.get("lastObservedTime").must(errors);
}

/// Validates that only the series of an event changes in the newer form.
pub(crate) fn validate_new_form_update(new: &Value, old: &Value) -> Errors {
    let mut errors = Errors::new();
    if new["series"] != old["series"] {
        validate_series(&At::object(new).get("series"), &mut errors);
    }
    errors.extend(rules::validate_change(".core.v1.Event", "update", new, old));
    errors
}
