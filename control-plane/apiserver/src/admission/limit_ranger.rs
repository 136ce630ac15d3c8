//! LimitRanger: defaults and bounds of resources, per container, per pod and per claim.
//!
//! `with_defaults` and `violations` are pure; the plugin only finds the LimitRanges of the namespace.

use std::collections::BTreeMap;

use corten_meta::{Quantity, Status, Value};
use futures::future::BoxFuture;

use super::{Attributes, Operation, Plugin};

pub struct LimitRanger;

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.creates("", "pods") {
                for range in ranges(a) {
                    with_defaults(&mut a.object, &range);
                }
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let claim = a.operation != Operation::Delete && a.is("", "persistentvolumeclaims", "");
            if !claim && !a.creates("", "pods") {
                return Ok(());
            }
            let wrong: Vec<String> = ranges(a).iter().flat_map(|range| violations(&a.object, range, claim)).collect();
            match wrong.as_slice() {
                [] => Ok(()),
                [one] => Err(a.forbidden(one)),
                many => Err(a.forbidden(format!("[{}]", many.join(", ")))),
            }
        })
    }
}

fn ranges(a: &Attributes<'_>) -> Vec<Value> {
    let objects = a.target.server.cached_list("", "v1", "limitranges", a.target.namespace);
    objects.iter().map(|object| object.value()).collect()
}

fn items<'a>(range: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let kind = kind.to_owned();
    range
        .pointer("/spec/limits")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(move |item| item["type"] == kind.as_str())
}

/// Gives every container the defaults that it does not set.
fn with_defaults(pod: &mut Value, range: &Value) {
    let mut limits = serde_json::Map::new();
    let mut requests = serde_json::Map::new();
    for item in items(range, "Container") {
        limits.extend(item["default"].as_object().cloned().unwrap_or_default());
        requests.extend(item["defaultRequest"].as_object().cloned().unwrap_or_default());
    }
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for list in ["containers", "initContainers"] {
        let containers = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for (field, defaults) in [("limits", &limits), ("requests", &requests)] {
                for (name, value) in defaults {
                    let pointer = format!("/resources/{field}/{}", name.replace('~', "~0").replace('/', "~1"));
                    if container.pointer(&pointer).is_none() {
                        corten_meta::set(container, &pointer, value.clone());
                    }
                }
            }
        }
    }
}

type Amounts = BTreeMap<String, Quantity>;

fn amounts(value: Option<&Value>) -> Amounts {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?))).collect()
}

/// What breaks the bounds of a range.
fn violations(object: &Value, range: &Value, claim: bool) -> Vec<String> {
    if claim {
        let requests = amounts(object.pointer("/spec/resources/requests"));
        return items(range, "PersistentVolumeClaim")
            .flat_map(|item| check(item, "PersistentVolumeClaim", &requests, &requests))
            .collect();
    }
    let mut wrong = Vec::new();
    let (mut pod_limits, mut pod_requests) = (Amounts::new(), Amounts::new());
    for container in object.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten() {
        let limits = amounts(container.pointer("/resources/limits"));
        let requests = amounts(container.pointer("/resources/requests"));
        wrong.extend(items(range, "Container").flat_map(|item| check(item, "Container", &limits, &requests)));
        add(&mut pod_limits, limits);
        add(&mut pod_requests, requests);
    }
    wrong.extend(items(range, "Pod").flat_map(|item| check(item, "Pod", &pod_limits, &pod_requests)));
    wrong
}

fn add(sum: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        let total = match sum.remove(&name) {
            Some(before) => before + amount,
            None => amount,
        };
        sum.insert(name, total);
    }
}

fn check(item: &Value, kind: &str, limits: &Amounts, requests: &Amounts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, min) in amounts(item.get("min")) {
        match requests.get(&name) {
            None => wrong.push(format!("minimum {name} usage per {kind} is {min}.  No request is specified")),
            Some(request) if *request < min => {
                wrong.push(format!("minimum {name} usage per {kind} is {min}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (name, max) in amounts(item.get("max")) {
        let (word, actual) = if kind == "PersistentVolumeClaim" { ("request", requests) } else { ("limit", limits) };
        match actual.get(&name) {
            None => wrong.push(format!("maximum {name} usage per {kind} is {max}.  No {word} is specified")),
            Some(actual) if *actual > max => {
                wrong.push(format!("maximum {name} usage per {kind} is {max}, but {word} is {actual}"));
            }
            _ => {}
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range() -> Value {
        json!({ "spec": { "limits": [
            { "type": "Container", "default": { "cpu": "200m" }, "defaultRequest": { "cpu": "100m" }, "max": { "cpu": "500m" } },
            { "type": "Pod", "max": { "cpu": "600m" } } ] } })
    }

    fn pod(cpus: &[Option<&str>]) -> Value {
        let containers: Vec<Value> = cpus
            .iter()
            .map(|cpu| cpu.map_or(json!({}), |cpu| json!({ "resources": { "limits": { "cpu": cpu } } })))
            .collect();
        json!({ "spec": { "containers": containers } })
    }

    #[test]
    fn defaults_fill_and_bounds_hold() {
        let mut one = pod(&[None]);
        with_defaults(&mut one, &range());
        assert_eq!(
            one["spec"]["containers"][0]["resources"],
            json!({ "limits": { "cpu": "200m" }, "requests": { "cpu": "100m" } })
        );
        assert!(violations(&one, &range(), false).is_empty());
        let wrong = violations(&pod(&[Some("501m")]), &range(), false);
        assert_eq!(wrong, ["maximum cpu usage per Container is 500m, but limit is 501m"]);
        let wrong = violations(&pod(&[Some("400m"), Some("400m")]), &range(), false);
        assert_eq!(wrong, ["maximum cpu usage per Pod is 600m, but limit is 800m"]);
        let wrong = violations(&pod(&[None]), &range(), false);
        assert_eq!(wrong[0], "maximum cpu usage per Container is 500m.  No limit is specified");
    }
}
