//! Gateways with their ListenerSets: which are ours, their listeners, and their statuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_meta::{Key, Selector, Value};
use corten_routing::ServerCertificate;
use serde_json::json;

use super::certificates::{self, Problem};
use super::listeners::{self, Context, Listener};
use super::references::From;
use super::{References, Resolved, WantedStatus, addresses, classes};
use crate::crds::GROUP;
use crate::objects::{GatewaySpec, ListenerSetSpec, Metadata, Namespaces, Objects, Resource};
use crate::status::{self, Condition, conditions};

/// A Gateway of one of our classes.
#[derive(Debug)]
pub struct Gateway<'a> {
    pub object: &'a Resource<GatewaySpec>,
    /// An error that no listener can outweigh, for the condition Accepted.
    pub unacceptable: Option<Problem>,
    /// The Gateway's own listeners, then those of its ListenerSets by their age.
    pub listeners: Vec<Listener<'a>>,
    pub sets: Vec<Set<'a>>,
    /// The certificate that backends see.
    pub client_certificate: Result<Option<Arc<ServerCertificate>>, Problem>,
    /// The Secrets and ConfigMaps that its listeners name.
    pub references: References,
}

/// A ListenerSet of a Gateway.
#[derive(Debug)]
pub struct Set<'a> {
    pub object: &'a Resource<ListenerSetSpec>,
    /// Whether the Gateway allows listeners of the set's namespace.
    pub allowed: bool,
}

impl Gateway<'_> {
    pub fn key(&self) -> Key {
        self.object.metadata.key()
    }

    /// Reports whether the Gateway is accepted: a Gateway without a valid listener is not.
    pub fn is_accepted(&self) -> bool {
        self.unacceptable.is_none() && self.listeners.iter().any(Listener::is_valid)
    }

    /// Returns the listeners of the Gateway itself (`None`) or of one of its ListenerSets.
    pub fn listeners_of(&self, set: Option<usize>) -> impl Iterator<Item = &Listener<'_>> {
        self.listeners.iter().filter(move |listener| listener.set == set)
    }
}

/// Returns the Gateways of our classes with all of their listeners.
pub fn collect<'a>(objects: &'a Objects, read: &mut References) -> Vec<Gateway<'a>> {
    let is_ours = |name: &str| {
        let class = objects.classes.get(&Key::new(String::new(), name.to_owned()));
        class.is_some_and(|class| classes::is_ours(class))
    };
    let mut sets: BTreeMap<Key, Vec<&Resource<ListenerSetSpec>>> = BTreeMap::new();
    for set in objects.listener_sets.values() {
        let parent = &set.spec.parent_ref;
        if (parent.kind.is_empty() || parent.kind == "Gateway") && (parent.group.is_empty() || parent.group == GROUP) {
            let namespace = parent.namespace.clone().unwrap_or_else(|| set.metadata.namespace.clone());
            sets.entry(Key::new(namespace, parent.name.clone())).or_default().push(set);
        }
    }
    let ours = objects.gateways.values().filter(|gateway| is_ours(&gateway.spec.gateway_class_name));
    ours.map(|gateway| {
        let mut own = sets.remove(&gateway.metadata.key()).unwrap_or_default();
        own.sort_by_key(|set| set.metadata.age());
        let gateway = read_gateway(objects, gateway, &own);
        read.extend(&gateway.references);
        gateway
    })
    .collect()
}

fn read_gateway<'a>(
    objects: &'a Objects,
    gateway: &'a Resource<GatewaySpec>,
    own: &[&'a Resource<ListenerSetSpec>],
) -> Gateway<'a> {
    let mut references = References::default();
    let read = &mut references;
    let from = From::gateway_api("Gateway", &gateway.metadata.namespace);
    let context = Context { objects, gateway, set: None, from };
    let mut listeners: Vec<Listener<'a>> =
        gateway.spec.listeners.iter().map(|spec| listeners::read(&context, spec, read)).collect();
    let mut sets = Vec::new();
    for set in own {
        let namespaces = &gateway.spec.allowed_listeners.namespaces;
        let allowed = allows(objects, namespaces, &gateway.metadata.namespace, &set.metadata.namespace);
        if allowed {
            let from = From::gateway_api("ListenerSet", &set.metadata.namespace);
            let context = Context { objects, gateway, set: Some(sets.len()), from };
            listeners.extend(set.spec.listeners.iter().map(|spec| listeners::read(&context, spec, read)));
        }
        sets.push(Set { object: set, allowed });
    }
    listeners::find_conflicts(&mut listeners);
    let reference = gateway.spec.tls.backend.client_certificate_ref.as_ref();
    let client_certificate = reference
        .map(|to| certificates::server_certificate(objects, from, to, "InvalidClientCertificateRef", read))
        .transpose();
    Gateway { object: gateway, unacceptable: unacceptable(gateway), listeners, sets, client_certificate, references }
}

fn unacceptable(gateway: &Resource<GatewaySpec>) -> Option<Problem> {
    if let Some(reference) = &gateway.spec.infrastructure.parameters_ref {
        let message = format!("{} {} is no parameter of this controller", reference.kind, reference.name);
        return Some(Problem::new("InvalidParameters", message));
    }
    let unsupported = gateway.spec.addresses.iter().find(|address| address.type_ != "IPAddress")?;
    let message = format!("addresses of type {} are not supported", unsupported.type_);
    Some(Problem::new("UnsupportedAddress", message))
}

/// Reports whether a namespace is among those that may attach something to an object of namespace `own`.
pub fn allows(objects: &Objects, namespaces: &Namespaces, own: &str, other: &str) -> bool {
    match namespaces.from.as_str() {
        "All" => true,
        "Same" => own == other,
        "Selector" => {
            let selector = Selector::from_label_selector(&namespaces.selector);
            let namespace = objects.namespaces.get(&Key::new(String::new(), other.to_owned()));
            match (selector, namespace) {
                (Ok(selector), Some(namespace)) => selector.matches(&namespace.metadata.labels),
                _ => false,
            }
        }
        _ => false,
    }
}

/// Adds the statuses and Services of Gateways, and the statuses of ListenerSets.
pub fn statuses(objects: &Objects, gateways: &[Gateway<'_>], now: &str, resolved: &mut Resolved) {
    for gateway in gateways {
        let programmed = programmed(objects, gateway);
        let status = gateway_status(objects, gateway, &programmed, now);
        resolved.statuses.push(WantedStatus { plural: "gateways", key: gateway.key(), status });
        for (number, set) in gateway.sets.iter().enumerate() {
            let status = set_status(gateway, set, number, &programmed, now);
            resolved.statuses.push(WantedStatus { plural: "listenersets", key: set.object.metadata.key(), status });
        }
    }
}

/// Returns the condition Programmed of a Gateway.
fn programmed(objects: &Objects, gateway: &Gateway<'_>) -> Condition {
    let no = |reason, message: &str| Condition::is_false("Programmed", reason, message);
    if !gateway.is_accepted() {
        return no("Invalid", "the Gateway is not accepted");
    }
    match addresses::assigned(objects, gateway) {
        Ok(_) => {}
        Err(problem) => return no(problem.reason, &problem.message),
    }
    if objects.nodes.is_empty() {
        return no("NoResources", "no node serves Gateways");
    }
    let generation = gateway.object.metadata.generation;
    let key = gateway.key();
    let late = objects.nodes.iter().find(|(_, node)| node.serves.get(&key).is_none_or(|one| *one < generation));
    match late {
        Some((name, _)) => no("Pending", &format!("node {name} does not serve this generation yet")),
        None => Condition::is_true("Programmed", "Programmed", "all nodes serve the Gateway"),
    }
}

fn gateway_status(objects: &Objects, gateway: &Gateway<'_>, programmed: &Condition, now: &str) -> Value {
    let object = gateway.object;
    let all = vec![accepted(gateway), programmed.clone(), resolved_refs(gateway)];
    let insecure = gateway
        .listeners
        .iter()
        .any(|listener| listener.client_validation.as_ref().is_some_and(|validation| validation.optional));
    let insecure = insecure.then(|| {
        let message = "connections without a valid client certificate are let through";
        Condition::is_true("InsecureFrontendValidationMode", "ConfigurationChanged", message)
    });
    let all: Vec<Condition> = all.into_iter().chain(insecure).collect();
    let mut status = json!({
        "conditions": conditions(&all, object.metadata.generation, &object.status["conditions"], now),
        "listeners": listener_statuses(gateway, None, &object.metadata, &object.status, programmed, now),
        "attachedListenerSets": (0..gateway.sets.len()).filter(|number| is_attached(gateway, *number)).count(),
    });
    let addresses = addresses::assigned(objects, gateway).unwrap_or_default();
    let entry = |address: &std::net::IpAddr| json!({"type": "IPAddress", "value": address.to_string()});
    status["addresses"] = addresses.iter().map(entry).collect();
    status
}

fn accepted(gateway: &Gateway<'_>) -> Condition {
    if let Some(problem) = &gateway.unacceptable {
        return Condition::is_false("Accepted", problem.reason, problem.message.clone());
    }
    let own = || gateway.listeners_of(None);
    if own().all(Listener::is_valid) {
        return Condition::is_true("Accepted", "Accepted", "the Gateway is accepted");
    }
    let message = "not all listeners are valid";
    let status = gateway.listeners.iter().any(Listener::is_valid);
    Condition { type_: "Accepted", status, reason: "ListenersNotValid", message: message.to_owned() }
}

fn resolved_refs(gateway: &Gateway<'_>) -> Condition {
    match &gateway.client_certificate {
        Err(problem) => Condition::is_false("ResolvedRefs", problem.reason, problem.message.clone()),
        Ok(_) if gateway.listeners_of(None).any(|listener| listener.unresolved.is_some()) => {
            Condition::is_false("ResolvedRefs", "ListenersNotResolved", "references of listeners cannot be resolved")
        }
        Ok(_) => Condition::is_true("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
    }
}

/// Returns the statuses of the listeners of one object.
fn listener_statuses(
    gateway: &Gateway<'_>,
    set: Option<usize>,
    metadata: &Metadata,
    current: &Value,
    programmed: &Condition,
    now: &str,
) -> Value {
    let status = |listener: &Listener<'_>| {
        let name = json!(listener.spec.name);
        let current = status::find(&current["listeners"], &[("name", &name)]);
        let all = listener_conditions(listener, programmed);
        let kind = |kind: &&str| json!({"group": GROUP, "kind": kind});
        json!({
            "name": name,
            "attachedRoutes": listener.attached,
            "supportedKinds": listener.kinds.iter().map(kind).collect::<Vec<_>>(),
            "conditions": conditions(&all, metadata.generation, &current["conditions"], now),
        })
    };
    gateway.listeners_of(set).map(status).collect()
}

fn listener_conditions(listener: &Listener<'_>, programmed: &Condition) -> Vec<Condition> {
    let resolved = match &listener.unresolved {
        None => Condition::is_true("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        Some(problem) => Condition::is_false("ResolvedRefs", problem.reason, problem.message.clone()),
    };
    if let Some(reason) = listener.conflict {
        let message = "a listener of higher precedence has this port";
        return vec![
            Condition::is_false("Accepted", reason, message),
            Condition::is_true("Conflicted", reason, message),
            resolved,
            Condition::is_false("Programmed", reason, message),
        ];
    }
    let accepted = match &listener.unacceptable {
        None => Condition::is_true("Accepted", "Accepted", "the listener is accepted"),
        Some(problem) => Condition::is_false("Accepted", problem.reason, problem.message.clone()),
    };
    let programmed = match (listener.is_valid(), programmed.status) {
        (true, true) => Condition::is_true("Programmed", "Programmed", "all nodes serve the listener"),
        (true, false) => Condition::is_false("Programmed", "Pending", programmed.message.clone()),
        (false, _) => Condition::is_false("Programmed", "Invalid", "the listener is not valid"),
    };
    let conflicted = Condition::is_false("Conflicted", "NoConflicts", "no other listener conflicts");
    vec![accepted, conflicted, resolved, programmed]
}

/// Reports whether a ListenerSet is allowed and has a valid listener.
fn is_attached(gateway: &Gateway<'_>, number: usize) -> bool {
    let allowed = gateway.sets.get(number).is_some_and(|set| set.allowed);
    gateway.unacceptable.is_none() && allowed && gateway.listeners_of(Some(number)).any(Listener::is_valid)
}

fn set_status(gateway: &Gateway<'_>, set: &Set<'_>, number: usize, programmed: &Condition, now: &str) -> Value {
    let refuse = |reason: &'static str, message: &str| {
        vec![Condition::is_false("Accepted", reason, message), Condition::is_false("Programmed", reason, message)]
    };
    let all = if !set.allowed {
        refuse("NotAllowed", "the Gateway does not allow listeners of this namespace")
    } else if gateway.unacceptable.is_some() {
        refuse("ParentNotAccepted", "the Gateway is not accepted")
    } else if !is_attached(gateway, number) {
        refuse("ListenersNotValid", "no listener is valid")
    } else {
        let reason = match gateway.listeners_of(Some(number)).all(Listener::is_valid) {
            true => "Accepted",
            false => "ListenersNotValid",
        };
        let programmed = match programmed.status {
            true => programmed.clone(),
            false => Condition::is_false("Programmed", "Pending", programmed.message.clone()),
        };
        vec![Condition::is_true("Accepted", reason, "the listeners are attached to the Gateway"), programmed]
    };
    let object = set.object;
    json!({
        "conditions": conditions(&all, object.metadata.generation, &object.status["conditions"], now),
        "listeners": listener_statuses(gateway, Some(number), &object.metadata, &object.status, programmed, now),
    })
}
