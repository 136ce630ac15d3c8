//! The read-only view of the caches that a controller reconciles on.
//!
//! It is a trait, so that the same `observe` reads informers in the cluster and a model in a test. A view never blocks
//! and never calls the API server. It may be stale, but the runtime makes sure that it is never older than the
//! controller's own writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_api::{Typed, decode_object};
use corten_meta::labels::{Operator, Requirement};
use corten_meta::{Key, Object, Selector};

use super::plan::ResourceType;
use super::rows::{Facts as _, NodeFacts, NodeRow, PodRow};
use super::scale::{ScaleAnswer, ScaleQuestion};

/// The failure of the last reconcile of this key; some controllers report it in a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The event reason of the write that failed, for example `FailedCreate`.
    pub reason: String,
    pub message: String,
}

pub trait View: Send + Sync {
    fn get(&self, resource: ResourceType, key: &Key) -> Option<Arc<Object>>;
    /// Lists the objects of a namespace, or of the cluster for `""`.
    fn list(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>>;
    /// Lists the objects with an owner reference to this uid.
    fn owned(&self, resource: ResourceType, uid: &str) -> Vec<Arc<Object>>;
    /// Lists the objects of a namespace that have no controller. Uses an index, since they are few.
    fn orphans(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>>;
    /// Lists the objects of a namespace with this label. Uses an index.
    fn labelled(&self, resource: ResourceType, namespace: &str, label: (&str, &str)) -> Vec<Arc<Object>>;
    /// Lists the Services of a namespace that may select an object with these labels. Uses an index, since every change
    /// of a pod asks.
    fn services_for(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<Object>>;
    /// Lists the volumes that are bound to the claim, or to none. Uses an index, since most are bound.
    fn volumes_for(&self, claim: &Key) -> Vec<Arc<Object>>;
    /// Lists the pods that are bound to the node. Uses an index, since a node's pods are few.
    fn pods_on(&self, node: &str) -> Vec<Arc<Object>>;
    /// Returns the pods as rows, without decoding those that did not change.
    fn rows(&self, pods: Vec<Arc<Object>>) -> Vec<PodRow> {
        pods.into_iter().map(PodRow::new).collect()
    }
    /// Returns the nodes as rows.
    fn node_rows(&self, nodes: Vec<Arc<Object>>) -> Vec<NodeRow> {
        nodes.into_iter().map(NodeRow::new).collect()
    }
    /// Lists the nodes that are not ready. Uses an index, since most are.
    fn unready_nodes(&self) -> Vec<Arc<Object>> {
        let mut nodes = self.list(ResourceType::of::<Node>(), "");
        nodes.retain(|node| is_unready(node));
        nodes
    }
    /// Returns the scale of an object, if it was asked for before this decision.
    fn scale(&self, _question: &ScaleQuestion) -> Option<ScaleAnswer> {
        None
    }
    fn last_failure(&self) -> Option<Failure> {
        None
    }
}

/// Reports whether the JSON of an object contains a string. Where nearly no object does, the search costs less than
/// decoding all of them.
pub fn mentions(object: &Object, text: &str) -> bool {
    std::str::from_utf8(&object.bytes).is_ok_and(|bytes| bytes.contains(text))
}

/// Returns the node a pod is bound to. Only this field is decoded: an index asks it of every pod at every change.
pub fn node_of_pod(pod: &Object) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        node_name: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct Bound {
        spec: Option<Spec>,
    }
    let bound: Bound = serde_json::from_slice(&pod.bytes).ok()?;
    bound.spec?.node_name.filter(|name| !name.is_empty())
}

/// Reports whether a node is not ready.
pub fn is_unready(node: &Object) -> bool {
    !NodeFacts::parse(node).is_some_and(|facts| facts.ready)
}

/// Returns the key of the claim a volume is bound to; empty for an available volume.
pub fn claim_of_volume(volume: &Object) -> String {
    #[derive(Default, serde::Deserialize)]
    struct Claim {
        #[serde(default)]
        namespace: String,
        #[serde(default)]
        name: String,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Spec {
        claim_ref: Option<Claim>,
    }
    #[derive(serde::Deserialize)]
    struct Claimed {
        #[serde(default)]
        spec: Spec,
    }
    let claimed: Option<Claimed> = serde_json::from_slice(&volume.bytes).ok();
    claimed
        .and_then(|volume| volume.spec.claim_ref)
        .map_or_else(String::new, |claim| Key::new(claim.namespace, claim.name).to_string())
}

/// Returns the selector of a Service; empty if it selects nothing.
pub fn selector_of_service(service: &Object) -> BTreeMap<String, String> {
    #[derive(serde::Deserialize)]
    struct Spec {
        selector: Option<BTreeMap<String, String>>,
    }
    #[derive(serde::Deserialize)]
    struct Selecting {
        spec: Option<Spec>,
    }
    let selecting: Option<Selecting> = serde_json::from_slice(&service.bytes).ok();
    selecting.and_then(|service| service.spec?.selector).unwrap_or_default()
}

impl dyn View + '_ {
    /// Returns one typed object. An object that does not decode is treated as absent: no controller can act on it.
    pub fn typed<K: Typed>(&self, key: &Key) -> Option<K> {
        decode(&self.get(ResourceType::of::<K>(), key)?)
    }

    pub fn all<K: Typed>(&self, namespace: &str) -> Vec<K> {
        self.list(ResourceType::of::<K>(), namespace).iter().filter_map(|object| decode(object)).collect()
    }

    pub fn owned_by<K: Typed>(&self, uid: &str) -> Vec<K> {
        self.owned(ResourceType::of::<K>(), uid).iter().filter_map(|object| decode(object)).collect()
    }

    /// Lists the pods that are bound to a node.
    pub fn on_node(&self, node: &str) -> Vec<Pod> {
        self.pods_on(node).iter().filter_map(decode).collect()
    }

    /// Lists all nodes, by name.
    pub fn nodes(&self) -> Vec<NodeRow> {
        let mut nodes = self.node_rows(self.list(ResourceType::of::<Node>(), ""));
        nodes.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        nodes
    }

    /// Lists the objects whose labels match; only those are decoded.
    pub fn select<K: Typed>(&self, namespace: &str, selector: &Selector) -> Vec<K> {
        let objects = self.list(ResourceType::of::<K>(), namespace);
        objects.iter().filter(|object| selector.matches(&object.header.labels)).filter_map(|o| decode(o)).collect()
    }

    /// Lists the pods whose labels match, as rows. Uses the label index if the selector has an equality requirement.
    pub fn select_rows(&self, namespace: &str, selector: &Selector) -> Vec<PodRow> {
        let one = |one: &Requirement| match (one.operator(), one.values()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => {
                Some((one.key().to_owned(), value.clone()))
            }
            _ => None,
        };
        let pods = ResourceType::of::<Pod>();
        let mut objects = match selector.requirements().iter().find_map(one) {
            Some((key, value)) => self.labelled(pods, namespace, (&key, &value)),
            None => self.list(pods, namespace),
        };
        objects.retain(|object| selector.matches(&object.header.labels));
        self.rows(objects)
    }

    /// Lists the objects that a workload controller must claim from: those it controls, and orphans that match its
    /// selector.
    pub fn claimable<K: Typed>(&self, namespace: &str, uid: &str, selector: &Selector) -> Vec<K> {
        self.claimable_objects(ResourceType::of::<K>(), namespace, uid, selector).iter().filter_map(decode).collect()
    }

    /// Lists the pods that a workload controller must claim from, as rows.
    pub fn claimable_rows(&self, namespace: &str, uid: &str, selector: &Selector) -> Vec<PodRow> {
        self.rows(self.claimable_objects(ResourceType::of::<Pod>(), namespace, uid, selector))
    }

    fn claimable_objects(
        &self,
        resource: ResourceType,
        namespace: &str,
        uid: &str,
        selector: &Selector,
    ) -> Vec<Arc<Object>> {
        let own = |object: &Arc<Object>| object.controller().is_some_and(|owner| owner.uid == uid);
        let mut candidates = self.owned(resource, uid);
        candidates.retain(|object| own(object) && object.header.namespace == namespace);
        let orphans = self.orphans(resource, namespace);
        candidates.extend(orphans.into_iter().filter(|object| selector.matches(&object.header.labels)));
        candidates
    }
}

pub fn decode<K: Typed>(object: &Arc<Object>) -> Option<K> {
    match decode_object::<K>(object) {
        Ok(typed) => Some(typed),
        Err(error) => {
            tracing::warn!(kind = K::KIND, key = %object.key(), %error, "object does not decode");
            None
        }
    }
}
