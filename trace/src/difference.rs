//! The steps between two states of an object.

use corten_meta::Value;
use jiff::Timestamp;

use crate::step::{Actor, Step};

/// Returns the steps from one state of an object to the next; without a state before, it was created.
pub fn steps(before: Option<&Value>, after: &Value, at: Timestamp) -> Vec<Step> {
    let object = name(after);
    let step = |actor: Actor, text: String| Step { at, actor, object: object.clone(), text };
    let mut steps = Vec::new();
    let Some(before) = before else {
        if after["kind"] == "Event" {
            return event(after, at).into_iter().collect();
        }
        let manager = last_manager(after);
        steps.push(step(Actor::of(&manager), format!("created{}", by(&manager))));
        return steps;
    };
    if before["metadata"]["deletionTimestamp"].is_null() && !after["metadata"]["deletionTimestamp"].is_null() {
        steps.push(step(Actor::of(&last_manager(after)), "marked for deletion".to_owned()));
    }
    // The endpoints of a slice are its spec, and have steps of their own.
    if before["metadata"]["generation"] != after["metadata"]["generation"] && after["kind"] != "EndpointSlice" {
        let manager = last_manager(after);
        steps.push(step(Actor::of(&manager), format!("spec changed{}", by(&manager))));
    }
    match after["kind"].as_str() {
        Some("Pod") => pod(before, after, &mut |actor, text| steps.push(step(actor, text))),
        Some("EndpointSlice") => endpoints(before, after, &mut |text| steps.push(step(Actor::Controllers, text))),
        _ => workload(before, after, &mut |text| steps.push(step(Actor::Controllers, text))),
    }
    steps
}

/// Returns the kind and name of an object.
pub fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Returns the manager that wrote last.
pub fn last_manager(object: &Value) -> String {
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last = entries.iter().max_by_key(|entry| entry["time"].as_str().unwrap_or_default());
    last.and_then(|entry| entry["manager"].as_str()).unwrap_or_default().to_owned()
}

fn by(manager: &str) -> String {
    if manager.is_empty() { String::new() } else { format!(" by {manager}") }
}

/// Returns the step of an Event: the component of its source said something of an object.
pub fn event(event: &Value, at: Timestamp) -> Option<Step> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let regarding = &event["involvedObject"];
    let source = [&event["reportingComponent"], &event["source"]["component"]];
    let source = source.into_iter().find_map(|value| value.as_str().filter(|text| !text.is_empty()));
    let message = text(&event["message"]);
    let message = message.lines().next().unwrap_or_default();
    Some(Step {
        at,
        actor: Actor::of(source?),
        object: format!("{}/{}", text(&regarding["kind"]), text(&regarding["name"])),
        text: format!("{}: {message}", text(&event["reason"])),
    })
}

fn pod(before: &Value, after: &Value, add: &mut dyn FnMut(Actor, String)) {
    let changed = |pointer: &str| {
        let value = after.pointer(pointer).filter(|value| before.pointer(pointer) != Some(value));
        value.and_then(Value::as_str).filter(|text| !text.is_empty())
    };
    if let Some(node) = changed("/spec/nodeName") {
        add(Actor::Scheduler, format!("bound to node {node}"));
    }
    if let Some(address) = changed("/status/podIP") {
        add(Actor::Kubelet, format!("sandbox and network are set up, address {address}"));
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        for status in after["status"][list].as_array().into_iter().flatten() {
            let same = |other: &&Value| other["name"] == status["name"];
            let earlier = before["status"][list].as_array().and_then(|list| list.iter().find(same));
            let state = container_state(status);
            if !state.is_empty() && earlier.map(container_state).unwrap_or_default() != state {
                add(Actor::Kubelet, format!("container {} {state}", status["name"].as_str().unwrap_or_default()));
            }
        }
    }
    for condition in turned_true(before, after) {
        // The scheduler's condition comes with the binding, which has a step of its own.
        if condition != "PodScheduled" {
            add(Actor::Kubelet, format!("{condition} is true"));
        }
    }
    if let Some(phase @ ("Succeeded" | "Failed")) = changed("/status/phase") {
        add(Actor::Kubelet, phase.to_lowercase());
    }
}

/// Returns the state of a container in words.
fn container_state(status: &Value) -> String {
    let state = &status["state"];
    if !state["running"].is_null() {
        return "runs".to_owned();
    }
    if let Some(reason) = state["waiting"]["reason"].as_str() {
        return format!("waits: {reason}");
    }
    match state["terminated"].as_object() {
        Some(ended) => format!("ended with code {}", ended.get("exitCode").unwrap_or(&Value::Null)),
        None => String::new(),
    }
}

/// Returns the types of conditions that turned true.
fn turned_true(before: &Value, after: &Value) -> Vec<String> {
    let is_true = |object: &Value, kind: &Value| {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|condition| condition["type"] == *kind && condition["status"] == "True")
    };
    let conditions = after["status"]["conditions"].as_array().into_iter().flatten();
    let types = conditions.map(|condition| &condition["type"]);
    let turned = types.filter(|kind| is_true(after, kind) && !is_true(before, kind));
    turned.filter_map(|kind| kind.as_str().map(str::to_owned)).collect()
}

/// The counts of workloads, in the order in which they change.
const COUNTS: [&str; 9] = [
    "replicas",
    "updatedReplicas",
    "readyReplicas",
    "availableReplicas",
    "numberReady",
    "active",
    "ready",
    "succeeded",
    "failed",
];

fn workload(before: &Value, after: &Value, add: &mut dyn FnMut(String)) {
    let counts = COUNTS.into_iter().filter_map(|count| {
        let value = after["status"][count].as_i64()?;
        (before["status"][count].as_i64() != Some(value)).then(|| format!("{count} {value}"))
    });
    let counts: Vec<String> = counts.collect();
    if !counts.is_empty() {
        add(format!("status: {}", counts.join(", ")));
    }
    for condition in turned_true(before, after) {
        add(format!("{condition} is true"));
    }
}

fn endpoints(before: &Value, after: &Value, add: &mut dyn FnMut(String)) {
    let ready = |slice: &Value| -> Vec<String> {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
        let names = ready.filter_map(|endpoint| endpoint["targetRef"]["name"].as_str());
        names.map(str::to_owned).collect()
    };
    let earlier = ready(before);
    for pod in ready(after).iter().filter(|pod| !earlier.contains(pod)) {
        add(format!("serves {pod}"));
    }
}
