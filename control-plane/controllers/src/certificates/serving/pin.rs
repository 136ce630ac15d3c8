//! Records on each Node the names and addresses that it had when it joined.
//!
//! Invariant: a name is recorded for one node at most, the first that reported it. The record is the annotation
//! `corten/serving-names`, which a node may not write (see the NodeRestriction admission plugin). It never changes on
//! its own: to accept new addresses of a node, the administrator removes the annotation, and the current addresses are
//! recorded.

use std::collections::BTreeSet;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use super::names::{KubeletServing, Name, listed};
use crate::runtime::{Action, Controller, Plan, View, Watch};

/// The annotation with the names, separated by commas.
pub const PIN: &str = "corten/serving-names";

pub struct ServingNamePinner {
    pub serving: KubeletServing,
}

pub struct Observed {
    node: Node,
    others: Vec<Node>,
}

impl Controller for ServingNamePinner {
    type Observed = Observed;

    const NAME: &'static str = super::ACCOUNT;
    /// One worker, so that two nodes cannot get the same name.
    const WORKERS: usize = 1;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Node>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let node: Node = view.typed(key)?;
        if pinned(&node).is_some() || reported(&node).is_empty() {
            return None;
        }
        let mut others: Vec<Node> = view.all("");
        others.retain(|other| other.name() != node.name());
        Some(Observed { node, others })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut names = reported(&observed.node);
        names.retain(|name| {
            let is_held = observed.others.iter().any(|other| holds_before(other, &observed.node, name));
            self.serving.refusal(name).is_none() && !is_held
        });
        let annotations = json!({PIN: listed(&names)});
        Plan::from(Action::patch(&observed.node, json!({"metadata": {"annotations": annotations}})))
    }
}

/// Returns the recorded names; none if no names were recorded yet.
pub fn pinned(node: &Node) -> Option<BTreeSet<Name>> {
    let text = node.metadata.annotations.as_ref()?.get(PIN)?;
    Some(text.split(',').filter(|name| !name.is_empty()).map(Name::parse).collect())
}

/// Returns the names that the node reports now.
fn reported(node: &Node) -> BTreeSet<Name> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.map(|address| Name::parse(&address.address)).collect()
}

/// Reports whether another node has precedence for a name: it is the node's own name, it is recorded there, or an older
/// node reports it.
fn holds_before(other: &Node, node: &Node, name: &Name) -> bool {
    if *name == Name::parse(other.name()) {
        return true;
    }
    match pinned(other) {
        Some(names) => names.contains(name),
        None => age(other) < age(node) && reported(other).contains(name),
    }
}

/// Orders nodes by the time they joined.
fn age(node: &Node) -> (Option<Timestamp>, &str) {
    (node.metadata.creation_timestamp.as_ref().map(|time| time.0), node.name())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::tests::{node, serving};
    use super::*;
    use crate::tests::model::{Model, converges};

    fn pin(model: &mut Model, name: &str) -> Value {
        converges(&ServingNamePinner { serving: serving() }, model, "", name);
        model.value("Node", "", name)["metadata"]["annotations"][PIN].clone()
    }

    #[test]
    fn the_names_of_a_node_are_recorded_once() {
        let mut model = Model::default();
        model.put(node("n1", &["10.0.0.1", "n1"]));
        assert_eq!(pin(&mut model, "n1"), "n1,10.0.0.1");
        let mut moved = model.value("Node", "", "n1");
        moved["status"]["addresses"] = json!([{"type": "InternalIP", "address": "10.0.0.9"}]);
        model.put(moved);
        assert_eq!(pin(&mut model, "n1"), "n1,10.0.0.1");
        let mut accepted = model.value("Node", "", "n1");
        accepted["metadata"]["annotations"] = json!({});
        model.put(accepted);
        assert_eq!(pin(&mut model, "n1"), "10.0.0.9");
    }

    #[test]
    fn names_of_the_cluster_and_of_other_nodes_are_not_recorded() {
        let mut model = Model::default();
        model.put(node("n1", &["10.0.0.1"]));
        model.put(node("n2", &["10.0.0.1", "10.0.0.2", "n1", "10.9.9.9", "10.96.0.1", "127.0.0.1", "kubernetes"]));
        // The younger node is reconciled first.
        assert_eq!(pin(&mut model, "n2"), "10.0.0.2");
        assert_eq!(pin(&mut model, "n1"), "10.0.0.1");
    }

    #[test]
    fn a_node_without_addresses_waits() {
        let mut model = Model::default();
        model.put(node("n1", &[]));
        assert!(pin(&mut model, "n1").is_null());
    }
}
