//! NetworkPolicies on one connection: which of them isolate an end of it, and whether one of their rules allows it.
//!
//! It decides by upstream's rules alone: a pod that a policy selects is isolated in the policy's directions, and a
//! connection passes if one rule of any policy that isolates it allows the connection.

use std::collections::BTreeMap;
use std::net::IpAddr;

use corten_meta::{Selector, Value};

use crate::objects::{items, text};

/// One end of a connection: a pod, or an address outside of the cluster.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// `namespace/name` of the pod, or the address.
    pub shown: String,
    pub namespace: String,
    pub namespace_labels: BTreeMap<String, String>,
    /// The pod; null for an address.
    pub pod: Value,
    pub addresses: Vec<IpAddr>,
}

/// The port of the receiving end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    pub number: u16,
    pub protocol: String,
}

/// The direction in which policies isolate a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ingress,
    Egress,
}

/// The verdict of the policies of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// The policy with this name has a rule that allows the connection.
    Allowed(String),
    /// The policies that isolate the pod; none of their rules allows the connection, for these reasons.
    Dropped { policies: Vec<String>, reasons: Vec<String> },
}

impl End {
    fn labels(&self) -> BTreeMap<String, String> {
        corten_meta::labels(&self.pod)
    }

    /// Reports whether policies apply to the end: it is a pod with a network of its own.
    fn is_selectable(&self) -> bool {
        self.pod.is_object() && self.pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) != Some(true)
    }
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "Ingress",
            Direction::Egress => "Egress",
        }
    }

    fn rules(self) -> &'static str {
        match self {
            Direction::Ingress => "/spec/ingress",
            Direction::Egress => "/spec/egress",
        }
    }

    fn peers(self) -> &'static str {
        match self {
            Direction::Ingress => "/from",
            Direction::Egress => "/to",
        }
    }
}

/// Decides on a connection from or to `own` by the policies of its namespace. `target` is the end that has the port.
pub fn decide(policies: &[Value], direction: Direction, own: &End, other: &End, target: &End, port: &Port) -> Verdict {
    let mut isolating = Vec::new();
    let mut reasons = Vec::new();
    for policy in policies.iter().filter(|policy| isolates(policy, direction, own)) {
        let name = corten_meta::name(policy).to_owned();
        let rules: Vec<&Value> = items(policy, direction.rules()).collect();
        if rules.is_empty() {
            reasons.push(format!("{name} has no {} rule: it allows nothing", direction.name().to_lowercase()));
        }
        for (number, rule) in rules.into_iter().enumerate() {
            match refusal(rule, direction, own, other, target, port) {
                None => return Verdict::Allowed(name),
                Some(reason) => reasons.push(format!("{name}, rule {}: {reason}", number + 1)),
            }
        }
        isolating.push(name);
    }
    match isolating.is_empty() {
        true => Verdict::NotIsolated,
        false => Verdict::Dropped { policies: isolating, reasons },
    }
}

fn isolates(policy: &Value, direction: Direction, own: &End) -> bool {
    if !own.is_selectable() || corten_meta::namespace(policy) != own.namespace {
        return false;
    }
    let types: Vec<&str> = items(policy, "/spec/policyTypes").filter_map(Value::as_str).collect();
    let is_of_direction = match (types.is_empty(), direction) {
        (true, Direction::Ingress) => true,
        (true, Direction::Egress) => policy.pointer("/spec/egress").is_some(),
        (false, direction) => types.contains(&direction.name()),
    };
    is_of_direction && selects(policy.pointer("/spec/podSelector"), &own.labels())
}

/// Reports whether a LabelSelector matches; an absent one matches everything.
fn selects(selector: Option<&Value>, labels: &BTreeMap<String, String>) -> bool {
    match selector {
        None => true,
        Some(selector) => Selector::from_label_selector(selector).is_ok_and(|selector| selector.matches(labels)),
    }
}

/// Returns the reason why a rule does not allow the connection; none if it does.
fn refusal(rule: &Value, direction: Direction, own: &End, other: &End, target: &End, port: &Port) -> Option<String> {
    let peers: Vec<&Value> = items(rule, direction.peers()).collect();
    let ports: Vec<&Value> = items(rule, "/ports").collect();
    if !peers.is_empty() && !peers.iter().any(|peer| matches_peer(peer, own, other)) {
        let shown: Vec<String> = peers.iter().map(|peer| show_peer(peer)).collect();
        return Some(format!("{} is none of {}", other.shown, shown.join("; ")));
    }
    if !ports.is_empty() && !ports.iter().any(|one| matches_port(one, target, port)) {
        let shown: Vec<String> = ports.iter().map(|one| show_port(one)).collect();
        return Some(format!("port {}/{} is none of {}", port.number, port.protocol, shown.join(", ")));
    }
    None
}

fn matches_peer(peer: &Value, own: &End, other: &End) -> bool {
    if let Some(block) = peer.get("ipBlock") {
        let except: Vec<&str> = items(block, "/except").filter_map(Value::as_str).collect();
        return other.addresses.iter().any(|address| {
            is_in(*address, text(block, "/cidr")) && !except.iter().any(|range| is_in(*address, range))
        });
    }
    if !other.is_selectable() {
        return false;
    }
    let is_namespace = match peer.get("namespaceSelector") {
        None => own.namespace == other.namespace,
        selector => selects(selector, &other.namespace_labels),
    };
    is_namespace && selects(peer.get("podSelector"), &other.labels())
}

/// Reports whether an address is in a CIDR.
fn is_in(address: IpAddr, cidr: &str) -> bool {
    let Some((base, length)) = cidr.split_once('/') else { return false };
    let (Ok(base), Ok(length)) = (base.parse::<IpAddr>(), length.parse::<u32>()) else { return false };
    let prefix = |bits: u128, width: u32| bits.checked_shr(width.saturating_sub(length)).unwrap_or(0);
    match (address, base) {
        (IpAddr::V4(a), IpAddr::V4(b)) => prefix(a.to_bits().into(), 32) == prefix(b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => prefix(a.to_bits(), 128) == prefix(b.to_bits(), 128),
        _ => false,
    }
}

fn matches_port(one: &Value, target: &End, port: &Port) -> bool {
    let protocol = one.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
    if protocol != port.protocol {
        return false;
    }
    match one.get("port") {
        None => true,
        Some(Value::String(name)) => named_ports(&target.pod, name, protocol).contains(&port.number),
        Some(first) => {
            let first = first.as_u64().unwrap_or_default();
            let last = one.get("endPort").and_then(Value::as_u64).unwrap_or(first);
            (first..=last).contains(&u64::from(port.number))
        }
    }
}

/// Returns the numbers of a pod's port with a name.
pub fn named_ports(pod: &Value, name: &str, protocol: &str) -> Vec<u16> {
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter().flat_map(|at| items(pod, at));
    let ports = containers.flat_map(|container| items(container, "/ports"));
    let is_named = |port: &&Value| {
        text(port, "/name") == name && port.get("protocol").and_then(Value::as_str).unwrap_or("TCP") == protocol
    };
    let numbers = ports.filter(is_named).filter_map(|port| port.get("containerPort")?.as_u64());
    numbers.filter_map(|number| u16::try_from(number).ok()).collect()
}

fn show_peer(peer: &Value) -> String {
    if let Some(block) = peer.get("ipBlock") {
        return format!("ipBlock {}", text(block, "/cidr"));
    }
    let shown = |selector: &Value| match Selector::from_label_selector(selector).map(|one| one.to_string()) {
        Ok(labels) if labels.is_empty() => "all".to_owned(),
        Ok(labels) => labels,
        Err(error) => error.to_string(),
    };
    let parts = [("namespaceSelector", "namespaces"), ("podSelector", "pods")];
    let parts = parts.iter().filter_map(|(key, word)| Some(format!("{word} {}", shown(peer.get(*key)?))));
    parts.collect::<Vec<_>>().join(" with ")
}

fn show_port(port: &Value) -> String {
    let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
    let number = match port.get("port") {
        None => "any".to_owned(),
        Some(Value::String(name)) => name.clone(),
        Some(number) => number.to_string(),
    };
    match port.get("endPort") {
        Some(last) => format!("{number}-{last}/{protocol}"),
        None => format!("{number}/{protocol}"),
    }
}
