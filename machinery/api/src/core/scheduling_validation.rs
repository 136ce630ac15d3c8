//! The rules of scheduling: tolerations, affinities, topology spread, gates, and node selectors, which volumes and
//! devices also have.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::validation::label_selector;

/// Validates the value of a toleration; errors name the operator.
pub(crate) fn tolerated_value(value: &At<'_>, errors: &mut Errors) {
    let messages = names::label_value(value.text());
    if !messages.is_empty() {
        errors.push(value.invalid(messages.join(";")));
    }
}

pub(crate) fn one_compared_value(values: &At<'_>, errors: &mut Errors) {
    if values.len() != 1 {
        errors.push(values.required("must be specified single value when `operator` is 'Lt' or 'Gt'"));
    }
}

pub(crate) fn one_field_value(values: &At<'_>, errors: &mut Errors) {
    if values.len() != 1 {
        let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
        errors.push(values.required(detail));
    }
}

/// Validates keys whose values come from the pod's own labels: they need a selector, and must not be in it already.
pub(crate) fn label_keys(at: &At<'_>, errors: &mut Errors) {
    let selector = at.get("labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = at.get(field);
        if !keys.is_empty() && !selector.is_object() {
            errors.push(keys.forbidden("must not be specified when labelSelector is not set"));
        } else {
            keys.each(errors, |key, e| key.follows_also_empty(e, names::qualified_name));
        }
    }
    let keys: Vec<&str> = at.get("matchLabelKeys").texts().collect();
    let mut selected: BTreeSet<&str> = selector.get("matchLabels").entries().map(|(key, _)| key).collect();
    for expression in selector.get("matchExpressions").items() {
        let key = expression.get("key").text();
        if let Some(index) = keys.iter().position(|k| *k == key).filter(|_| selected.contains(key)) {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&at.path.index(index), key, detail));
        }
        selected.insert(key);
    }
    let mismatched: Vec<&str> = at.get("mismatchLabelKeys").texts().collect();
    for key in at.get("matchLabelKeys").items().filter(|key| mismatched.contains(&key.text())) {
        errors.push(key.invalid("exists in both matchLabelKeys and mismatchLabelKeys"));
    }
}

/// Validates a number above zero, in this field's own words.
fn above_zero(at: &At<'_>, errors: &mut Errors) {
    let number = at.number().unwrap_or_default();
    if number <= 0 {
        errors.push(FieldError::invalid(&at.path, number, "must be greater than zero"));
    }
}

pub(super) fn validate_topology_spread(constraints: &At<'_>, errors: &mut Errors) {
    let all: Vec<At<'_>> = constraints.items().collect();
    for (at, constraint) in all.iter().enumerate() {
        above_zero(&constraint.get("maxSkew"), errors);
        let key = constraint.get("topologyKey");
        let action = constraint.get("whenUnsatisfiable");
        key.must_say(errors, "can not be empty");
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&action.text()) {
            errors.push(action.not_supported(&["DoNotSchedule", "ScheduleAnyway"]));
        }
        let same = |other: &At<'_>| {
            other.get("topologyKey").value == key.value && other.get("whenUnsatisfiable").value == action.value
        };
        if all[at + 1..].iter().any(same) {
            let path = constraint.path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(&path, format!("{{{}, {}}}", key.text(), action.text())));
        }
        let domains = constraint.get("minDomains");
        if domains.is_set() {
            above_zero(&domains, errors);
            if action.text() != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}", action.text());
                errors.push(domains.invalid(detail));
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.get(policy).one_of(errors, &["Honor", "Ignore"]);
        }
        label_keys(constraint, errors);
        errors.extend(label_selector(constraint.get("labelSelector").value, &constraint.path.child("labelSelector")));
    }
}
