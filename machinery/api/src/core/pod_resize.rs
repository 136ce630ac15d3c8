//! The rules of resizing a pod: only quantities of CPU and memory may change.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use serde_json::Map;

use super::pod_qos::qos_class;
use super::pod_update::equal;
use super::pod_validation::MIRROR;
use crate::cells::{list, text};
use crate::check::{At, Errors};

const ONLY_CPU_AND_MEMORY: &str = "only cpu and memory resources are mutable";

/// Validates a write to the resize subresource.
pub(super) fn validate_resize(new: &Value, old: &Value) -> Errors {
    let root = Path::default();
    if old.pointer("/metadata/annotations").is_some_and(|a| a.get(MIRROR).is_some()) {
        return vec![FieldError::forbidden(&root, "static pods cannot be resized")];
    }
    if text(old, "/spec/os/name") == "windows" {
        return vec![FieldError::forbidden(&root, "windows pods cannot be resized")];
    }
    let spec = At::object(new).get("spec");
    let before = At::object(old).get("spec");
    let mut errors = Errors::new();
    if text(old, "/status/qosClass") != qos_class(new) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&spec.path, text(new, "/status/qosClass"), detail));
    }
    let running = list(old, "/status/containerStatuses").iter().find(|s| s["state"]["running"].is_object());
    if running.is_some_and(|status| !status["resources"].is_object()) {
        errors.push(spec.forbidden("Pod running on node without support for resize"));
    }
    validate_pod_level(&spec, &before, &mut errors);
    if !validate_order(&spec, &before, &mut errors) {
        return errors;
    }
    let mut restored = spec.value.clone();
    for field in ["containers", "initContainers"] {
        for (at, (now, then)) in spec.get(field).items().zip(before.get(field).items()).enumerate() {
            validate_container(&now, &then, field == "initContainers", &spec, &mut errors);
            restored[field][at] = container_with_quantities_of(now.value, then.value);
        }
    }
    match pod_with_quantities_of(spec.value, before.value) {
        Some(resources) => restored["resources"] = resources,
        None => drop(restored.as_object_mut().and_then(|spec| spec.remove("resources"))),
    }
    if errors.is_empty() && !equal(&restored, before.value) {
        errors.push(spec.forbidden(ONLY_CPU_AND_MEMORY));
    }
    errors
}

fn validate_pod_level(spec: &At<'_>, before: &At<'_>, errors: &mut Errors) {
    let now = spec.get("resources");
    let then = before.get("resources");
    if then.is_object() && !now.is_object() {
        errors.push(now.forbidden("pod-level resources cannot be removed"));
        return;
    }
    for side in ["requests", "limits"] {
        if is_removed(&now.get(side), &then.get(side)) {
            errors.push(now.get(side).forbidden(format!("pod-level resource {side} cannot be removed")));
        }
    }
    let restored = pod_with_quantities_of(spec.value, before.value).unwrap_or_default();
    if now.is_object() && !equal(&restored, then.value) {
        errors.push(spec.forbidden("only cpu and memory resources are mutable at pod-level"));
    }
}

/// Validates that the containers are the same ones in the same order.
fn validate_order(spec: &At<'_>, before: &At<'_>, errors: &mut Errors) -> bool {
    let count = errors.len();
    for field in ["containers", "initContainers"] {
        let now = spec.get(field);
        let then = before.get(field);
        if now.len() != then.len() {
            errors.push(now.forbidden(format!("{field} may not be added or removed on resize")));
            continue;
        }
        for (now, then) in now.items().zip(then.items()) {
            if now.get("name").text() != then.get("name").text() {
                let detail = format!("{field} may not be renamed or reordered on resize");
                errors.push(now.get("name").forbidden(detail));
            }
        }
    }
    errors.len() == count
}

fn validate_container(now: &At<'_>, then: &At<'_>, init: bool, spec: &At<'_>, errors: &mut Errors) {
    for side in ["requests", "limits"] {
        let quantities = now.get("resources").get(side);
        if is_removed(&quantities, &then.get("resources").get(side)) {
            errors.push(quantities.forbidden(format!("resource {side} cannot be removed")));
        }
    }
    let same = equal(&container_with_quantities_of(now.value, then.value), then.value);
    if !init {
        if !same {
            errors.push(spec.forbidden(ONLY_CPU_AND_MEMORY));
        }
        return;
    }
    if !same {
        let detail = "only cpu and memory resources for init or sidecar containers are mutable";
        errors.push(now.forbidden(detail));
    }
    let restarted = now.get("resizePolicy").items().any(|p| p.get("restartPolicy").text() == "RestartContainer");
    if !equal(now.value, then.value) && now.get("restartPolicy").text() != "Always" && restarted {
        let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        errors.push(now.forbidden(detail));
    }
}

fn is_removed(now: &At<'_>, then: &At<'_>) -> bool {
    then.entries().any(|(resource, _)| now.value.get(resource).is_none())
}

/// Returns the new container with the old quantities. Claims are left out, as upstream does: a container with claims
/// cannot be resized, and new claims are validated by their references.
fn container_with_quantities_of(new: &Value, old: &Value) -> Value {
    let mut container = with_quantities_of(new, old);
    if let Some(resources) = container["resources"].as_object_mut() {
        resources.remove("claims");
    }
    container
}

/// Returns the pod's own resources with the old quantities; none if it had none before and now has only quantities.
fn pod_with_quantities_of(new: &Value, old: &Value) -> Option<Value> {
    let resources = with_quantities_of(new, old).get("resources").filter(|resources| resources.is_object()).cloned()?;
    let is_empty = |part: &Value| {
        part.is_null() || part.as_object().is_some_and(Map::is_empty) || part.as_array().is_some_and(Vec::is_empty)
    };
    let is_bare = resources.as_object().is_some_and(|parts| parts.values().all(is_empty));
    (!is_bare || old["resources"].is_object()).then_some(resources)
}

/// Returns the new value with the old quantities of CPU and memory.
fn with_quantities_of(new: &Value, old: &Value) -> Value {
    let mut value = new.clone();
    for side in ["requests", "limits"] {
        let before = &old["resources"][side];
        let mut quantities = value["resources"][side].as_object().cloned().unwrap_or_default();
        for resource in ["cpu", "memory"] {
            match before.get(resource) {
                Some(quantity) => quantities.insert(resource.to_string(), quantity.clone()),
                None => quantities.remove(resource),
            };
        }
        let Some(resources) = value["resources"].as_object_mut() else { continue };
        if quantities.is_empty() && !before.is_object() {
            resources.remove(side);
        } else {
            resources.insert(side.to_string(), quantities.into());
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_may_be_given_resources_of_its_own() {
        let pod = |resources: Value| {
            let container = json!({"name": "c", "resources": {"requests": {"cpu": "2m"}}});
            let mut pod = json!({"spec": {"containers": [container]}, "status": {"qosClass": "Burstable"}});
            if !resources.is_null() {
                pod["spec"]["resources"] = resources;
            }
            pod
        };
        let none = pod(Value::Null);
        let sized = pod(json!({"requests": {"cpu": "5m"}, "limits": {"cpu": "25m"}}));
        let more = pod(json!({"requests": {"cpu": "5m", "hugepages-2Mi": "2Mi"}}));
        for (new, old, expected) in [
            (&sized, &none, vec![]),
            (&none, &none, vec![]),
            (&none, &sized, vec!["spec.resources: Forbidden: pod-level resources cannot be removed"]),
            (&more, &none, vec!["spec: Forbidden: only cpu and memory resources are mutable at pod-level"]),
        ] {
            let errors: Vec<String> = validate_resize(new, old).iter().map(ToString::to_string).collect();
            assert_eq!(errors, expected, "{old} {new}");
        }
    }
}
