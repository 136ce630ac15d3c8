//! Pod.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::{pod_cells, pod_resize, pod_spec, pod_update, pod_validation, profile_annotations};
use crate::cells::{list, text};
use crate::check::At;
use crate::defaulting::{absent, items, put, remove};
use crate::kind::{Behaviour, Kind, Role};

struct Pod;

pub fn kind() -> Kind {
    const CONNECT: &[&str] = &["create", "get"];
    const PART: &[&str] = &["get", "patch", "update"];
    let mut pod = Kind::new("", "v1", "Pod", "pods")
        .short(&["po"])
        .category("all")
        .sub("attach", Role::Attach, CONNECT, ("", "", "PodAttachOptions"))
        .sub("binding", Role::Binding, &["create"], ("", "", "Binding"))
        .sub("ephemeralcontainers", Role::EphemeralContainers, PART, ("", "", "Pod"))
        .sub("eviction", Role::Eviction, &["create"], ("policy", "v1", "Eviction"))
        .sub("exec", Role::Exec, CONNECT, ("", "", "PodExecOptions"))
        .sub("log", Role::Log, &["get"], ("", "", "Pod"))
        .sub("portforward", Role::PortForward, CONNECT, ("", "", "PodPortForwardOptions"))
        .proxy("PodProxyOptions")
        .sub("resize", Role::Resize, PART, ("", "", "Pod"))
        .status()
        .status_keeps_owners()
        .generation()
        .graceful_delete()
        .selectable(&[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ])
        .table("Name, Ready, Status, Restarts, Age; IP, Node, Nominated Node, Readiness Gates")
        .returns_deleted()
        .behaviour(Pod);
    pod.rules.kept_of_new_status = &["qosClass"];
    pod
}

impl Behaviour for Pod {
    fn default(&self, pod: &mut Value) {
        if let Some(spec) = crate::defaulting::object_at(pod, "/spec") {
            pod_spec::default_pod_spec(spec);
        }
        pod_spec::default_pod_only(pod);
        pod_spec::default_pod_ips(pod);
    }

    fn early_warnings(&self, pod: &Value) -> Vec<String> {
        match text(pod, "/spec/os/name") {
            "windows" => Vec::new(),
            _ => profile_annotations::apparmor_warnings(&At::object(pod)),
        }
    }

    fn prepare_create(&self, pod: &mut Value) {
        pod_spec::merge_label_keys(pod);
        profile_annotations::apply_apparmor(pod);
        let class = match text(pod, "/status/qosClass") {
            "" => super::pod_qos::qos_class(pod),
            reason => reason,
        };
        put(pod, "/status", json!({"phase": "Pending", "qosClass": class}));
        let now = text(pod, "/metadata/creationTimestamp").to_string();
        if !list(pod, "/spec/schedulingGates").is_empty() {
            put(
                pod,
                "/status/conditions",
                json!([{
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastTransitionTime": now,
                }]),
            );
        }
    }

    /// Keeps fields of the status that were set at creation or before, if the writer leaves them out.
    fn prepare_status_update(&self, new: &mut Value, old: &Value, _now: Timestamp) {
        remove(new, "/metadata/deletionTimestamp");
        match old.pointer("/metadata/ownerReferences") {
            Some(owners) => put(new, "/metadata/ownerReferences", owners.clone()),
            None => {
                remove(new, "/metadata/ownerReferences");
            }
        }
        for field in ["/status/qosClass", "/status/observedGeneration"] {
            if let Some(before) = old.pointer(field).filter(|_| absent(new, field)) {
                put(new, field, before.clone());
            }
        }
        for condition in items(new, "/status/conditions") {
            let same = |other: &&Value| other["type"] == condition["type"];
            let before = list(old, "/status/conditions").iter().find(same).map(|c| &c["observedGeneration"]);
            if let Some(before) = before.filter(|b| !b.is_null() && absent(condition, "/observedGeneration")) {
                put(condition, "/observedGeneration", before.clone());
            }
        }
    }

    fn validate(&self, pod: &Value) -> Vec<FieldError> {
        pod_validation::validate_pod(pod)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        pod_update::validate_pod_update(new, old)
    }

    fn validate_create(&self, pod: &Value) -> Vec<FieldError> {
        pod_validation::validate_pod_create(pod)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        pod_update::validate_pod_status_update(new, old)
    }

    fn validate_part_update(&self, role: Role, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = pod_validation::validate_pod(new);
        match role {
            Role::EphemeralContainers => errors.extend(pod_update::validate_ephemeral_update(new, old)),
            Role::Resize => errors.extend(pod_resize::validate_resize(new, old)),
            _ => {}
        }
        errors
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        // Only creations get warnings: programs update pods and read no warnings.
        if old.is_none() { super::pod_warnings::of_pod(new) } else { Vec::new() }
    }

    fn status_warnings(&self, pod: &Value) -> Vec<String> {
        let status = At::object(pod).get("status");
        let mut out = Vec::new();
        for address in ["podIPs", "hostIPs"].iter().flat_map(|list| status.get(list).items()) {
            crate::address_warnings::ip(&address.get("ip"), &mut out);
        }
        out
    }

    fn cells(&self, pod: &Value, now: Timestamp) -> Vec<Value> {
        pod_cells::cells(pod, now)
    }

    fn completion(&self, pod: &Value) -> Option<(&'static str, &'static str)> {
        match text(pod, "/status/phase") {
            "Succeeded" => Some(("Succeeded", "The pod has completed successfully.")),
            "Failed" => Some(("Failed", "The pod failed.")),
            _ => None,
        }
    }

    fn fields(&self, pod: &Value, field: &str) -> Option<String> {
        Some(match field {
            "spec.nodeName" => text(pod, "/spec/nodeName").to_string(),
            "spec.restartPolicy" => text(pod, "/spec/restartPolicy").to_string(),
            "spec.schedulerName" => text(pod, "/spec/schedulerName").to_string(),
            "spec.serviceAccountName" => text(pod, "/spec/serviceAccountName").to_string(),
            "spec.hostNetwork" => crate::cells::boolean(pod, "/spec/hostNetwork").to_string(),
            "status.phase" => text(pod, "/status/phase").to_string(),
            "status.podIP" | "status.podIPs" => text(pod, "/status/podIPs/0/ip").to_string(),
            "status.nominatedNodeName" => text(pod, "/status/nominatedNodeName").to_string(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_a_status_leaves_out_are_kept() {
        let owners = json!([{"uid": "u"}]);
        let old = json!({"metadata": {"ownerReferences": owners}, "status": {"qosClass": "Burstable", "observedGeneration": 2,
            "conditions": [{"type": "Ready", "observedGeneration": 2}]}});
        let mut new =
            json!({"metadata": {}, "status": {"phase": "Failed", "conditions": [{"type": "Ready"}, {"type": "New"}]}});
        Pod.prepare_status_update(&mut new, &old, Timestamp::UNIX_EPOCH);
        let wanted = json!({"metadata": {"ownerReferences": owners}, "status": {"phase": "Failed", "qosClass": "Burstable",
            "observedGeneration": 2, "conditions": [{"type": "Ready", "observedGeneration": 2}, {"type": "New"}]}});
        assert_eq!(new, wanted);
    }
}
