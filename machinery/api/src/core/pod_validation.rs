//! The rules of a pod and of a pod template.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use serde_json::json;

use super::container_validation::{validate_common, validate_handler, validate_probe};
use super::volume_validation::validate_volumes;
use crate::cells::{list, text, truth};
use crate::defaulting::absent;
use crate::validation::{immutable, invalid_each, labels, nonnegative, required_word, supported};

pub(super) fn validate_pod(pod: &Value) -> Vec<FieldError> {
    validate_pod_spec(&pod["spec"], &[], &Path::root("spec"))
}

/// A template at a path: its labels, annotations and spec. `claims` are volumes that come from elsewhere.
pub(crate) fn validate_template(template: &Value, claims: &[&str], path: &Path) -> Vec<FieldError> {
    let mut errors = labels(&template["metadata"]["labels"], &path.child("labels"));
    errors.extend(crate::objectmeta::validate_annotations(
        &template["metadata"]["annotations"],
        &path.child("annotations"),
    ));
    errors.extend(validate_pod_spec(&template["spec"], claims, &path.child("spec")));
    if !list(template, "/spec/ephemeralContainers").is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(&path.child("spec").child("ephemeralContainers"), detail));
    }
    errors
}

fn validate_pod_spec(spec: &Value, claims: &[&str], path: &Path) -> Vec<FieldError> {
    let (mut volumes, mut errors) = validate_volumes(list(spec, "/volumes"), &path.child("volumes"));
    volumes.extend(claims.iter().copied());
    errors.extend(validate_containers(spec, &volumes, path));
    errors.extend(validate_init_containers(spec, &volumes, path));
    errors.extend(validate_ephemeral_containers(spec, &volumes, path));
    errors.extend(required_word(
        &spec["restartPolicy"],
        &path.child("restartPolicy"),
        &["Always", "OnFailure", "Never"],
    ));
    errors.extend(required_word(
        &spec["dnsPolicy"],
        &path.child("dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    ));
    errors.extend(labels(&spec["nodeSelector"], &path.child("nodeSelector")));
    errors.extend(validate_host_network(spec, path));
    errors.extend(validate_names(spec, path));
    errors.extend(validate_tolerations(list(spec, "/tolerations"), &path.child("tolerations")));
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|s| *s < 1) {
        let detail = names::inclusive_range_message(1, i64::from(i32::MAX));
        errors.push(FieldError::invalid(&path.child("activeDeadlineSeconds"), seconds, detail));
    }
    errors.extend(nonnegative(&spec["terminationGracePeriodSeconds"], &path.child("terminationGracePeriodSeconds")));
    errors.extend(supported(
        &spec["preemptionPolicy"],
        &path.child("preemptionPolicy"),
        &["Never", "PreemptLowerPriority"],
    ));
    errors
}

fn validate_containers(spec: &Value, volumes: &BTreeSet<&str>, path: &Path) -> Vec<FieldError> {
    let containers = list(spec, "/containers");
    let path = path.child("containers");
    if containers.is_empty() {
        return vec![FieldError::required(&path, "")];
    }
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (at, container) in containers.iter().enumerate() {
        let path = path.index(at);
        errors.extend(validate_common(container, volumes, &path));
        let name = text(container, "/name");
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        errors.extend(validate_hooks(container, &path));
    }
    errors
}

fn validate_hooks(container: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = container.pointer(&format!("/lifecycle/{hook}")).filter(|h| h.is_object()) {
            errors.extend(validate_handler(handler, &path.child("lifecycle").child(hook)));
        }
    }
    errors.extend(validate_probe(&container["livenessProbe"], &path.child("livenessProbe"), true));
    errors.extend(validate_probe(&container["readinessProbe"], &path.child("readinessProbe"), false));
    errors.extend(validate_probe(&container["startupProbe"], &path.child("startupProbe"), true));
    errors
}

fn validate_init_containers(spec: &Value, volumes: &BTreeSet<&str>, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names: BTreeSet<&str> = list(spec, "/containers").iter().map(|c| text(c, "/name")).collect();
    for (at, container) in list(spec, "/initContainers").iter().enumerate() {
        let path = path.child("initContainers").index(at);
        errors.extend(validate_common(container, volumes, &path));
        let name = text(container, "/name");
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if text(container, "/restartPolicy") == "Always" {
            errors.extend(validate_hooks(container, &path));
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if container.get(field).is_some_and(Value::is_object) {
                let detail = "may not be set for init containers without restartPolicy=Always";
                errors.push(FieldError::forbidden(&path.child(field), detail));
            }
        }
    }
    errors
}

/// Containers that are added to debug a running pod: they have a name and an image, and nothing to keep them.
fn validate_ephemeral_containers(spec: &Value, volumes: &BTreeSet<&str>, path: &Path) -> Vec<FieldError> {
    const FORBIDDEN: [&str; 7] =
        ["ports", "lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "resources", "resizePolicy"];
    let others = ["/containers", "/initContainers"].iter().flat_map(|l| list(spec, l));
    let mut names: BTreeSet<&str> = others.map(|c| text(c, "/name")).collect();
    let mut errors = Vec::new();
    for (at, container) in list(spec, "/ephemeralContainers").iter().enumerate() {
        let path = path.child("ephemeralContainers").index(at);
        errors.extend(validate_common(container, volumes, &path));
        let name = text(container, "/name");
        if !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        let target = text(container, "/targetContainerName");
        if !target.is_empty() && !list(spec, "/containers").iter().any(|c| text(c, "/name") == target) {
            errors.push(FieldError::not_found(&path.child("targetContainerName"), target));
        }
        let set = |field: &str| match &container[field] {
            Value::Object(map) => !map.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => false,
        };
        for field in FORBIDDEN.into_iter().filter(|f| set(f)) {
            errors.push(FieldError::forbidden(&path.child(field), "cannot be set for an Ephemeral Container"));
        }
    }
    errors
}

/// On the host's network a container port is a host port.
fn validate_host_network(spec: &Value, path: &Path) -> Vec<FieldError> {
    if !truth(spec, "/hostNetwork") {
        return Vec::new();
    }
    let mut errors = Vec::new();
    for (at, container) in list(spec, "/containers").iter().enumerate() {
        for (port_at, port) in list(container, "/ports").iter().enumerate() {
            let host = &port["hostPort"];
            if !host.is_null() && *host != 0 && *host != port["containerPort"] {
                let path = path.child("containers").index(at).child("ports").index(port_at).child("hostPort");
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(&path, host.clone(), detail));
            }
        }
    }
    errors
}

fn validate_names(spec: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut check = |field: &str, rule: fn(&str) -> Vec<String>| {
        let name = text(spec, &format!("/{field}"));
        if !name.is_empty() {
            errors.extend(invalid_each(&path.child(field), name, rule(name)));
        }
    };
    check("serviceAccountName", names::dns1123_subdomain);
    check("nodeName", names::dns1123_subdomain);
    check("hostname", names::dns1123_label);
    check("subdomain", names::dns1123_label);
    check("priorityClassName", names::dns1123_subdomain);
    check("runtimeClassName", names::dns1123_subdomain);
    errors
}

fn validate_tolerations(tolerations: &[Value], path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, toleration) in tolerations.iter().enumerate() {
        let path = path.index(at);
        let (key, operator, value) =
            (text(toleration, "/key"), text(toleration, "/operator"), text(toleration, "/value"));
        if key.is_empty() && operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(&path.child("operator"), operator, detail));
        } else if !key.is_empty() {
            errors.extend(invalid_each(&path.child("key"), key, names::qualified_name(key)));
        }
        if !absent(toleration, "/tolerationSeconds") && text(toleration, "/effect") != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&path.child("effect"), text(toleration, "/effect"), detail));
        }
        match operator {
            "" | "Equal" => {
                let messages = names::label_value(value);
                if !messages.is_empty() {
                    errors.push(FieldError::invalid(&path.child("operator"), value, messages.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&path.child("operator"), value, detail));
            }
            "Exists" => {}
            other => {
                errors.push(FieldError::not_supported(&path.child("operator"), other, &["Equal", "Exists"]));
            }
        }
        const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
        errors.extend(supported(&toleration["effect"], &path.child("effect"), EFFECTS));
    }
    errors
}

/// A running pod changes little: images, a shorter deadline, more tolerations, fewer scheduling gates.
pub(super) fn validate_pod_update(new: &Value, old: &Value) -> Vec<FieldError> {
    const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                             `spec.tolerations` (only additions to existing tolerations),\
                             `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    let path = Path::root("spec");
    let mut errors = Vec::new();
    for field in ["containers", "initContainers"] {
        if list(&new["spec"], &format!("/{field}")).len() != list(&old["spec"], &format!("/{field}")).len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(field), detail));
            return errors;
        }
    }
    let (deadline, before) =
        (new["spec"]["activeDeadlineSeconds"].as_i64(), old["spec"]["activeDeadlineSeconds"].as_i64());
    let deadline_path = path.child("activeDeadlineSeconds");
    match (deadline, before) {
        (Some(now), Some(before)) if now > before => {
            let detail = "must be less than or equal to previous value";
            errors.push(FieldError::invalid(&deadline_path, now, detail));
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&deadline_path, Value::Null, detail));
        }
        _ => {}
    }
    errors.extend(only_added_tolerations(new, old, &path));
    errors.extend(only_removed_gates(new, old, &path));
    if comparable(&new["spec"], &old["spec"]) != old["spec"] {
        errors
            .push(FieldError::forbidden(&path, format!("pod updates may not change fields other than {UPDATABLE}\n")));
    }
    errors
}

/// The new spec with everything that may change put back.
fn comparable(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    for field in ["containers", "initContainers"] {
        for (at, container) in crate::defaulting::items(&mut spec, &format!("/{field}")).enumerate() {
            container["image"] = old[field][at]["image"].clone();
        }
    }
    let mut restore = |field: &str| match (old.get(field), spec.as_object_mut()) {
        (Some(value), Some(object)) => {
            object.insert(field.to_string(), value.clone());
        }
        (None, Some(object)) => {
            object.remove(field);
        }
        _ => {}
    };
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(field);
    }
    if old["terminationGracePeriodSeconds"].as_i64().is_some_and(|s| s < 0) {
        restore("terminationGracePeriodSeconds");
    }
    if !list(old, "/schedulingGates").is_empty() {
        restore("nodeSelector");
        restore("affinity");
    }
    spec
}

fn only_added_tolerations(new: &Value, old: &Value, path: &Path) -> Option<FieldError> {
    let now = list(new, "/spec/tolerations");
    let bare = |toleration: &Value| {
        let mut bare = toleration.clone();
        bare["tolerationSeconds"] = json!(null);
        bare
    };
    let kept = list(old, "/spec/tolerations").iter().all(|t| now.iter().any(|n| bare(n) == bare(t)));
    let detail = "existing toleration can not be modified except its tolerationSeconds";
    (!kept).then(|| FieldError::forbidden(&path.child("tolerations"), detail))
}

fn only_removed_gates(new: &Value, old: &Value, path: &Path) -> Vec<FieldError> {
    let before = list(old, "/spec/schedulingGates");
    list(new, "/spec/schedulingGates")
        .iter()
        .enumerate()
        .filter(|(_, gate)| !before.contains(gate))
        .map(|(at, gate)| {
            let path = path.child("schedulingGates").index(at).child("name");
            FieldError::forbidden(
                &path,
                format!("only deletion is allowed, but found new scheduling gate '{}'", text(gate, "/name")),
            )
        })
        .collect()
}

pub(super) fn validate_pod_status_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = Path::root("status");
    let mut errors = Vec::new();
    if text(new, "/spec/nodeName") != text(old, "/spec/nodeName") {
        errors.push(FieldError::forbidden(&path.child("nodeName"), "may not be changed directly"));
    }
    if !absent(old, "/status/qosClass") {
        errors.extend(immutable(new, old, "/status/qosClass", &path.child("qosClass")));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "d"}, "spec": spec});
        super::super::pod::kind().default(&mut pod);
        pod
    }

    fn check(spec: Value) -> Vec<String> {
        validate_pod(&pod(spec)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pods() {
        let cases: [(Value, &[&str]); 8] = [
            (json!({"containers": [{"name": "a", "image": "i"}]}), &[]),
            (json!({}), &["spec.containers: Required value"]),
            (
                json!({"containers": [{"name": "a", "image": "i"}, {"name": "a"}]}),
                &["spec.containers[1].image: Required value", "spec.containers[1].name: Duplicate value: \"a\""],
            ),
            (
                json!({"containers": [{"name": "a", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}]}),
                &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""],
            ),
            (
                json!({"containers": [{"name": "a", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}]}),
                &[
                    "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                ],
            ),
            (
                json!({"containers": [{"name": "a", "image": "i"}], "restartPolicy": "Sometimes"}),
                &[
                    "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
                ],
            ),
            (
                json!({"containers": [{"name": "a", "image": "i", "livenessProbe": {}}]}),
                &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
            ),
            (
                json!({"containers": [{"name": "a", "image": "i"}], "volumes": [{"name": "v", "hostPath": {}, "emptyDir": {}}]}),
                &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
            ),
        ];
        for (spec, wanted) in cases {
            assert_eq!(check(spec.clone()), wanted, "{spec}");
        }
    }

    #[test]
    fn a_running_pod_changes_little() {
        let old = pod(
            json!({"containers": [{"name": "a", "image": "i"}], "tolerations": [{"key": "k", "operator": "Exists"}]}),
        );
        let with = |pointer: &str, value: Value| {
            let mut new = old.clone();
            crate::defaulting::put(&mut new, pointer, value);
            validate_pod_update(&new, &old).len()
        };
        assert_eq!(with("/spec/containers/0/image", json!("j")), 0);
        assert_eq!(with("/spec/activeDeadlineSeconds", json!(5)), 0);
        assert_eq!(with("/spec/nodeName", json!("n")), 1);
        assert_eq!(with("/spec/tolerations", json!([])), 1);
        assert_eq!(with("/spec/containers", json!([])), 1);
    }
}
