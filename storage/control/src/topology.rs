//! Topology: the parts of the cluster from which a volume can be reached, as segments of keys and values that are labels
//! of nodes.

use std::collections::{BTreeMap, BTreeSet};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, PersistentVolume, TopologySelectorTerm};
use corten_api::k8s_openapi::api::storage::v1::CSINode;
use corten_plugins::csi;
use corten_snapshots::{LABEL_PRIMARY, REPLICA_LABEL, VolumeReplica};
use serde_json::{Value, json};

use crate::replica;
use crate::world::World;

/// A segment: values of the driver's topology keys.
pub type Segment = BTreeMap<String, String>;

/// A node as the topology sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTopology {
    pub name: String,
    pub segment: Segment,
}

/// Returns the nodes on which the driver runs, with their segments.
pub fn nodes(world: &World) -> Vec<NodeTopology> {
    let nodes: Vec<Node> = world.all();
    let with_driver = world.all::<CSINode>().into_iter().filter_map(|one| {
        let keys = topology_keys(&one, &world.driver.name)?;
        let node = nodes.iter().find(|node| node.name() == one.name())?;
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let segment: Segment = keys.iter().filter_map(|key| Some((key.clone(), labels.get(key)?.clone()))).collect();
        Some(NodeTopology { name: one.name().to_owned(), segment })
    });
    let mut all: Vec<NodeTopology> = with_driver.collect();
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    all
}

fn topology_keys(node: &CSINode, driver: &str) -> Option<Vec<String>> {
    let drivers = &node.spec.drivers;
    drivers.iter().find(|one| one.name == driver).map(|one| one.topology_keys.clone().unwrap_or_default())
}

/// The wishes for the topology of a new volume.
pub struct Wishes<'a> {
    pub nodes: &'a [NodeTopology],
    /// The topologies that the class allows; all, if it names none.
    pub allowed: &'a [TopologySelectorTerm],
    /// The node that the scheduler selected.
    pub selected: Option<&'a str>,
    /// Whether only the segment of the selected node will do.
    pub is_strict: bool,
    /// Spreads volumes without a selected node.
    pub hash: u64,
}

/// Returns the topology to require of a new volume. Fails if no node can reach it.
pub fn requirement(wishes: &Wishes<'_>) -> Result<Option<csi::TopologyRequirement>, String> {
    let allows =
        |segment: &&Segment| wishes.allowed.is_empty() || wishes.allowed.iter().any(|term| is_allowed(term, segment));
    let all: BTreeSet<&Segment> = wishes.nodes.iter().map(|node| &node.segment).collect();
    let mut segments: Vec<&Segment> = all.into_iter().filter(|segment| !segment.is_empty()).filter(allows).collect();
    if let Some(name) = wishes.selected {
        let node = wishes.nodes.iter().find(|node| node.name == name);
        let node = node.ok_or_else(|| format!("no topology key found on CSINode {name}"))?;
        if node.segment.is_empty() {
            return Ok(None);
        }
        let Some(first) = segments.iter().position(|segment| **segment == node.segment) else {
            return Err(format!("selected node '{name}' topology is not in allowed topologies"));
        };
        segments.rotate_left(first);
        if wishes.is_strict {
            segments.truncate(1);
        }
    } else if !segments.is_empty() {
        let first = usize::try_from(wishes.hash % segments.len() as u64).unwrap_or_default();
        segments.rotate_left(first);
    }
    if segments.is_empty() {
        return match wishes.allowed {
            [] => Ok(None),
            _ => Err("no node is in the allowed topologies of the StorageClass".to_owned()),
        };
    }
    let preferred: Vec<csi::Topology> = segments.iter().map(|segment| topology(segment)).collect();
    let mut sorted = segments;
    sorted.sort_unstable();
    let requisite = sorted.into_iter().map(topology).collect();
    Ok(Some(csi::TopologyRequirement { requisite, preferred }))
}

/// Reports whether a class allows volumes on a node; none if the driver is not known there.
pub fn allows(allowed: &[TopologySelectorTerm], nodes: &[NodeTopology], name: &str) -> Option<bool> {
    let node = nodes.iter().find(|node| node.name == name)?;
    Some(allowed.is_empty() || allowed.iter().any(|term| is_allowed(term, &node.segment)))
}

fn is_allowed(term: &TopologySelectorTerm, segment: &Segment) -> bool {
    let mut expressions = term.match_label_expressions.iter().flatten();
    expressions.all(|one| segment.get(&one.key).is_some_and(|value| one.values.contains(value)))
}

pub fn topology(segment: &Segment) -> csi::Topology {
    csi::Topology { segments: segment.iter().map(|(key, value)| (key.clone(), value.clone())).collect() }
}

/// Returns the node affinity of a volume that is reachable in these topologies; null if it is everywhere.
pub fn affinity(accessible: &[csi::Topology]) -> Value {
    if accessible.is_empty() {
        return Value::Null;
    }
    let term = |topology: &csi::Topology| {
        let sorted: Segment = topology.segments.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let expression = |(key, value): (&String, &String)| json!({"key": key, "operator": "In", "values": [value]});
        json!({"matchExpressions": sorted.iter().map(expression).collect::<Vec<_>>()})
    };
    json!({"required": {"nodeSelectorTerms": accessible.iter().map(term).collect::<Vec<_>>()}})
}

/// Reports whether these loops handle a volume: those of a node handle the volumes of the node.
pub fn is_ours(world: &World, volume: &PersistentVolume) -> bool {
    world.options.node.as_ref().is_none_or(|node| is_reached_from(volume, node, world))
}

/// Returns the primary of a volume that has a copy on another node.
fn primary_of(volume: &PersistentVolume, world: &World) -> Option<String> {
    let replica = replica::is_replicated(volume).then(|| world.get::<VolumeReplica>("", volume.name()))?;
    replica.map(|replica| replica.spec.primary_node)
}

/// Reports whether a volume can be reached from a node.
fn is_reached_from(volume: &PersistentVolume, node: &str, world: &World) -> bool {
    if let Some(primary) = primary_of(volume, world) {
        return primary == node;
    }
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return true };
    let labels = world.get::<Node>("", node).and_then(|node| node.metadata.labels).unwrap_or_default();
    required.node_selector_terms.iter().any(|term| matches(term, &labels))
}

/// Returns a node from which a volume can be reached, if it cannot be from the node of these loops.
pub fn other_node(world: &World, volume: &PersistentVolume) -> Option<String> {
    if is_ours(world, volume) {
        return None;
    }
    let nodes: Vec<Node> = world.all();
    nodes.iter().map(Typed::name).find(|node| is_reached_from(volume, node, world)).map(str::to_owned)
}

fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    term.match_expressions.iter().flatten().all(|one| {
        let value = labels.get(&one.key);
        let is_listed = value.is_some_and(|value| one.values.iter().flatten().any(|listed| listed == value));
        match one.operator.as_str() {
            "In" => is_listed,
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    })
}

/// Returns the node affinity of a volume that has a copy on another node. An affinity cannot be changed, so it follows a
/// label of Nodes: first the volume is on the node of its topology, which has no such label; after a promotion it is where
/// the label says.
pub fn movable(affinity: Value, handle: &str) -> Value {
    let label = format!("{REPLICA_LABEL}{handle}");
    let mut terms = affinity["required"]["nodeSelectorTerms"].as_array().cloned().unwrap_or_default();
    for term in &mut terms {
        if let Some(expressions) = term["matchExpressions"].as_array_mut() {
            expressions.push(json!({"key": label, "operator": "DoesNotExist"}));
        }
    }
    let moved = json!({"key": label, "operator": "In", "values": [LABEL_PRIMARY]});
    terms.push(json!({"matchExpressions": [moved]}));
    json!({"required": {"nodeSelectorTerms": terms}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, zone: &str) -> NodeTopology {
        NodeTopology { name: name.to_owned(), segment: [("zone".to_owned(), zone.to_owned())].into() }
    }

    fn shown(wishes: &Wishes<'_>) -> String {
        let zones = |all: &[csi::Topology]| -> String {
            all.iter().map(|one| one.segments["zone"].clone()).collect::<Vec<_>>().join(",")
        };
        match requirement(wishes) {
            Ok(Some(required)) => format!("{} prefers {}", zones(&required.requisite), zones(&required.preferred)),
            Ok(None) => "anywhere".to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn the_selected_node_comes_first() {
        let nodes = [node("n1", "a"), node("n2", "b"), node("n3", "c")];
        let wishes = |selected, is_strict| Wishes { nodes: &nodes, allowed: &[], selected, is_strict, hash: 2 };
        assert_eq!(shown(&wishes(Some("n2"), false)), "a,b,c prefers b,c,a");
        assert_eq!(shown(&wishes(Some("n2"), true)), "b prefers b");
        assert_eq!(shown(&wishes(None, false)), "a,b,c prefers c,a,b");
        assert_eq!(shown(&wishes(Some("n9"), false)), "no topology key found on CSINode n9");
    }

    #[test]
    fn a_volume_with_a_copy_follows_a_label() {
        let topology = topology(&[("zone".to_owned(), "a".to_owned())].into());
        let affinity = movable(affinity(&[topology]), "v1");
        let terms: Vec<NodeSelectorTerm> =
            serde_json::from_value(affinity["required"]["nodeSelectorTerms"].clone()).unwrap();
        let is_on = |zone: &str, role: Option<&str>| {
            let mut labels = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
            labels.extend(role.map(|role| (format!("{REPLICA_LABEL}v1"), role.to_owned())));
            terms.iter().any(|term| matches(term, &labels))
        };
        assert!(is_on("a", None) && !is_on("b", None));
        assert!(!is_on("a", Some("former")) && is_on("b", Some("primary")) && is_on("a", Some("primary")));
    }

    #[test]
    fn a_class_limits_the_topologies() {
        let nodes = [node("n1", "a"), node("n2", "b")];
        let class: corten_api::k8s_openapi::api::storage::v1::StorageClass = testkit_fixture::typed(
            "sc s provisioner=d allowedTopologies=[{matchLabelExpressions: [{key: zone, values: [b]}]}]",
        );
        let allowed = class.allowed_topologies.unwrap();
        let wishes = |selected| Wishes { nodes: &nodes, allowed: &allowed, selected, is_strict: false, hash: 0 };
        assert_eq!(shown(&wishes(None)), "b prefers b");
        let is_allowed = |name: &str| allows(&allowed, &nodes, name);
        assert_eq!([is_allowed("n1"), is_allowed("n2"), is_allowed("n3")], [Some(false), Some(true), None]);
        assert_eq!(shown(&wishes(Some("n1"))), "selected node 'n1' topology is not in allowed topologies");
        let none = Wishes { nodes: &[], allowed: &[], selected: None, is_strict: false, hash: 0 };
        assert_eq!(shown(&none), "anywhere");
    }
}
