//! LimitRanger: defaults and bounds of resources, per container, per pod and per claim.
//!
//! `with_defaults` and `violations` are pure; the plugin only finds the LimitRanges of the namespace.

use corten_api::quota::{ResourceList, pod_sum, resource_list};
use corten_meta::field::aggregate;
use corten_meta::quantity::{MAX_MILLI_VALUE, Quantity};
use corten_meta::{Status, Value};
use futures::future::BoxFuture;
use serde_json::Map;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

/// The pod's annotation that lists the defaults that LimitRanger set.
const SET: &str = "/metadata/annotations/kubernetes.io~1limit-ranger";

pub struct LimitRanger;

impl Plugin for LimitRanger {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if sizes_pod(a) && !is_being_deleted(a) {
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
            if !claim && !sizes_pod(a) || is_being_deleted(a) {
                return Ok(());
            }
            // The error names the first LimitRange that the object violates, with all its violations.
            for range in ranges(a) {
                let wrong = violations(&a.object, &range, claim);
                if !wrong.is_empty() {
                    return Err(a.forbidden(aggregate(&wrong).unwrap_or_default()));
                }
            }
            Ok(())
        })
    }
}

/// Reports whether the write sets the resources of containers: the creation of a pod, or a resize.
fn sizes_pod(a: &Attributes<'_>) -> bool {
    a.creates("", "pods") || a.operation == Operation::Update && a.is("", "pods", "resize")
}

fn is_being_deleted(a: &Attributes<'_>) -> bool {
    a.old.as_ref().is_some_and(|old| old.pointer("/metadata/deletionTimestamp").is_some())
}

fn ranges(a: &Attributes<'_>) -> Vec<Value> {
    let objects = a.target.core.objects.cached_list("", "limitranges", a.target.namespace);
    objects.iter().map(|object| object.value()).collect()
}

fn items<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(list).and_then(Value::as_array).into_iter().flatten()
}

/// Sets the defaults that a container lacks, and lists them in the pod's annotation.
fn with_defaults(pod: &mut Value, range: &Value) {
    let mut limits = Map::new();
    let mut requests = Map::new();
    for item in items(range, "/spec/limits").filter(|item| item["type"] == "Container") {
        limits.extend(item["default"].as_object().cloned().unwrap_or_default());
        requests.extend(item["defaultRequest"].as_object().cloned().unwrap_or_default());
    }
    let mut set = Vec::new();
    for (list, role) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for (field, word, defaults) in [("requests", "request", &requests), ("limits", "limit", &limits)] {
                let set_by_default = with_missing(container, field, defaults);
                if !set_by_default.is_empty() {
                    let name = container["name"].as_str().unwrap_or_default();
                    set.push(format!("{} {word} for {role} {name}", set_by_default.join(", ")));
                }
            }
        }
    }
    if !set.is_empty() {
        corten_meta::set(pod, SET, format!("LimitRanger plugin set: {}", set.join("; ")).into());
    }
}

/// Adds the defaults that a list of resources lacks, and returns their names.
fn with_missing(container: &mut Value, field: &str, defaults: &Map<String, Value>) -> Vec<String> {
    let mut set_by_default = Vec::new();
    for (name, value) in defaults {
        let pointer = format!("/resources/{field}/{}", name.replace('~', "~0").replace('/', "~1"));
        if container.pointer(&pointer).is_none() {
            corten_meta::set(container, &pointer, value.clone());
            set_by_default.push(name.clone());
        }
    }
    set_by_default.sort_unstable();
    set_by_default
}

fn violations(object: &Value, range: &Value, claim: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for item in items(range, "/spec/limits") {
        match item["type"].as_str().unwrap_or_default() {
            kind @ "PersistentVolumeClaim" if claim => {
                check_claim(&mut wrong, item, kind, &resource_list(object.pointer("/spec/resources/requests")));
            }
            kind @ "Container" if !claim => {
                for container in items(object, "/spec/containers").chain(items(object, "/spec/initContainers")) {
                    let requests = resource_list(container.pointer("/resources/requests"));
                    check(&mut wrong, item, kind, &requests, &resource_list(container.pointer("/resources/limits")));
                }
            }
            kind @ "Pod" if !claim => {
                check(&mut wrong, item, kind, &pod_sum(object, "requests"), &pod_sum(object, "limits"));
            }
            _ => {}
        }
    }
    wrong
}

/// Checks the requests of a claim; its limits do not count.
fn check_claim(wrong: &mut Vec<String>, item: &Value, kind: &str, requests: &ResourceList) {
    for (name, min) in resource_list(item.get("min")) {
        wrong.extend(too_little(&name, kind, &min, requests.get(&name), None));
    }
    for (name, max) in resource_list(item.get("max")) {
        let bound = format!("maximum {name} usage per {kind} is {max}");
        let [requested, _, most] = counted(requests.get(&name), None, &max);
        match requests.get(&name) {
            None => wrong.push(format!("{bound}.  No request is specified")),
            Some(request) if requested > most => wrong.push(format!("{bound}, but request is {request}")),
            Some(_) => {}
        }
    }
}

fn check(wrong: &mut Vec<String>, item: &Value, kind: &str, requests: &ResourceList, limits: &ResourceList) {
    for (name, min) in resource_list(item.get("min")) {
        wrong.extend(too_little(&name, kind, &min, requests.get(&name), limits.get(&name)));
    }
    for (name, max) in resource_list(item.get("max")) {
        wrong.extend(too_much(&name, kind, &max, requests.get(&name), limits.get(&name)));
    }
    for (name, ratio) in resource_list(item.get("maxLimitRequestRatio")) {
        wrong.extend(ratio_too_high(&name, kind, &ratio, requests.get(&name), limits.get(&name)));
    }
}

type RequestOrLimit<'a> = Option<&'a Quantity>;

/// Converts a request, a limit and their bound to integers as upstream does: to thousandths unless one of them is too
/// big.
fn counted(request: RequestOrLimit, limit: RequestOrLimit, bound: &Quantity) -> [i64; 3] {
    let nothing = Quantity::zero();
    let quantities = [request.unwrap_or(&nothing), limit.unwrap_or(&nothing), bound];
    match quantities.iter().all(|quantity| quantity.value() <= MAX_MILLI_VALUE) {
        true => quantities.map(Quantity::milli_value),
        false => quantities.map(Quantity::value),
    }
}

fn too_little(
    name: &str,
    kind: &str,
    min: &Quantity,
    request: RequestOrLimit,
    limit: RequestOrLimit,
) -> Option<String> {
    let bound = format!("minimum {name} usage per {kind} is {min}");
    let [requested, limited, least] = counted(request, limit, min);
    match (request, limit) {
        (None, _) => Some(format!("{bound}.  No request is specified")),
        (Some(request), _) if requested < least => Some(format!("{bound}, but request is {request}")),
        (_, Some(limit)) if limited < least => Some(format!("{bound}, but limit is {limit}")),
        _ => None,
    }
}

fn too_much(name: &str, kind: &str, max: &Quantity, request: RequestOrLimit, limit: RequestOrLimit) -> Option<String> {
    let bound = format!("maximum {name} usage per {kind} is {max}");
    let [requested, limited, most] = counted(request, limit, max);
    match (limit, request) {
        (None, _) => Some(format!("{bound}.  No limit is specified")),
        (Some(limit), _) if limited > most => Some(format!("{bound}, but limit is {limit}")),
        (_, Some(request)) if requested > most => Some(format!("{bound}, but request is {request}")),
        _ => None,
    }
}

fn ratio_too_high(
    name: &str,
    kind: &str,
    most: &Quantity,
    request: RequestOrLimit,
    limit: RequestOrLimit,
) -> Option<String> {
    let bound = format!("{name} max limit to request ratio per {kind} is {most}");
    let [requested, limited, _] = counted(request, limit, most);
    if requested == 0 {
        return Some(format!("{bound}, but no request is specified or request is 0"));
    }
    if limited == 0 {
        return Some(format!("{bound}, but no limit is specified or limit is 0"));
    }
    let ratio = limited as f64 / requested as f64;
    let is_too_far = match most.value() <= MAX_MILLI_VALUE {
        true => ratio * 1000.0 > most.milli_value() as f64,
        false => ratio > most.value() as f64,
    };
    is_too_far.then(|| format!("{bound}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(items: Value) -> Value {
        json!({ "spec": { "limits": items } })
    }

    fn pod(containers: Value) -> Value {
        json!({ "spec": { "containers": containers } })
    }

    #[test]
    fn defaults_are_set_where_absent_and_listed_in_the_annotation() {
        let range = range(json!([{ "type": "Container", "default": { "memory": "64Mi", "cpu": "200m" },
            "defaultRequest": { "cpu": "100m" } }]));
        let mut one =
            pod(json!([{ "name": "a" }, { "name": "b", "resources": { "limits": { "cpu": "1", "memory": "1" } } }]));
        one["spec"]["initContainers"] = json!([{ "name": "i", "resources": { "requests": { "cpu": "1" } } }]);
        with_defaults(&mut one, &range);
        assert_eq!(
            one["spec"]["containers"][0]["resources"],
            json!({ "limits": { "cpu": "200m", "memory": "64Mi" }, "requests": { "cpu": "100m" } })
        );
        let annotation = "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; \
            cpu request for container b; cpu, memory limit for init container i";
        assert_eq!(one.pointer(SET), Some(&json!(annotation)));
        let before = one.clone();
        with_defaults(&mut one, &range);
        assert_eq!(one, before, "who has all is not touched");
    }

    #[test]
    fn bounds_hold_for_containers_pods_and_claims() {
        let sized = |requests: Value, limits: Value| json!({ "resources": { "requests": requests, "limits": limits } });
        let cpu = |quantity: &str| json!({ "cpu": quantity });
        let bounds = |kind: &str, bounds: Value| {
            let mut item = bounds;
            item["type"] = kind.into();
            range(json!([item]))
        };
        let container = |item: Value| bounds("Container", item);
        let one = |requests: Value, limits: Value| pod(json!([sized(requests, limits)]));
        for (pod, range, wanted) in [
            (one(cpu("1"), cpu("1")), container(json!({ "max": { "cpu": "1" }, "min": { "cpu": "1" } })), None),
            (
                one(json!({}), cpu("2")),
                container(json!({ "max": { "cpu": "1" } })),
                Some("maximum cpu usage per Container is 1, but limit is 2"),
            ),
            (
                one(cpu("2"), cpu("1")),
                container(json!({ "max": { "cpu": "1" } })),
                Some("maximum cpu usage per Container is 1, but request is 2"),
            ),
            (
                one(json!({}), json!({})),
                container(json!({ "max": { "cpu": "1" } })),
                Some("maximum cpu usage per Container is 1.  No limit is specified"),
            ),
            (
                one(cpu("2"), cpu("1")),
                container(json!({ "min": { "cpu": "2" } })),
                Some("minimum cpu usage per Container is 2, but limit is 1"),
            ),
            (
                one(cpu("1"), cpu("3")),
                container(json!({ "maxLimitRequestRatio": { "cpu": "2" } })),
                Some("cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"),
            ),
            (
                one(cpu("1"), json!({})),
                container(json!({ "maxLimitRequestRatio": { "cpu": "2" } })),
                Some("cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0"),
            ),
            (
                pod(json!([sized(cpu("400m"), cpu("400m")), sized(cpu("400m"), cpu("400m"))])),
                bounds("Pod", json!({ "max": { "cpu": "600m" } })),
                Some("maximum cpu usage per Pod is 600m, but limit is 800m"),
            ),
        ] {
            assert_eq!(violations(&pod, &range, false).first().map(String::as_str), wanted, "{pod} {range}");
        }
        let claim = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
        let range = bounds("PersistentVolumeClaim", json!({ "max": { "storage": "1Gi" } }));
        assert_eq!(
            violations(&claim, &range, true),
            ["maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"]
        );
    }

    #[test]
    fn an_init_container_is_bounded_too() {
        let mut pod = pod(json!([]));
        pod["spec"]["initContainers"] = json!([{ "resources": { "limits": { "cpu": "2" } } }]);
        let range = range(json!([{ "type": "Container", "max": { "cpu": "1" } }]));
        assert_eq!(violations(&pod, &range, false), ["maximum cpu usage per Container is 1, but limit is 2"]);
    }
}
