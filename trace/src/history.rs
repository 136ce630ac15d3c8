//! The steps that objects remember: times of creation, of conditions and of containers, and Events.

use corten_meta::Value;
use jiff::Timestamp;

use crate::difference::{event, name};
use crate::step::{Actor, Step};

/// Returns the steps of objects, in the order of their times. Kubernetes keeps most of them to the second.
pub fn history<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Vec<Step> {
    let mut steps: Vec<Step> = objects.into_iter().flat_map(of_object).collect();
    steps.sort_by_cached_key(|step| (step.at, step.actor, rank(&step.object), step.object.clone()));
    steps.dedup();
    steps
}

/// Returns the place of an object among steps of one second: owners come before what they own.
fn rank(object: &str) -> usize {
    const ORDER: [&str; 8] =
        ["CronJob/", "Deployment/", "StatefulSet/", "DaemonSet/", "ReplicaSet/", "Job/", "Pod/", "EndpointSlice/"];
    ORDER.iter().position(|kind| object.starts_with(kind)).unwrap_or(0)
}

fn of_object(object: &Value) -> Vec<Step> {
    if object["kind"] == "Event" {
        let times = [&object["eventTime"], &object["firstTimestamp"], &object["metadata"]["creationTimestamp"]];
        let at = times.into_iter().find_map(time);
        return at.and_then(|at| event(object, at)).into_iter().collect();
    }
    let mut steps = Vec::new();
    let mut add = |at: &Value, actor: Actor, text: String| {
        if let Some(at) = time(at) {
            steps.push(Step { at, actor, object: name(object), text });
        }
    };
    let creator = first_manager(object);
    add(&object["metadata"]["creationTimestamp"], Actor::of(creator), format!("created by {creator}"));
    let actor = if object["kind"] == "Pod" { Actor::Kubelet } else { Actor::Controllers };
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        let kind = condition["type"].as_str().unwrap_or_default();
        let (actor, text) = match (kind, condition["status"].as_str()) {
            ("PodScheduled", Some("True")) => {
                (Actor::Scheduler, format!("bound to node {}", object["spec"]["nodeName"].as_str().unwrap_or_default()))
            }
            (kind, Some(status)) => (actor, format!("{kind} is {}", status.to_lowercase())),
            (_, None) => continue,
        };
        add(&condition["lastTransitionTime"], actor, text);
    }
    for status in object["status"]["containerStatuses"].as_array().into_iter().flatten() {
        let container = status["name"].as_str().unwrap_or_default();
        add(&status["state"]["running"]["startedAt"], Actor::Kubelet, format!("container {container} runs"));
        let ended = &status["state"]["terminated"];
        add(&ended["startedAt"], Actor::Kubelet, format!("container {container} runs"));
        add(
            &ended["finishedAt"],
            Actor::Kubelet,
            format!("container {container} ended with code {}", ended["exitCode"]),
        );
    }
    steps
}

/// Returns the manager that wrote first: it created the object. Of the writers of one second, that of a status did not.
fn first_manager(object: &Value) -> &str {
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let first = entries
        .iter()
        .min_by_key(|entry| (entry["time"].as_str().unwrap_or_default(), entry["subresource"].as_str().is_some()));
    first.and_then(|entry| entry["manager"].as_str()).unwrap_or("a client")
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}
