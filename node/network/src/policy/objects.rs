//! The data that enforcement keeps of NetworkPolicies and PodAddresses.
//!
//! Projections of the API's objects and nothing else: other modules decide whether a packet may pass.

use std::net::IpAddr;

use corten_meta::{Labels, Object, Selector};
use corten_nftables::Protocol;
use serde_json::Value;

use crate::cidr::Cidr;

/// The direction of traffic, seen from the pod that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    pub fn as_str(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }
}

/// A NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The pods of its namespace that it isolates.
    pub pods: Selector,
    /// The allowed traffic; `None` where the policy does not isolate this direction.
    pub ingress: Option<Vec<Allowed>>,
    pub egress: Option<Vec<Allowed>>,
}

/// One rule of a policy: traffic from or to any of the peers, on any of the ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Allowed {
    /// The peers; `None` for all.
    pub peers: Option<Vec<Peer>>,
    /// The ports; `None` for every port and protocol.
    pub ports: Option<Vec<PortMatch>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Pods(PodPeer),
    Block { cidr: Cidr, except: Vec<Cidr> },
}

/// Pods by their labels and those of their namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodPeer {
    pub namespaces: Namespaces,
    pub pods: Selector,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Namespaces {
    Named(String),
    Matching(Selector),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PortMatch {
    Range { protocol: Protocol, first: u16, last: u16 },
    Named(PortName),
}

/// A port by the name that the receiving pod gives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortName {
    pub protocol: Protocol,
    pub name: String,
}

impl Policy {
    pub fn from_object(object: &Object) -> Policy {
        let value = object.value();
        let spec = &value["spec"];
        let namespace = &object.header.namespace;
        let rules = |field: &str, peers: &str| -> Vec<Allowed> {
            list(&spec[field]).iter().map(|rule| allowed(rule, peers, namespace)).collect()
        };
        let types: Vec<&str> = list(&spec["policyTypes"]).iter().filter_map(Value::as_str).collect();
        // The API server sets policyTypes; older objects without it are read by its defaulting.
        let egress = types.contains(&"Egress") || (types.is_empty() && !spec["egress"].is_null());
        let ingress = types.contains(&"Ingress") || types.is_empty();
        Policy {
            pods: selector(&spec["podSelector"]),
            ingress: ingress.then(|| rules("ingress", "from")),
            egress: egress.then(|| rules("egress", "to")),
        }
    }

    pub fn rules(&self, direction: Direction) -> Option<&Vec<Allowed>> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Reads a selector. An absent one selects everything here; callers check for its absence before.
fn selector(value: &Value) -> Selector {
    if value.is_null() {
        return Selector::everything();
    }
    Selector::from_label_selector(value).unwrap_or_else(|_| Selector::nothing())
}

fn allowed(rule: &Value, peers: &str, namespace: &str) -> Allowed {
    let some = |value: &[Value]| !value.is_empty();
    let from = list(&rule[peers]);
    let ports = list(&rule["ports"]);
    Allowed {
        peers: some(from).then(|| from.iter().filter_map(|value| peer(value, namespace)).collect()),
        ports: some(ports).then(|| ports.iter().filter_map(port).collect()),
    }
}

fn peer(value: &Value, namespace: &str) -> Option<Peer> {
    if let Some(cidr) = value.pointer("/ipBlock/cidr").and_then(Value::as_str) {
        let except = list(&value["ipBlock"]["except"]).iter().filter_map(|cidr| cidr.as_str()?.parse().ok()).collect();
        return Some(Peer::Block { cidr: cidr.parse().ok()?, except });
    }
    let namespaces = match &value["namespaceSelector"] {
        Value::Null => Namespaces::Named(namespace.to_owned()),
        matching => Namespaces::Matching(selector(matching)),
    };
    Some(Peer::Pods(PodPeer { namespaces, pods: selector(&value["podSelector"]) }))
}

/// Reads a port. An invalid one matches nothing, which is the safe side.
fn port(value: &Value) -> Option<PortMatch> {
    let protocol = protocol(value["protocol"].as_str())?;
    if let Some(name) = value["port"].as_str() {
        return Some(PortMatch::Named(PortName { protocol, name: name.to_owned() }));
    }
    let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    let (first, last) = match &value["port"] {
        Value::Null => (0, u16::MAX),
        port => (number(port)?, number(&value["endPort"]).or_else(|| number(port))?),
    };
    Some(PortMatch::Range { protocol, first, last })
}

fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

/// A pod of any node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    pub uid: String,
    pub labels: Labels,
    /// Its addresses; empty before it has one, after it has ended, and on the host's network, where it cannot be
    /// distinguished from its node.
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<(PortName, u16)>,
}

impl Pod {
    /// Reads a pod from a PodAddress.
    pub fn from_object(object: &Object) -> Pod {
        let value = object.value();
        let ended = matches!(value["phase"].as_str(), Some("Succeeded" | "Failed"));
        let host_network = value["hostNetwork"].as_bool().unwrap_or(false);
        let addresses = list(&value["podIPs"]).iter().filter_map(|entry| entry["ip"].as_str()?.parse().ok());
        // The node knows a mirror pod by the uid of its static pod.
        let uid = value["staticPodUID"].as_str().unwrap_or(&object.header.uid);
        Pod {
            uid: uid.to_owned(),
            labels: object.header.labels.clone(),
            addresses: if ended || host_network { Vec::new() } else { addresses.collect() },
            ports: list(&value["ports"]).iter().filter_map(named_port).collect(),
        }
    }
}

fn named_port(port: &Value) -> Option<(PortName, u16)> {
    let name = PortName { protocol: protocol(port["protocol"].as_str())?, name: port["name"].as_str()?.to_owned() };
    Some((name, u16::try_from(port["port"].as_u64()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(spec: Value) -> Policy {
        let value = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "p"}, "spec": spec});
        Policy::from_object(&Object::from_value(&value, 1).unwrap())
    }

    #[test]
    fn directions_that_a_policy_isolates() {
        for (spec, ingress, egress) in [
            (json!({"podSelector": {}}), true, false),
            (json!({"podSelector": {}, "egress": []}), true, true),
            (json!({"podSelector": {}, "policyTypes": ["Egress"]}), false, true),
            (json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]}), true, false),
        ] {
            let policy = policy(spec.clone());
            assert_eq!((policy.ingress.is_some(), policy.egress.is_some()), (ingress, egress), "{spec}");
        }
    }

    #[test]
    fn peers_and_ports_are_read_as_the_api_defines_them() {
        let policy = policy(json!({"podSelector": {}, "ingress": [
            {},
            {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}, {"namespaceSelector": {}},
                      {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}],
             "ports": [{"port": 80}, {"protocol": "UDP", "port": "dns"}, {"port": 8000, "endPort": 8010}, {"protocol": "SCTP"}]},
        ]}));
        let rules = policy.ingress.unwrap();
        assert_eq!(rules[0], Allowed { peers: None, ports: None });
        let web = Selector::from_label_selector(&json!({"matchLabels": {"app": "web"}})).unwrap();
        let everything = Selector::everything();
        assert_eq!(
            rules[1].peers.as_deref().unwrap(),
            [
                Peer::Pods(PodPeer { namespaces: Namespaces::Named("shop".into()), pods: web }),
                Peer::Pods(PodPeer { namespaces: Namespaces::Matching(everything.clone()), pods: everything }),
                Peer::Block { cidr: "10.0.0.0/8".parse().unwrap(), except: vec!["10.1.0.0/16".parse().unwrap()] },
            ]
        );
        let range = |protocol, first, last| PortMatch::Range { protocol, first, last };
        assert_eq!(
            rules[1].ports.as_deref().unwrap(),
            [
                range(Protocol::Tcp, 80, 80),
                PortMatch::Named(PortName { protocol: Protocol::Udp, name: "dns".into() }),
                range(Protocol::Tcp, 8000, 8010),
                range(Protocol::Sctp, 0, u16::MAX),
            ]
        );
    }

    #[test]
    fn pods_on_the_hosts_network_and_pods_that_ended_have_no_address() {
        let pod = |fields: Value| {
            let mut value = json!({"apiVersion": "network.corten.dev/v1", "kind": "PodAddress", "phase": "Running",
                "metadata": {"namespace": "shop", "name": "a", "uid": "u"},
                "podIPs": [{"ip": "10.244.0.2"}, {"ip": "fd00::2"}]});
            value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            Pod::from_object(&Object::from_value(&value, 1).unwrap())
        };
        assert_eq!(pod(json!({})).addresses.len(), 2);
        assert_eq!(pod(json!({"hostNetwork": true})).addresses.len(), 0);
        assert_eq!(pod(json!({"phase": "Succeeded"})).addresses.len(), 0);
        let ports = json!([{"name": "web", "port": 80, "protocol": "TCP"}, {"port": 81}]);
        let web = PortName { protocol: Protocol::Tcp, name: "web".into() };
        assert_eq!(pod(json!({"ports": ports})).ports, [(web, 80)]);
        assert_eq!(pod(json!({})).uid, "u");
        assert_eq!(pod(json!({"staticPodUID": "hash"})).uid, "hash");
    }
}
