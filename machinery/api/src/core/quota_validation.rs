//! The rules of ResourceQuota: countable resources, and scopes that fit them.

use std::collections::BTreeSet;

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::resource_validation::{validate_quantity, validate_resource_name};
use crate::check::{At, Errors};

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
const COMPUTE: [&str; 7] = ["pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const COUNTED: [&str; 12] = [
    "ephemeral-storage",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.ephemeral-storage",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_quota_resource(resource: &str) -> bool {
    let huge = resource.starts_with("hugepages-") || resource.starts_with("requests.hugepages-");
    COMPUTE.contains(&resource) || COUNTED.contains(&resource) || huge
}

/// Reports whether a scope applies to a resource that the server knows.
fn fits(scope: &str, resource: &str) -> bool {
    match scope {
        _ if !is_quota_resource(resource) => true,
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => ["persistentvolumeclaims", "requests.storage"].contains(&resource),
        _ if SCOPES.contains(&scope) => COMPUTE.contains(&resource),
        _ => true,
    }
}

pub(super) fn validate_quota(object: &Value) -> Errors {
    let object = At::object(object);
    let spec = object.get("spec");
    let mut errors = Errors::new();
    validate_hard(&spec.get("hard"), &mut errors);
    validate_scopes(&spec, &mut errors);
    validate_scope_selector(&spec, &mut errors);
    errors.extend(validate_quota_status(object.value));
    errors
}

/// Validates the quantities of a status.
pub(super) fn validate_quota_status(object: &Value) -> Errors {
    let status = At::object(object).get("status");
    let mut errors = Errors::new();
    validate_hard(&status.get("hard"), &mut errors);
    validate_hard(&status.get("used"), &mut errors);
    errors
}

fn validate_hard(hard: &At<'_>, errors: &mut Errors) {
    for (resource, quantity) in hard.entries() {
        validate_resource_name(resource, &quantity, errors);
        if !resource.contains('/') && !is_quota_resource(resource) {
            errors.push(FieldError::invalid(&quantity.path, resource, "must be a standard resource for quota"));
        }
        validate_quantity(resource, &quantity, errors);
    }
}

fn resources<'a>(spec: &At<'a>) -> BTreeSet<&'a str> {
    spec.get("hard").entries().map(|(resource, _)| resource).collect()
}

fn validate_scopes(spec: &At<'_>, errors: &mut Errors) {
    let scopes = spec.get("scopes");
    for scope in scopes.texts() {
        if !SCOPES.contains(&scope) {
            errors.push(scopes.invalid("unsupported scope"));
        }
        for _ in resources(spec).into_iter().filter(|resource| !fits(scope, resource)) {
            errors.push(scopes.invalid("unsupported scope applied to resource"));
        }
    }
    validate_no_conflict(&scopes.texts().collect(), &scopes, errors);
}

fn validate_no_conflict(scopes: &BTreeSet<&str>, at: &At<'_>, errors: &mut Errors) {
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(one) && scopes.contains(other) {
            errors.push(at.invalid("conflicting scopes"));
        }
    }
}

/// Validates the scope selector. The errors name the list of expressions: upstream leaves the index out.
fn validate_scope_selector(spec: &At<'_>, errors: &mut Errors) {
    let selector = spec.get("scopeSelector");
    let expressions = selector.get("matchExpressions");
    let mut seen = BTreeSet::new();
    for expression in expressions.items().map(|e| e.with(expressions.path.clone())) {
        let (scope, operator, values) =
            (expression.get("scopeName"), expression.get("operator"), expression.get("values"));
        if !SCOPES.contains(&scope.text()) {
            errors.push(scope.invalid("unsupported scope").as_json());
        }
        for _ in resources(spec).into_iter().filter(|resource| !fits(scope.text(), resource)) {
            errors.push(selector.with(expressions.path.clone()).invalid("unsupported scope applied to resource"));
        }
        let valued = ["PriorityClass", "VolumeAttributesClass"].contains(&scope.text());
        if SCOPES.contains(&scope.text()) && !valued && operator.text() != "Exists" {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(operator.invalid(detail).as_json());
        }
        match operator.text() {
            "In" | "NotIn" => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                values.must_say(errors, detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(values.invalid(detail));
            }
            "Exists" | "DoesNotExist" => {}
            _ => errors.push(operator.invalid("not a valid selector operator").as_json()),
        }
        seen.insert(scope.text());
    }
    validate_no_conflict(&seen, &spec.get("scopes").with(expressions.path.clone()), errors);
}

pub(super) fn validate_quota_update(new: &Value, old: &Value) -> Errors {
    let scopes = |object| At::object(object).get("spec").get("scopes");
    let set = |at: &At<'_>| at.texts().map(str::to_string).collect::<BTreeSet<_>>();
    let now = scopes(new);
    let then = scopes(old);
    if set(&now) == set(&then) { Errors::new() } else { vec![now.invalid("field is immutable")] }
}
