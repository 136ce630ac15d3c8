//! RuntimeClass: sets a pod's overhead and scheduling constraints from its RuntimeClass.

use std::sync::Arc;

use corten_meta::quote::quote;
use corten_meta::{Object, Quantity, Status, Value};
use futures::future::BoxFuture;
use serde_json::json;

use super::attributes::Attributes;
use super::plugin::Plugin;

const GROUP: &str = "node.k8s.io";
const MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub struct RuntimeClass;

impl Plugin for RuntimeClass {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !a.creates("", "pods") {
                return Ok(());
            }
            let Some(class) = class_of(a).await? else { return Ok(()) };
            let class = class.value();
            let set = set_overhead(&mut a.object, &class).and_then(|()| set_scheduling(&mut a.object, &class));
            set.map_err(|why| a.forbidden(why))
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !a.creates("", "pods") {
                return Ok(());
            }
            let class = class_of(a).await?.map(|class| class.value());
            check_overhead(a.as_sent(), class.as_ref()).map_err(|why| a.forbidden(why))
        })
    }
}

/// Returns the pod's RuntimeClass; a pod whose class does not exist is refused.
async fn class_of(a: &Attributes<'_>) -> Result<Option<Arc<Object>>, Status> {
    let Some(name) = a.object.pointer("/spec/runtimeClassName").and_then(Value::as_str) else { return Ok(None) };
    let problems = corten_meta::names::path_segment_name(name);
    if !problems.is_empty() || name.is_empty() {
        // Upstream's client refuses to look up such a name, with an error that has no reason.
        let message = match name {
            "" => "resource name may not be empty".to_owned(),
            _ => format!("invalid resource name {name}: [{}]", problems.join(" "), name = quote(name)),
        };
        return Err(Status { code: 500, message, ..Status::default() });
    }
    let core = a.target.core;
    if let Some(class) = core.objects.cached(GROUP, "runtimeclasses", "", name) {
        return Ok(Some(class));
    }
    match core.objects.read(GROUP, "runtimeclasses", "", name).await? {
        Some(class) => Ok(Some(class)),
        None => Err(a.forbidden(format!("pod rejected: RuntimeClass {} not found", quote(name)))),
    }
}

fn set_overhead(pod: &mut Value, class: &Value) -> Result<(), String> {
    let Some(fixed) = class.pointer("/overhead/podFixed") else { return Ok(()) };
    let overhead =
        pod.pointer("/spec/overhead").filter(|overhead| overhead.as_object().is_some_and(|list| !list.is_empty()));
    if overhead.is_some_and(|overhead| !same_quantities(overhead, fixed)) {
        return Err(MISMATCH.to_owned());
    }
    corten_meta::set(pod, "/spec/overhead", fixed.clone());
    Ok(())
}

fn check_overhead(pod: &Value, class: Option<&Value>) -> Result<(), String> {
    let overhead = pod.pointer("/spec/overhead");
    match (overhead, class.and_then(|class| class.pointer("/overhead/podFixed"))) {
        (Some(overhead), Some(fixed)) if !same_quantities(overhead, fixed) => Err(MISMATCH.to_owned()),
        (None, Some(_)) => Err(MISMATCH.to_owned()),
        (Some(_), None) => {
            Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead".to_owned())
        }
        _ => Ok(()),
    }
}

/// Reports whether the quantities are equal, in any notation.
fn same_quantities(a: &Value, b: &Value) -> bool {
    let read = |list: &Value| -> Option<Vec<(String, Quantity)>> {
        let entries = list.as_object()?.iter();
        entries.map(|(name, string)| Some((name.clone(), Quantity::parse(string.as_str()?).ok()?))).collect()
    };
    read(a).is_some_and(|a| Some(a) == read(b))
}

/// Sets the node selector and the tolerations of the nodes that have the runtime.
fn set_scheduling(pod: &mut Value, class: &Value) -> Result<(), String> {
    let Some(scheduling) = class.get("scheduling") else { return Ok(()) };
    let wanted = scheduling["nodeSelector"].as_object().cloned().unwrap_or_default();
    let mut selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, value) in wanted {
        if let Some(own) = selector.get(&key).filter(|own| **own != value) {
            let value = value.as_str().unwrap_or_default();
            let own = own.as_str().unwrap_or_default();
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {own}"
            ));
        }
        selector.insert(key, value);
    }
    if !selector.is_empty() {
        corten_meta::set(pod, "/spec/nodeSelector", Value::Object(selector));
    }
    let more = scheduling["tolerations"].as_array().cloned().unwrap_or_default();
    let mut tolerations = pod.pointer("/spec/tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let new: Vec<Value> = more.into_iter().filter(|toleration| !tolerations.contains(toleration)).collect();
    if !new.is_empty() {
        tolerations.extend(new);
        corten_meta::set(pod, "/spec/tolerations", json!(tolerations));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_sets_overhead_and_refuses_another() {
        let class = json!({"overhead": {"podFixed": {"cpu": "10m", "memory": "1Mi"}}});
        let mut pod = json!({"spec": {}});
        set_overhead(&mut pod, &class).unwrap();
        assert_eq!(pod["spec"]["overhead"], class["overhead"]["podFixed"]);
        for (overhead, class, expected) in [
            (json!({"cpu": "0.01", "memory": "1024Ki"}), Some(&class), Ok(())),
            (json!({"cpu": "1"}), Some(&class), Err(MISMATCH)),
            (
                json!({"cpu": "1"}),
                None,
                Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"),
            ),
        ] {
            let pod = json!({"spec": {"overhead": overhead}});
            assert_eq!(check_overhead(&pod, class), expected.map_err(str::to_owned), "{pod}");
        }
        assert_eq!(check_overhead(&json!({"spec": {}}), None), Ok(()));
    }

    #[test]
    fn the_class_sets_the_scheduling_of_its_pods() {
        let toleration = json!({"key": "special", "operator": "Exists"});
        let class = json!({"scheduling": {"nodeSelector": {"runtime": "vm"}, "tolerations": [toleration]}});
        let mut pod = json!({"spec": {"nodeSelector": {"disk": "ssd"}}});
        set_scheduling(&mut pod, &class).unwrap();
        set_scheduling(&mut pod, &class).unwrap();
        let expected = json!({"nodeSelector": {"disk": "ssd", "runtime": "vm"}, "tolerations": [toleration]});
        assert_eq!(pod["spec"], expected);
        let mut other = json!({"spec": {"nodeSelector": {"runtime": "process"}}});
        assert_eq!(
            set_scheduling(&mut other, &class).unwrap_err(),
            "conflict: runtimeClass.scheduling.nodeSelector[runtime] = vm; pod.spec.nodeSelector[runtime] = process"
        );
    }
}
