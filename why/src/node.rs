//! Nodes that are not ready, or that take no pods.

use corten_meta::Value;

use crate::Finding;
use crate::objects::{condition, items, text};

const PRESSURES: &[(&str, &str)] = &[
    ("MemoryPressure", "its memory is nearly full; pods are evicted"),
    ("DiskPressure", "its disk is nearly full; images are deleted and pods evicted"),
    ("PIDPressure", "it has nearly no process ids left"),
    ("NetworkUnavailable", "its network is not set up"),
];

pub fn explain(node: &Value) -> Vec<Finding> {
    let name = corten_meta::name(node);
    let mut findings = Vec::new();
    findings.extend(readiness(node, name));
    for (kind, meaning) in PRESSURES {
        let is_true = condition(node, kind).filter(|one| text(one, "/status") == "True");
        findings.extend(is_true.map(|one| Finding::new(format!("{kind}: {meaning}.")).because(text(one, "/message"))));
    }
    if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
        let cordoned = Finding::new("It is cordoned: it takes no new pods.");
        findings.push(cordoned.help(format!("kubectl uncordon {name}")));
    }
    findings.extend(items(node, "/spec/taints").filter_map(|taint| {
        let key = text(taint, "/key");
        let is_own = key.starts_with("node.kubernetes.io/") || key.starts_with("node-role.kubernetes.io/");
        (!is_own).then(|| {
            Finding::new(format!("Its taint {key} ({}) keeps pods away.", text(taint, "/effect")))
                .help(format!("kubectl taint node {name} {key}-"))
        })
    }));
    findings
}

fn readiness(node: &Value, name: &str) -> Option<Finding> {
    let ready = condition(node, "Ready");
    let status = ready.map_or("Unknown", |one| text(one, "/status"));
    if status == "True" {
        return None;
    }
    let message = ready.map_or("", |one| text(one, "/message"));
    let heartbeat = ready.map_or("", |one| text(one, "/lastHeartbeatTime"));
    let cause = match status {
        "False" => "Its kubelet says that the node is not ready.",
        _ => "Its kubelet no longer reports: the machine, its network or the process is down.",
    };
    Some(
        Finding::new(cause)
            .because(message)
            .because(format!("last heartbeat {heartbeat}"))
            .help(format!("on {name}: corten status; corten logs")),
    )
}
