//! The rules of HorizontalPodAutoscaler beyond its fields: bounds, the version of the target, and one source a metric.

use corten_meta::field::FieldError;
use corten_meta::names::GroupVersion;

use crate::check::{At, Errors};
use crate::rules::{self, Site};

/// Validates the least number of replicas. An object that has none already may keep it so.
pub(crate) fn least_replicas(site: &Site<'_, '_>, errors: &mut Errors) {
    let had_none = site.old.is_some_and(|old| old.as_i64() == Some(0));
    let least = if had_none { 0 } else { 1 };
    if site.at.number().is_some_and(|n| n < least) {
        errors.push(site.at.invalid(format!("must be greater than or equal to {least}")));
    }
}

pub(crate) fn most_replicas(site: &Site<'_, '_>, errors: &mut Errors) {
    let max = site.at;
    let number = max.number().unwrap_or_default();
    match number {
        0 => errors.push(max.required("must be set and greater than 0")),
        ..0 => errors.push(max.invalid("must be greater than or equal to 1")),
        _ => {}
    }
    if site.of.get("minReplicas").number().is_some_and(|least| number < least) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&max.path, number, detail));
    }
}

/// Validates that the apiVersion of a new target has a group, except for the one scalable kind of the core group.
pub(crate) fn scale_target_version(site: &Site<'_, '_>, errors: &mut Errors) {
    let version = site.at.get("apiVersion");
    let kind = site.at.get("kind");
    let same = site
        .old
        .map(At::object)
        .is_some_and(|old| old.get("apiVersion").value == version.value && old.get("kind").value == kind.value);
    let is_core = |parsed: &GroupVersion| parsed.group.is_empty() && kind.text() != "ReplicationController";
    let detail = match GroupVersion::parse(version.text()) {
        _ if same => return,
        Err(error) => error.to_string(),
        Ok(parsed) if is_core(&parsed) => "apiVersion must specify API group".to_string(),
        Ok(_) => return,
    };
    errors.push(FieldError::invalid(&version.path, version.text(), detail));
}

pub(crate) fn group_version(at: &At<'_>, errors: &mut Errors) {
    if let Err(error) = GroupVersion::parse(at.text()) {
        errors.push(FieldError::invalid(&at.path, at.text(), error.to_string()));
    }
}

/// Validates that an autoscaler without replicas has a metric that exists without them.
pub(crate) fn metrics_of_no_replicas(site: &Site<'_, '_>, errors: &mut Errors) {
    let is_from_outside = |metric: At<'_>| ["Object", "External"].contains(&metric.get("type").text());
    if site.of.get("minReplicas").number() == Some(0) && !site.at.items().any(is_from_outside) {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(site.at.forbidden(detail));
    }
}

/// A type of metric, its field and the rules of its source, in upstream's order.
struct Source {
    kind: &'static str,
    field: &'static str,
    rules: &'static str,
}

const SOURCES: [Source; 5] = [
    Source { kind: "Object", field: "object", rules: ".autoscaling.v2.ObjectMetricSource" },
    Source { kind: "External", field: "external", rules: ".autoscaling.v2.ExternalMetricSource" },
    Source { kind: "Pods", field: "pods", rules: ".autoscaling.v2.PodsMetricSource" },
    Source { kind: "Resource", field: "resource", rules: ".autoscaling.v2.ResourceMetricSource" },
    Source {
        kind: "ContainerResource",
        field: "containerResource",
        rules: ".autoscaling.v2.ContainerResourceMetricSource",
    },
];

pub(crate) fn metric(metric: &At<'_>, errors: &mut Errors) {
    const TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];
    let kind = metric.get("type");
    kind.must_say(errors, "must specify a metric source type");
    let own = SOURCES.iter().find(|source| source.kind == kind.text()).map(|source| source.field);
    if own.is_none() {
        errors.push(kind.not_supported(TYPES));
    }
    let sources: Vec<&Source> = SOURCES.iter().filter(|source| metric.get(source.field).is_object()).collect();
    if let Some(first) = sources.first() {
        rules::check(first.rules, &metric.get(first.field), errors);
    }
    match own {
        Some(own) if !metric.get(own).is_object() => {
            errors.push(metric.get(own).required("must populate information for the given metric source"));
        }
        Some(_) => {}
        None => errors.push(kind.not_supported(TYPES)),
    }
    if sources.len() != 1 {
        for source in sources.iter().filter(|source| Some(source.field) != own) {
            errors.push(metric.get(source.field).forbidden("must populate the given metric source only"));
        }
    }
}
