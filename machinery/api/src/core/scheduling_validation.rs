//! The rules of scheduling: tolerations, affinities, topology spread, gates, and node selectors, which volumes and
//! devices also have.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::validation::label_selector;

const NOT_AN_OPERATOR: &str = "not a valid selector operator";

pub(crate) fn validate_tolerations(tolerations: &At<'_>, errors: &mut Errors) {
    for toleration in tolerations.items() {
        let key = toleration.get("key");
        let operator = toleration.get("operator");
        let effect = toleration.get("effect");
        let value = toleration.get("value").text();
        key.follows(errors, names::qualified_name);
        if key.is_empty() && operator.text() != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(&operator.path, operator.text(), detail).as_json());
        }
        if toleration.get("tolerationSeconds").is_set() && effect.text() != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&effect.path, effect.text(), detail).as_json());
        }
        match operator.text() {
            "" | "Equal" => {
                let messages = names::label_value(value);
                if !messages.is_empty() {
                    errors.push(FieldError::invalid(&operator.path, value, messages.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&operator.path, value, detail));
            }
            "Exists" => {}
            "Lt" | "Gt" => errors.push(operator.not_supported(&["Equal", "Exists", "Lt", "Gt"])),
            _ => errors.push(operator.not_supported(&["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            effect.one_of(errors, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

pub(super) fn validate_affinity(affinity: &At<'_>, errors: &mut Errors) {
    let node = affinity.get("nodeAffinity");
    node.get("requiredDuringSchedulingIgnoredDuringExecution")
        .when_object(errors, |at, e| validate_node_selector(at, true, e));
    node.get("preferredDuringSchedulingIgnoredDuringExecution").each(errors, |term, e| {
        validate_weight(term, e);
        validate_node_selector_term(&term.get("preference"), false, e);
    });
    for field in ["podAffinity", "podAntiAffinity"] {
        let pod = affinity.get(field);
        pod.get("requiredDuringSchedulingIgnoredDuringExecution").each(errors, validate_pod_affinity_term);
        pod.get("preferredDuringSchedulingIgnoredDuringExecution").each(errors, |term, e| {
            validate_weight(term, e);
            validate_pod_affinity_term(&term.get("podAffinityTerm"), e);
        });
    }
}

fn validate_weight(term: &At<'_>, errors: &mut Errors) {
    let weight = term.get("weight").number().unwrap_or_default();
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(&term.path.child("weight"), weight, "must be in the range 1-100"));
    }
}

/// Validates the terms of a node selector. `check_values` is whether values must be valid label values.
pub(crate) fn validate_node_selector(at: &At<'_>, check_values: bool, errors: &mut Errors) {
    let terms = at.get("nodeSelectorTerms");
    if terms.must_say(errors, "must have at least one node selector term") {
        terms.each(errors, |term, e| validate_node_selector_term(term, check_values, e));
    }
}

fn validate_node_selector_term(term: &At<'_>, check_values: bool, errors: &mut Errors) {
    term.get("matchExpressions").each(errors, |at, e| validate_node_requirement(at, check_values, e));
    term.get("matchFields").each(errors, validate_node_field_requirement);
}

fn validate_node_requirement(at: &At<'_>, check_values: bool, errors: &mut Errors) {
    let operator = at.get("operator");
    let values = at.get("values");
    match operator.text() {
        "In" | "NotIn" => {
            values.must_say(errors, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'"));
        }
        "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if values.len() != 1 => {
            errors.push(values.required("must be specified single value when `operator` is 'Lt' or 'Gt'"));
        }
        "Gt" | "Lt" => {}
        other => errors.push(FieldError::invalid(&operator.path, other, NOT_AN_OPERATOR).as_json()),
    }
    at.get("key").follows_also_empty(errors, names::qualified_name);
    if check_values {
        values.each(errors, |value, e| value.follows_also_empty(e, names::label_value));
    }
}

fn validate_node_field_requirement(at: &At<'_>, errors: &mut Errors) {
    let operator = at.get("operator");
    let values = at.get("values");
    match operator.text() {
        "In" | "NotIn" if values.len() != 1 => {
            let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(values.required(detail));
        }
        "In" | "NotIn" => {}
        other => errors.push(FieldError::invalid(&operator.path, other, NOT_AN_OPERATOR).as_json()),
    }
    let key = at.get("key");
    if key.text() == "metadata.name" {
        values.each(errors, |value, e| value.follows_also_empty(e, names::dns1123_subdomain));
    } else {
        errors.push(FieldError::invalid(&key.path, key.text(), "not a valid field selector key"));
    }
}

fn validate_pod_affinity_term(term: &At<'_>, errors: &mut Errors) {
    for selector in ["labelSelector", "namespaceSelector"] {
        errors.extend(label_selector(term.get(selector).value, &term.path.child(selector)));
    }
    for namespace in term.get("namespaces").items() {
        namespace.with(term.path.child("namespace")).follows_also_empty(errors, names::dns1123_label);
    }
    validate_label_keys(term, errors);
    let key = term.get("topologyKey");
    key.must_say(errors, "can not be empty");
    key.follows_also_empty(errors, names::qualified_name);
}

/// Validates keys whose values come from the pod's own labels: they need a selector, and must not be in it already.
fn validate_label_keys(at: &At<'_>, errors: &mut Errors) {
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
        validate_label_keys(constraint, errors);
        errors.extend(label_selector(constraint.get("labelSelector").value, &constraint.path.child("labelSelector")));
    }
}

pub(super) fn validate_gates(spec: &At<'_>, errors: &mut Errors) {
    spec.get("readinessGates").each(errors, |gate, e| {
        gate.get("conditionType").follows_also_empty(e, names::qualified_name);
    });
    let mut seen = BTreeSet::new();
    for gate in spec.get("schedulingGates").items() {
        let name = gate.get("name").with(gate.path.clone());
        name.follows_also_empty(errors, names::qualified_name);
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
    }
}
