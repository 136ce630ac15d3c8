//! Rows: nodes, pods and events as the screen shows them, made of objects.

use std::collections::BTreeMap;

use corten_meta::{Quantity, Value};
use jiff::Timestamp;

/// CPU in thousandths of a core, and memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: i64,
    pub memory: i64,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    pub name: String,
    pub status: String,
    pub is_ready: bool,
    pub allocatable: Usage,
    pub created: Option<Timestamp>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRow {
    pub namespace: String,
    pub name: String,
    pub node: String,
    pub status: String,
    pub ready: i64,
    pub containers: i64,
    pub restarts: i64,
    /// Whether all is well: it runs with all containers ready, or it has succeeded.
    pub is_well: bool,
    pub created: Option<Timestamp>,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    pub namespace: String,
    pub name: String,
    pub object: String,
    pub reason: String,
    pub message: String,
    pub is_warning: bool,
    pub seen: Option<Timestamp>,
}

fn string(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    object.pointer(pointer)?.as_str()?.parse().ok()
}

fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn usage(list: Option<&Value>) -> Usage {
    let quantity = |name: &str| Quantity::from_json(list?.get(name)?).ok();
    let milli = |quantity: Quantity| i64::try_from(quantity.as_milli()).unwrap_or(i64::MAX);
    Usage {
        cpu: quantity("cpu").map(milli).unwrap_or_default(),
        memory: quantity("memory").map(|quantity| quantity.as_i64()).unwrap_or_default(),
    }
}

pub fn node(object: &Value) -> NodeRow {
    let ready = items(object, "/status/conditions").find(|one| one["type"] == "Ready");
    let is_ready = ready.is_some_and(|one| one["status"] == "True");
    let mut status = if is_ready { "Ready" } else { "NotReady" }.to_owned();
    if object.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    NodeRow {
        name: string(object, "/metadata/name"),
        status,
        is_ready,
        allocatable: usage(object.pointer("/status/allocatable")),
        created: time(object, "/metadata/creationTimestamp"),
    }
}

pub fn pod(object: &Value) -> PodRow {
    let statuses: Vec<&Value> = items(object, "/status/containerStatuses").collect();
    let ready = statuses.iter().filter(|one| one["ready"] == true).count() as i64;
    let containers = items(object, "/spec/containers").count() as i64;
    let restarts = statuses.iter().filter_map(|one| one["restartCount"].as_i64()).sum();
    let status = pod_status(object, &statuses);
    PodRow {
        namespace: string(object, "/metadata/namespace"),
        name: string(object, "/metadata/name"),
        node: string(object, "/spec/nodeName"),
        is_well: status == "Running" && ready == containers || status == "Succeeded" || status == "Completed",
        status,
        ready,
        containers,
        restarts,
        created: time(object, "/metadata/creationTimestamp"),
    }
}

/// Returns the word for the state of a pod: that of the container that is in trouble, else the phase.
fn pod_status(object: &Value, statuses: &[&Value]) -> String {
    if object.pointer("/metadata/deletionTimestamp").is_some() {
        return "Terminating".to_owned();
    }
    let initial = items(object, "/status/initContainerStatuses").find_map(|one| {
        let reason = string(one, "/state/waiting/reason");
        let is_in_trouble = !reason.is_empty() && reason != "PodInitializing";
        is_in_trouble.then(|| format!("Init:{reason}"))
    });
    let waiting = statuses.iter().map(|one| string(one, "/state/waiting/reason")).find(|reason| !reason.is_empty());
    let ended = statuses.iter().map(|one| string(one, "/state/terminated/reason")).find(|reason| !reason.is_empty());
    let own = Some(string(object, "/status/reason")).filter(|reason| !reason.is_empty());
    let word = own.or(initial).or(waiting).or(ended);
    word.unwrap_or_else(|| string(object, "/status/phase"))
}

pub fn event(object: &Value) -> EventRow {
    let kind = string(object, "/involvedObject/kind").to_lowercase();
    let seen = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    EventRow {
        namespace: string(object, "/metadata/namespace"),
        name: string(object, "/metadata/name"),
        object: format!("{kind}/{}", string(object, "/involvedObject/name")),
        reason: string(object, "/reason"),
        message: string(object, "/message"),
        is_warning: object["type"] == "Warning",
        seen: seen.iter().find_map(|pointer| time(object, pointer)),
    }
}

/// Returns the use of each node, by name, of a NodeMetricsList.
pub fn node_usage(list: &Value) -> BTreeMap<String, Usage> {
    items(list, "/items").map(|one| (string(one, "/metadata/name"), usage(one.get("usage")))).collect()
}

/// Returns the use of each pod, by `namespace/name`, of a PodMetricsList.
pub fn pod_usage(list: &Value) -> BTreeMap<String, Usage> {
    let total = |one: &Value| {
        items(one, "/containers").map(|container| usage(container.get("usage"))).fold(Usage::default(), |sum, one| {
            Usage { cpu: sum.cpu.saturating_add(one.cpu), memory: sum.memory.saturating_add(one.memory) }
        })
    };
    let key = |one: &Value| format!("{}/{}", string(one, "/metadata/namespace"), string(one, "/metadata/name"));
    items(list, "/items").map(|one| (key(one), total(one))).collect()
}

/// Returns the time since a moment, as kubectl writes ages.
pub fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return String::new() };
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns thousandths of a core as kubectl writes them.
pub fn cores(milli: i64) -> String {
    format!("{milli}m")
}

/// Returns bytes as kubectl writes them.
pub fn mebibytes(bytes: i64) -> String {
    format!("{}Mi", bytes >> 20)
}

/// Returns a part of a whole in percent.
pub fn percent(part: i64, whole: i64) -> String {
    if whole <= 0 { String::new() } else { format!("{}%", part.saturating_mul(100) / whole) }
}
