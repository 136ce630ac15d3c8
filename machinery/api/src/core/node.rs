//! Node.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, list, name, or, text, truth};
use crate::defaulting::{absent, put};
use crate::kind::{Behaviour, Kind};
use crate::validation::{invalid_each, required_word};

struct Node;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Node", "nodes")
        .cluster()
        .short(&["no"])
        .proxy("NodeProxyOptions")
        .status()
        .status_on_create()
        .stored_at("/registry/minions")
        .selectable(&["spec.unschedulable"])
        .table(
            "Name, Status, Roles, Age, Version; Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime",
        )
        .behaviour(Node)
}

impl Behaviour for Node {
    fn default(&self, node: &mut Value) {
        if absent(node, "/status/allocatable")
            && let Some(capacity) = node.pointer("/status/capacity").filter(|c| c.is_object()).cloned()
        {
            put(node, "/status/allocatable", capacity);
        }
        mirror_pod_cidr(node);
    }

    fn validate(&self, node: &Value) -> Vec<FieldError> {
        let path = Path::root("spec").child("taints");
        list(node, "/spec/taints").iter().enumerate().flat_map(|(at, t)| validate_taint(t, &path.index(at))).collect()
    }

    /// The addresses of a node's pods are given once.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let path = Path::root("spec");
        let mut errors = Vec::new();
        let before = list(old, "/spec/podCIDRs");
        if !before.is_empty() && before != list(new, "/spec/podCIDRs") {
            let detail = "node updates may not change podCIDR except from \"\" to valid";
            errors.push(FieldError::forbidden(&path.child("podCIDRs"), detail));
        }
        let (was, is) = (text(old, "/spec/providerID"), text(new, "/spec/providerID"));
        if !was.is_empty() && was != is {
            let detail =
                if is.is_empty() { "field cannot be cleared once set" } else { "field cannot be modified once set" };
            errors.push(FieldError::invalid(&path.child("providerID"), Value::Null, detail));
        }
        errors
    }

    fn cells(&self, node: &Value, now: Timestamp) -> Vec<Value> {
        let info = |field: &str| text(node, &format!("/status/nodeInfo/{field}"));
        let mut kernel = or(info("kernelVersion"), "<unknown>").to_string();
        if !info("architecture").is_empty() {
            kernel.push_str(&format!(" ({})", info("architecture")));
        }
        vec![
            name(node),
            status(node).into(),
            roles(node).into(),
            age(node, now),
            info("kubeletVersion").into(),
            address(node, "InternalIP").into(),
            address(node, "ExternalIP").into(),
            or(info("osImage"), "<unknown>").into(),
            kernel.into(),
            or(info("containerRuntimeVersion"), "<unknown>").into(),
        ]
    }

    fn fields(&self, node: &Value, field: &str) -> Option<String> {
        (field == "spec.unschedulable").then(|| truth(node, "/spec/unschedulable").to_string())
    }
}

/// The one range and the list of ranges name the same thing.
fn mirror_pod_cidr(node: &mut Value) {
    let one = text(node, "/spec/podCIDR").to_string();
    let first = text(node, "/spec/podCIDRs/0").to_string();
    if one.is_empty() && !first.is_empty() {
        put(node, "/spec/podCIDR", first);
    } else if !one.is_empty() && first.is_empty() {
        put(node, "/spec/podCIDRs", vec![one]);
    }
}

fn validate_taint(taint: &Value, path: &Path) -> Vec<FieldError> {
    let key = text(taint, "/key");
    let mut errors = invalid_each(&path.child("key"), key, names::qualified_name(key));
    let value = text(taint, "/value");
    errors.extend(invalid_each(&path.child("value"), value, names::label_value(value)));
    const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
    errors.extend(required_word(&taint["effect"], &path.child("effect"), EFFECTS));
    errors
}

fn status(node: &Value) -> String {
    let ready = list(node, "/status/conditions").iter().rfind(|c| text(c, "/type") == "Ready");
    let mut status = match ready {
        Some(c) if text(c, "/status") == "True" => "Ready".to_string(),
        Some(_) => "NotReady".to_string(),
        None => "Unknown".to_string(),
    };
    if truth(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn roles(node: &Value) -> String {
    let labels = corten_meta::labels(node);
    let roles: BTreeSet<&str> = labels
        .iter()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => Some(value.as_str()),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() { "<none>".to_string() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let found = list(node, "/status/addresses").iter().find(|a| text(a, "/type") == kind);
    found.map_or("<none>", |a| text(a, "/address"))
}
