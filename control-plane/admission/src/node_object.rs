//! The fields of its own Node that a kubelet may not write; a part of NodeRestriction.
//!
//! Upstream forbids nodes to write taints, restricted labels, owners and the source of a kubelet's configuration.
//! Corten also forbids pod CIDRs, because all nodes route to those; the names that were recorded for the node's serving
//! certificate; and addresses that belong to the API server, to Services or to another node that is Ready.

use std::net::IpAddr;

use corten_meta::Value;
use corten_meta::address::is_global_unicast;
use corten_meta::quote::quote;

use super::attributes::Attributes;
use super::node_checks::{Checked, only, same};
use super::operation::Operation;
use crate::allocation::AddressRange;

/// The annotation with the names that a kubelet may serve under, recorded by the controllers when the node joined.
const SERVING_NAMES: &str = "corten/serving-names";

/// Checks the creation or an update of a node's own Node.
pub fn check(a: &Attributes<'_>, node: &str) -> Checked {
    let empty = Value::Null;
    let old = a.old.as_deref().unwrap_or(&empty);
    check_fields(a, node, old)?;
    check_labels(a, node, old)?;
    check_addresses(a, node, old)
}

fn check_fields(a: &Attributes<'_>, node: &str, old: &Value) -> Checked {
    let new = &*a.object;
    let creates = a.operation == Operation::Create;
    let has_source = new.pointer("/spec/configSource").is_some_and(|source| !source.is_null());
    only(!(creates && has_source), || "is not allowed to create pods with a non-nil configSource".to_owned())?;
    only(!has_source || same(old, new, "/spec/configSource"), || {
        format!("node {} is not allowed to update configSource to a new non-nil configSource", quote(node))
    })?;
    let why = |what: &str| format!("node {} is not allowed to modify {what}", quote(node));
    // A kubelet registers with the taints of its configuration.
    only(creates || same(old, new, "/spec/taints"), || why("taints"))?;
    only(same(old, new, "/metadata/ownerReferences"), || why("ownerReferences"))?;
    only(same(old, new, "/spec/podCIDR"), || why("podCIDR"))?;
    only(same(old, new, "/spec/podCIDRs"), || why("podCIDRs"))?;
    let recorded = |object: &Value| corten_meta::annotations(object).get(SERVING_NAMES).cloned();
    only(recorded(old) == recorded(new), || why(&format!("annotation {SERVING_NAMES}")))
}

fn check_labels(a: &Attributes<'_>, node: &str, old: &Value) -> Checked {
    let old = corten_meta::labels(old);
    let new = corten_meta::labels(&a.object);
    let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value)).map(|(key, _)| key);
    let removed = old.keys().filter(|key| !new.contains_key(*key));
    let mut forbidden: Vec<&str> = changed.chain(removed).map(String::as_str).filter(|key| is_reserved(key)).collect();
    forbidden.sort_unstable();
    only(forbidden.is_empty(), || match a.operation {
        Operation::Create => {
            format!("node {} is not allowed to set the following labels: {}", quote(node), forbidden.join(", "))
        }
        _ => format!("is not allowed to modify labels: {}", forbidden.join(", ")),
    })
}

/// Reports whether a label steers pods: those that are forbidden to nodes, and those of Kubernetes that kubelets do not
/// set.
fn is_reserved(key: &str) -> bool {
    const OWN: [&str; 11] = [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    ];
    let namespace = key.split_once('/').map(|(namespace, _)| namespace).unwrap_or_default();
    let is_in = |domain: &str| namespace == domain || namespace.ends_with(&format!(".{domain}"));
    let of_kubelets = OWN.contains(&key) || is_in("kubelet.kubernetes.io") || is_in("node.kubernetes.io");
    is_in("node-restriction.kubernetes.io") || ((is_in("kubernetes.io") || is_in("k8s.io")) && !of_kubelets)
}

/// Checks addresses that a node reports for the first time. The node of this server's own machine has this server's
/// addresses.
fn check_addresses(a: &Attributes<'_>, node: &str, old: &Value) -> Checked {
    let config = a.target.core.config;
    if config.hostname == Some(node) {
        return Ok(());
    }
    let known = addresses(old);
    let services = AddressRange::parse_list(config.service_cidr).unwrap_or_default();
    for address in addresses(&a.object).into_iter().filter(|address| !known.contains(address)) {
        let why = |whose: &str| format!("node {} is not allowed to report the address {address}{whose}", quote(node));
        if address == config.advertise_address.to_canonical() {
            // Without a hostname, this server does not know which node is its own.
            only(config.hostname.is_none(), || why(" of the API server"))?;
            continue;
        }
        only(is_global_unicast(address), || why(""))?;
        only(!services.iter().any(|range| range.contains(address)), || why(" of a Service"))?;
        only(!is_taken(a, node, address), || why(" of another node"))?;
    }
    Ok(())
}

fn addresses(node: &Value) -> Vec<IpAddr> {
    let list = node.pointer("/status/addresses").and_then(Value::as_array).into_iter().flatten();
    let parsed = list.filter_map(|address| address["address"].as_str()?.parse::<IpAddr>().ok());
    parsed.map(|address| address.to_canonical()).collect()
}

/// Reports whether another node that is Ready reports the address. A node that is not Ready may have lost it, or be
/// this machine under its former name.
fn is_taken(a: &Attributes<'_>, node: &str, address: IpAddr) -> bool {
    let others = a.target.core.objects.cached_list("", "nodes", "");
    let mut others = others.iter().filter(|other| other.header.name != node).map(|other| other.value());
    others.any(|other| is_ready(&other) && addresses(&other).contains(&address))
}

fn is_ready(node: &Value) -> bool {
    let mut conditions = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_steer_pods_are_reserved() {
        for (key, reserved) in [
            ("team", false),
            ("example.com/team", false),
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("x.kubelet.kubernetes.io/y", false),
            ("node-role.kubernetes.io/control-plane", true),
            ("node-restriction.kubernetes.io/team", true),
            ("x.node-restriction.kubernetes.io/team", true),
            ("scheduling.k8s.io/x", true),
        ] {
            assert_eq!(is_reserved(key), reserved, "{key}");
        }
    }
}
