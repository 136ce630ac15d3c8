//! What an object takes from a quota. Pure.

use std::collections::BTreeMap;

use corten_meta::{Quantity, Value};

/// Amounts by the name that a quota gives them.
pub type Amounts = BTreeMap<String, Quantity>;

/// Resources that a pod has by these names, too.
const PLAIN: &[&str] = &["cpu", "memory", "ephemeral-storage"];

/// Kinds of the core group that quotas also count by their bare name.
const COUNTED: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// The quantities of a JSON object.
pub fn amounts(value: Option<&Value>) -> Amounts {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?))).collect()
}

/// What one object of `plural` in `group` takes.
pub fn usage(group: &str, plural: &str, object: &Value) -> Amounts {
    let one = || amounts(Some(&serde_json::json!({ "n": 1 }))).remove("n").unwrap_or_default();
    let mut used = Amounts::new();
    if group.is_empty() && plural == "pods" && is_terminal(object) {
        return used;
    }
    let counted = if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") };
    used.insert(counted, one());
    if group.is_empty() && COUNTED.contains(&plural) {
        used.insert(plural.to_owned(), one());
    }
    match (group, plural) {
        ("", "pods") => used.extend(pod(object)),
        ("", "services") => used.extend(service(object)),
        ("", "persistentvolumeclaims") => used.extend(claim(object)),
        _ => {}
    }
    used
}

/// Adds `more` to `sum`.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_insert_with(Quantity::zero) += amount;
    }
}

fn is_terminal(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed")
}

fn pod(pod: &Value) -> Amounts {
    let mut used = Amounts::new();
    for (field, prefix) in [("requests", "requests."), ("limits", "limits.")] {
        for (name, amount) in pod_resources(pod, field) {
            if field == "requests" && PLAIN.contains(&name.as_str()) {
                used.insert(name.clone(), amount.clone());
            }
            used.insert(format!("{prefix}{name}"), amount);
        }
    }
    used
}

/// What the pod needs at its fullest: its containers and sidecars together, or its greediest init container.
fn pod_resources(pod: &Value, field: &str) -> Amounts {
    let list =
        |name: &str| pod.pointer(&format!("/spec/{name}")).and_then(Value::as_array).cloned().unwrap_or_default();
    let of = |container: &Value| amounts(container.pointer(&format!("/resources/{field}")));
    let mut total = Amounts::new();
    for container in list("containers") {
        add(&mut total, &of(&container));
    }
    for container in list("initContainers") {
        if container["restartPolicy"] == "Always" {
            add(&mut total, &of(&container));
            continue;
        }
        for (name, amount) in of(&container) {
            let slot = total.entry(name).or_insert_with(Quantity::zero);
            if *slot < amount {
                *slot = amount;
            }
        }
    }
    add(&mut total, &amounts(pod.pointer("/spec/overhead")));
    total
}

fn service(service: &Value) -> Amounts {
    let kind = service.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default();
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).map_or(0, Vec::len);
    let node_ports = match kind {
        "NodePort" => ports,
        "LoadBalancer" if service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)) => ports,
        _ => 0,
    };
    let balancers = usize::from(kind == "LoadBalancer");
    let numbers = serde_json::json!({ "services.nodeports": node_ports, "services.loadbalancers": balancers });
    amounts(Some(&numbers))
}

fn claim(claim: &Value) -> Amounts {
    let Some(storage) = amounts(claim.pointer("/spec/resources/requests")).remove("storage") else {
        return Amounts::new();
    };
    let mut used = Amounts::from([("requests.storage".to_owned(), storage.clone())]);
    if let Some(class) = claim.pointer("/spec/storageClassName").and_then(Value::as_str) {
        used.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage);
        let one = amounts(Some(&serde_json::json!({ "n": 1 }))).remove("n").unwrap_or_default();
        used.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
    }
    used
}

/// Whether a quota's scopes select the object; a quota with scopes is about pods only.
pub fn is_in_scope(quota: &Value, plural: &str, object: &Value) -> bool {
    let scopes = quota.pointer("/spec/scopes").and_then(Value::as_array).cloned().unwrap_or_default();
    let terms =
        quota.pointer("/spec/scopeSelector/matchExpressions").and_then(Value::as_array).cloned().unwrap_or_default();
    if scopes.is_empty() && terms.is_empty() {
        return true;
    }
    plural == "pods"
        && scopes.iter().all(|scope| matches_scope(scope.as_str().unwrap_or_default(), object))
        && terms.iter().all(|term| matches_term(term, object))
}

fn matches_scope(scope: &str, pod: &Value) -> bool {
    let terminating = pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some();
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).cloned().unwrap_or_default();
    let best_effort = containers
        .iter()
        .all(|c| ["requests", "limits"].iter().all(|f| amounts(c.pointer(&format!("/resources/{f}"))).is_empty()));
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        _ => false,
    }
}

fn matches_term(term: &Value, pod: &Value) -> bool {
    let scope = term["scopeName"].as_str().unwrap_or_default();
    if scope != "PriorityClass" {
        return matches_scope(scope, pod);
    }
    let class = pod.pointer("/spec/priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let named = term["values"].as_array().is_some_and(|values| values.iter().any(|v| v == class));
    match term["operator"].as_str().unwrap_or_default() {
        "In" => named,
        "NotIn" => !named,
        "Exists" => !class.is_empty(),
        "DoesNotExist" => class.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn show(amounts: &Amounts) -> String {
        amounts.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn objects_take_what_they_ask_for() {
        let pod = json!({ "spec": {
            "containers": [{ "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "1" } } }, { "resources": { "requests": { "cpu": "200m" } } }],
            "initContainers": [{ "resources": { "requests": { "cpu": "500m", "memory": "1Mi" } } }] } });
        assert_eq!(
            show(&usage("", "pods", &pod)),
            "count/pods=1 cpu=500m limits.cpu=1 memory=1Mi pods=1 requests.cpu=500m requests.memory=1Mi"
        );
        let done = json!({ "status": { "phase": "Failed" } });
        assert_eq!(show(&usage("", "pods", &done)), "");
        let service = json!({ "spec": { "type": "NodePort", "ports": [{}, {}] } });
        assert_eq!(
            show(&usage("", "services", &service)),
            "count/services=1 services=1 services.loadbalancers=0 services.nodeports=2"
        );
        assert_eq!(show(&usage("apps", "deployments", &json!({}))), "count/deployments.apps=1");
    }

    #[test]
    fn scopes_select_pods() {
        let quota = |scope: &str| json!({ "spec": { "scopes": [scope] } });
        let pod = json!({ "spec": { "containers": [{}], "activeDeadlineSeconds": 5 } });
        assert!(is_in_scope(&quota("Terminating"), "pods", &pod) && is_in_scope(&quota("BestEffort"), "pods", &pod));
        assert!(
            !is_in_scope(&quota("NotBestEffort"), "pods", &pod)
                && !is_in_scope(&quota("Terminating"), "services", &pod)
        );
        let by_class = json!({ "spec": { "scopeSelector": { "matchExpressions": [{ "scopeName": "PriorityClass", "operator": "In", "values": ["high"] }] } } });
        assert!(!is_in_scope(&by_class, "pods", &pod));
        assert!(is_in_scope(&by_class, "pods", &json!({ "spec": { "priorityClassName": "high" } })));
    }
}
