//! The rules of HorizontalPodAutoscaler: bounds, a target, metrics, and scaling behavior.

use corten_meta::Value;
use corten_meta::field::FieldError;
use corten_meta::names::{self, GroupVersion};

use crate::check::{At, Errors};
use crate::core::resource_validation::validate_container_resource_name;

/// Validates an autoscaler; the version of the target only if it changed.
pub(super) fn validate_autoscaler(object: &Value, old: Option<&Value>) -> Errors {
    let spec = At::object(object).get("spec");
    let mut errors = Errors::new();
    let min = spec.get("minReplicas");
    let max = spec.get("maxReplicas");
    // An object that has none already may keep it so.
    let had_none = old.is_some_and(|old| At::object(old).get("spec").get("minReplicas").number() == Some(0));
    let least = if had_none { 0 } else { 1 };
    if min.number().is_some_and(|n| n < least) {
        errors.push(min.invalid(format!("must be greater than or equal to {least}")));
    }
    match max.number().unwrap_or_default() {
        0 => errors.push(max.required("must be set and greater than 0")),
        ..0 => errors.push(max.invalid("must be greater than or equal to 1")),
        _ => {}
    }
    if min.number().is_some_and(|least| max.number().unwrap_or_default() < least) {
        let number = max.number().unwrap_or_default();
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&max.path, number, detail));
    }
    validate_reference(&spec.get("scaleTargetRef"), &mut errors);
    errors.extend(validate_target(object, old));
    let metrics = spec.get("metrics");
    metrics.each(&mut errors, validate_metric);
    let is_from_outside = |metric: At<'_>| ["Object", "External"].contains(&metric.get("type").text());
    if min.number() == Some(0) && !metrics.items().any(is_from_outside) {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(metrics.forbidden(detail));
    }
    for direction in ["scaleUp", "scaleDown"] {
        spec.get("behavior").get(direction).when_object(&mut errors, validate_rules);
    }
    errors
}

/// Validates that the apiVersion of a new target has a group, except for the one scalable kind of the core group.
fn validate_target(object: &Value, old: Option<&Value>) -> Errors {
    let target = |object| At::object(object).get("spec").get("scaleTargetRef");
    let reference = target(object);
    let version = reference.get("apiVersion");
    let kind = reference.get("kind");
    let same = old.is_some_and(|old| {
        target(old).get("apiVersion").value == version.value && target(old).get("kind").value == kind.value
    });
    if same {
        return Errors::new();
    }
    let detail = match GroupVersion::parse(version.text()) {
        Err(error) => error.to_string(),
        Ok(parsed) if parsed.group.is_empty() && kind.text() != "ReplicationController" => {
            "apiVersion must specify API group".to_string()
        }
        Ok(_) => return Errors::new(),
    };
    vec![FieldError::invalid(&version.path, version.text(), detail)]
}

fn validate_reference(reference: &At<'_>, errors: &mut Errors) {
    reference.get("kind").must_follow(errors, names::path_segment_name);
    reference.get("name").must_follow(errors, names::path_segment_name);
}

/// Each type of metric and its field, in upstream's order.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

fn validate_metric(metric: &At<'_>, errors: &mut Errors) {
    const TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];
    let kind = metric.get("type");
    kind.must_say(errors, "must specify a metric source type");
    let own = SOURCES.iter().find(|(name, _)| *name == kind.text()).map(|(_, field)| *field);
    if own.is_none() {
        errors.push(kind.not_supported(TYPES));
    }
    let sources: Vec<&str> = SOURCES.iter().map(|(_, f)| *f).filter(|f| metric.get(f).is_object()).collect();
    if let Some(first) = sources.first() {
        validate_source(&metric.get(first), first, errors);
    }
    match own {
        Some(own) if !metric.get(own).is_object() => {
            errors.push(metric.get(own).required("must populate information for the given metric source"));
        }
        Some(_) => {}
        None => errors.push(kind.not_supported(TYPES)),
    }
    if sources.len() != 1 {
        for field in sources.iter().filter(|field| Some(**field) != own) {
            errors.push(metric.get(field).forbidden("must populate the given metric source only"));
        }
    }
}

fn validate_source(source: &At<'_>, field: &str, errors: &mut Errors) {
    match field {
        "object" => {
            let described = source.get("describedObject");
            let version = source.get("describedObject").get("apiVersion");
            validate_reference(&described, errors);
            if let Err(error) = GroupVersion::parse(version.text()) {
                errors.push(FieldError::invalid(&version.path, version.text(), error.to_string()));
            }
        }
        "resource" => {
            source.get("name").must_say(errors, "must specify a resource name");
        }
        "containerResource" => {
            if source.get("name").must_say(errors, "must specify a resource name") {
                validate_container_resource_name(&source.get("name"), errors);
            }
            if source.get("container").must_say(errors, "must specify a container") {
                source.get("container").follows(errors, names::dns1123_label);
            }
        }
        _ => {}
    }
    if ["object", "external", "pods"].contains(&field) {
        let name = source.get("metric").get("name");
        if name.must_say(errors, "must specify a metric name") {
            name.follows(errors, names::path_segment_name);
        }
    }
    let target = source.get("target");
    validate_target_value(&target, errors);
    validate_choice(&target, field, errors);
}

fn validate_target_value(target: &At<'_>, errors: &mut Errors) {
    let kind = target.get("type");
    kind.must_say(errors, "must specify a metric target type");
    if !["Utilization", "Value", "AverageValue"].contains(&kind.text()) {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&kind.path, kind.text(), detail).as_json());
    }
    for value in ["value", "averageValue"].map(|field| target.get(field)) {
        if let Some(quantity) = value.quantity().filter(|quantity| quantity.sign() < 1) {
            errors.push(FieldError::invalid(&value.path, quantity.to_string(), "must be positive"));
        }
    }
    if target.get("averageUtilization").is_set() {
        target.get("averageUtilization").positive(errors);
    }
}

/// Validates which of the three values a source has.
fn validate_choice(target: &At<'_>, field: &str, errors: &mut Errors) {
    let [value, average, utilization] = ["value", "averageValue", "averageUtilization"].map(|field| target.get(field));
    match (field, value.is_set(), average.is_set(), utilization.is_set()) {
        ("object", false, false, _) => {
            errors.push(average.required("must set either a target value or averageValue"));
        }
        ("external", false, false, _) => {
            errors.push(average.required("must set either a target value for metric or a per-pod target"));
        }
        ("external", true, true, _) => {
            errors.push(value.forbidden("may not set both a target value for metric and a per-pod target"));
        }
        ("pods", _, false, _) => errors.push(average.required("must specify a positive target averageValue")),
        ("resource" | "containerResource", _, false, false) => {
            errors.push(utilization.required("must set either a target raw value or a target utilization"));
        }
        ("resource" | "containerResource", _, true, true) => {
            errors.push(average.forbidden("may not set both a target raw value and a target utilization"));
        }
        _ => {}
    }
}

fn validate_rules(rules: &At<'_>, errors: &mut Errors) {
    const MAX_WINDOW: i64 = 3600;
    const MAX_PERIOD: i64 = 1800;
    let window = rules.get("stabilizationWindowSeconds");
    match window.number() {
        Some(..0) => errors.push(window.invalid("must be greater than or equal to zero")),
        Some(seconds) if seconds > MAX_WINDOW => {
            errors.push(window.invalid(format!("must be less than or equal to {MAX_WINDOW}")));
        }
        _ => {}
    }
    rules.get("selectPolicy").one_of(errors, &["Disabled", "Max", "Min"]);
    rules.get("policies").must_say(errors, "must specify at least one Policy");
    for policy in rules.get("policies").items() {
        let kind = policy.get("type");
        let period = policy.get("periodSeconds");
        if !["Pods", "Percent"].contains(&kind.text()) {
            errors.push(kind.not_supported(&["Percent", "Pods"]));
        }
        for at in [&policy.get("value"), &period] {
            let number = at.number().unwrap_or_default();
            if number <= 0 {
                errors.push(FieldError::invalid(&at.path, number, "must be greater than zero"));
            }
        }
        if period.number().is_some_and(|seconds| seconds > MAX_PERIOD) {
            errors.push(period.invalid(format!("must be less than or equal to {MAX_PERIOD}")));
        }
    }
    let tolerance = rules.get("tolerance");
    if let Some(negative) = tolerance.quantity().filter(|q| q.sign() < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&tolerance.path, negative.to_string(), detail));
    }
}

pub(super) fn validate_autoscaler_status(object: &Value) -> Errors {
    let status = At::object(object).get("status");
    let mut errors = Errors::new();
    for field in ["currentReplicas", "desiredReplicas"] {
        status.get(field).nonnegative(&mut errors);
    }
    errors
}
