//! The service controller: one load balancer of the cloud for each Service of type LoadBalancer.
//!
//! The finalizer is on the Service before its load balancer is made, and is removed after it was deleted. So no load
//! balancer is left behind, whenever this process ends. The name in the cloud is made of the Service's uid: a repeated
//! call finds what an earlier one made.

use corten_meta::Value;
use serde_json::json;

use super::{Action, Event, Kind};
use crate::nodes::targets;
use crate::objects::{key, list, string};
use crate::provider::{Annotation, Balancer, BalancerPort, BalancerStatus, Error, Ingress};

/// The condition of Services whose load balancer could not be made, or lacks a part, as the controller of addresses without a cloud has it.
const CONDITION: &str = "network.corten.dev/AddressAssigned";
/// The finalizer of Services with a load balancer.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Reports whether a Service wants a load balancer of the cloud. One of a class is another controller's.
pub fn wants_balancer(service: &Value) -> bool {
    string(service, "/spec/type") == "LoadBalancer"
        && string(service, "/spec/loadBalancerClass").is_empty()
        && service.pointer("/metadata/deletionTimestamp").is_none()
}

/// Returns the name of a Service's load balancer in the cloud, as upstream makes it.
pub fn balancer_name(service: &Value) -> String {
    let uid: String = string(service, "/metadata/uid").chars().filter(|character| *character != '-').collect();
    format!("a{uid}").chars().take(32).collect()
}

/// Returns the writes and calls for a Service.
pub fn reconcile(service: &Value, nodes: &[Value], provider: &str) -> Vec<Action> {
    match (wants_balancer(service), is_finalized(service)) {
        (true, is_finalized) => ensure(service, nodes, provider, is_finalized),
        (false, true) if string(service, "/spec/loadBalancerClass").is_empty() => delete(service),
        (false, _) => Vec::new(),
    }
}

fn ensure(service: &Value, nodes: &[Value], provider: &str, is_finalized: bool) -> Vec<Action> {
    let wanted = balancer(service, nodes, provider).map(Box::new).map_err(Error::Invalid);
    let mut actions = Vec::new();
    if wanted.is_ok() && !is_finalized {
        let all: Vec<&str> = finalizers(service).chain([FINALIZER]).collect();
        actions.push(patch_finalizers(service, &all, json!({})));
    }
    actions.push(Action::EnsureBalancer { wanted, service: Box::new(service.clone()) });
    actions
}

fn delete(service: &Value) -> Vec<Action> {
    let kept: Vec<&str> = finalizers(service).filter(|name| *name != FINALIZER).collect();
    let event = |reason, message: &str| Action::Event(Event::about(Kind::Service, service, false, reason, message));
    vec![
        event("DeletingLoadBalancer", "Deleting load balancer"),
        Action::DeleteBalancer { name: balancer_name(service) },
        patch_finalizers(service, &kept, json!({"status": {"loadBalancer": null}})),
        event("DeletedLoadBalancer", "Deleted load balancer"),
    ]
}

/// Returns the parts of a Service that its load balancer depends on.
pub fn inputs(service: &Value) -> [Option<Value>; 3] {
    ["/spec", "/metadata/annotations", "/metadata/deletionTimestamp"].map(|path| service.pointer(path).cloned())
}

/// Reports whether a Service has the finalizer of load balancers.
pub fn is_finalized(service: &Value) -> bool {
    finalizers(service).any(|name| name == FINALIZER)
}

fn finalizers(service: &Value) -> impl Iterator<Item = &str> {
    list(service, "/metadata/finalizers").filter_map(Value::as_str)
}

/// Returns a patch of the finalizers, and of more, through the status, as the role of the controller permits.
fn patch_finalizers(service: &Value, finalizers: &[&str], mut patch: Value) -> Action {
    corten_meta::set(&mut patch, "/metadata/finalizers", json!(finalizers));
    corten_meta::set(&mut patch, "/metadata/resourceVersion", service["metadata"]["resourceVersion"].clone());
    Action::Patch { kind: Kind::Service, key: key(service), patch, is_status: true }
}

/// Returns the load balancer that a Service asks for, or the fault of its spec in a sentence.
fn balancer(service: &Value, nodes: &[Value], provider: &str) -> Result<Balancer, String> {
    let is_local = string(service, "/spec/externalTrafficPolicy") == "Local";
    let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    let mut ports = Vec::new();
    for port in list(service, "/spec/ports") {
        let name = &port["port"];
        let node_port = number(&port["nodePort"]).filter(|number| *number > 0);
        ports.push(BalancerPort {
            name: port["name"].as_str().unwrap_or_default().to_owned(),
            protocol: port["protocol"].as_str().unwrap_or("TCP").to_owned(),
            port: number(name).ok_or_else(|| format!("{name} is no port"))?,
            node_port: node_port
                .ok_or_else(|| format!("the port {name} has no node port, which this cloud's load balancers need"))?,
        });
    }
    let requested = string(service, "/spec/loadBalancerIP");
    let requested_address = match requested {
        "" => None,
        text => Some(text.parse().map_err(|_| format!("spec.loadBalancerIP: {text:?} is no address"))?),
    };
    let prefix = format!("{provider}.");
    let annotations = service.pointer("/metadata/annotations").and_then(Value::as_object).into_iter().flatten();
    let is_known = |name: &str| {
        name.starts_with("service.beta.kubernetes.io/") || name.split('/').next().is_some_and(|at| at.contains(&prefix))
    };
    let annotations = annotations
        .filter(|(name, _)| is_known(name))
        .map(|(name, value)| Annotation { name: name.clone(), value: value.as_str().unwrap_or_default().to_owned() });
    Ok(Balancer {
        name: balancer_name(service),
        service: key(service),
        ports,
        nodes: targets(nodes, true),
        source_ranges: list(service, "/spec/loadBalancerSourceRanges")
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        health_check_port: is_local.then(|| number(&service["spec"]["healthCheckNodePort"])).flatten(),
        requested_address,
        annotations: annotations.collect(),
    })
}

/// Returns the condition of a Service after its load balancer was reconciled: with the sentences about parts that have no
/// effect, or with the error. `None` if it is there. A Service that never was without a load balancer, and has none of
/// these parts, has no condition. An answer that asks to wait changes nothing.
pub fn condition(service: &Value, outcome: Result<&[String], &Error>, now: &str) -> Option<Value> {
    let old = list(service, "/status/conditions").find(|one| one["type"] == CONDITION);
    let (status, reason, message) = match (outcome, old) {
        (Err(Error::Throttled { .. }), _) | (Ok([]), None) => return None,
        (Err(error), _) => ("False", "SyncLoadBalancerFailed", error.to_string()),
        (Ok(warnings), _) => ("True", "Assigned", warnings.join("; ")),
    };
    if old.is_some_and(|old| old["status"] == status && old["message"] == message) {
        return None;
    }
    let kept = old.filter(|old| old["status"] == status).map(|old| old["lastTransitionTime"].clone());
    let since = kept.unwrap_or_else(|| now.into());
    Some(
        json!({"type": CONDITION, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}),
    )
}

/// Returns the patch that writes the addresses of a load balancer into the status; `None` if they are there.
pub fn status_patch(service: &Value, status: &BalancerStatus) -> Option<Action> {
    let entry = |ingress: &Ingress| match ingress {
        Ingress::Ip { address, is_proxy } => {
            json!({"ip": address.to_string(), "ipMode": if *is_proxy { "Proxy" } else { "VIP" }})
        }
        Ingress::Hostname(name) => json!({"hostname": name}),
    };
    let wanted: Vec<Value> = status.ingress.iter().map(entry).collect();
    let current: Vec<Value> = list(service, "/status/loadBalancer/ingress").cloned().collect();
    if wanted == current {
        return None;
    }
    let uid = &service["metadata"]["uid"];
    let patch = json!({"metadata": {"uid": uid}, "status": {"loadBalancer": {"ingress": wanted}}});
    Some(Action::Patch { kind: Kind::Service, key: key(service), patch, is_status: true })
}
