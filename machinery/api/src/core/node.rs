//! Node.

use std::collections::BTreeSet;

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, list, name, or, text, truth};
use crate::defaulting::{absent, put};
use crate::kind::{Behaviour, Kind};

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
