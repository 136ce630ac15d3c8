//! A pod as scheduling sees it, and the sharing that keeps ten thousand of them small.

use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::Key;
use jiff::Timestamp;

use super::demand::{Demand, NodeDemand, node_demand};

/// Pods with the same namespace and labels: for every selector they are equal.
#[derive(Debug, Default)]
pub struct Class {
    /// A dense id, so that matches per class fit into a plain vector.
    pub id: usize,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
}

/// The id follows from the namespace and labels, and is not compared.
impl PartialEq for Class {
    fn eq(&self, other: &Class) -> bool {
        self.namespace == other.namespace && self.labels == other.labels
    }
}

impl Eq for Class {}

impl Hash for Class {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.labels.hash(state);
    }
}

#[derive(Clone, Debug, Default)]
pub struct PodRow {
    pub name: String,
    pub uid: Arc<str>,
    pub class: Arc<Class>,
    pub demand: Arc<Demand>,
    /// The nodes that it requires.
    pub nodes: Arc<NodeDemand>,
    pub node_name: String,
    pub nominated: String,
    pub priority: i32,
    pub revision: u64,
    pub generation: i64,
    pub terminating: bool,
    pub terminal: bool,
    /// Whether it is being deleted because of a preemption.
    pub preempted: bool,
    pub started: Option<Timestamp>,
    pub condition: Option<Box<ScheduledCondition>>,
}

/// The current PodScheduled condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScheduledCondition {
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Option<Timestamp>,
}

impl PodRow {
    pub fn namespace(&self) -> &str {
        &self.class.namespace
    }

    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.class.labels
    }

    pub fn key(&self) -> Key {
        Key { namespace: self.class.namespace.clone(), name: self.name.clone() }
    }
}

/// Makes rows of pods, which share the parts that equal pods have in common.
#[derive(Default)]
pub struct Interner {
    classes: HashSet<Arc<Class>>,
    free: Vec<usize>,
    next: usize,
    demands: HashSet<Arc<Demand>>,
    node_demands: HashSet<Arc<NodeDemand>>,
    /// Incremented whenever ids of classes are reused: everything cached by id is void then.
    pub epoch: u64,
    keep: usize,
}

/// With fewer entries a sweep is not worth the time.
const WORTH_SWEEPING: usize = 1024;

impl Interner {
    pub fn row(&mut self, mut pod: Pod) -> PodRow {
        self.sweep();
        let labels = pod.metadata.labels.take().unwrap_or_default();
        let demand = self.demand(Demand::of(&pod, &labels));
        let nodes = pod.spec.as_ref().map(node_demand).unwrap_or_default();
        let nodes = self.node_demand(nodes);
        let class = self.class(pod.metadata.namespace.take().unwrap_or_default(), labels);
        let status = pod.status.unwrap_or_default();
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let preempted = conditions.iter().any(|condition| {
            condition.type_ == "DisruptionTarget"
                && condition.status == "True"
                && condition.reason.as_deref() == Some("PreemptionByScheduler")
        });
        let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled").map(|condition| {
            Box::new(ScheduledCondition {
                status: condition.status.clone(),
                reason: condition.reason.clone().unwrap_or_default(),
                message: condition.message.clone().unwrap_or_default(),
                since: condition.last_transition_time.as_ref().map(|time| time.0),
            })
        });
        let spec = pod.spec.unwrap_or_default();
        let revision = pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok());
        PodRow {
            name: pod.metadata.name.unwrap_or_default(),
            uid: pod.metadata.uid.unwrap_or_default().into(),
            class,
            demand,
            nodes,
            node_name: spec.node_name.unwrap_or_default(),
            nominated: status.nominated_node_name.unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            revision: revision.unwrap_or(0),
            generation: pod.metadata.generation.unwrap_or(0),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            preempted,
            started: status.start_time.map(|time| time.0),
            condition: scheduled.filter(|condition| condition.status != "True"),
        }
    }

    fn demand(&mut self, demand: Demand) -> Arc<Demand> {
        if let Some(known) = self.demands.get(&demand) {
            return known.clone();
        }
        let demand = Arc::new(demand);
        self.demands.insert(demand.clone());
        demand
    }

    fn node_demand(&mut self, nodes: NodeDemand) -> Arc<NodeDemand> {
        if let Some(known) = self.node_demands.get(&nodes) {
            return known.clone();
        }
        let nodes = Arc::new(nodes);
        self.node_demands.insert(nodes.clone());
        nodes
    }

    pub fn class(&mut self, namespace: String, labels: BTreeMap<String, String>) -> Arc<Class> {
        let mut class = Class { id: 0, namespace, labels };
        if let Some(known) = self.classes.get(&class) {
            return known.clone();
        }
        class.id = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let class = Arc::new(class);
        self.classes.insert(class.clone());
        class
    }

    /// Removes entries that no row uses, each time there are twice as many as after the last sweep.
    fn sweep(&mut self) {
        let held = self.classes.len() + self.demands.len() + self.node_demands.len();
        if held < self.keep.max(WORTH_SWEEPING) {
            return;
        }
        let before = self.free.len();
        let free = &mut self.free;
        self.classes.retain(|class| {
            let used = Arc::strong_count(class) > 1;
            if !used {
                free.push(class.id);
            }
            used
        });
        self.demands.retain(|demand| Arc::strong_count(demand) > 1);
        self.node_demands.retain(|nodes| Arc::strong_count(nodes) > 1);
        self.epoch += u64::from(self.free.len() > before);
        self.keep = 2 * (self.classes.len() + self.demands.len() + self.node_demands.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;
    use serde_json::json;

    fn row(interner: &mut Interner, name: &str, app: &str) -> PodRow {
        let metadata = json!({"namespace": "default", "name": name, "uid": name, "labels": {"app": app}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}});
        interner.row(Pod::from_value(pod).unwrap())
    }

    #[test]
    fn equal_pods_share_what_they_ask_for_and_look_like() {
        let mut interner = Interner::default();
        let (a, b, c) = (row(&mut interner, "a", "x"), row(&mut interner, "b", "x"), row(&mut interner, "c", "y"));
        assert!(Arc::ptr_eq(&a.demand, &b.demand) && Arc::ptr_eq(&a.class, &b.class));
        assert_ne!(a.class.id, c.class.id);
    }

    #[test]
    fn ids_of_forgotten_classes_are_used_again_in_a_new_epoch() {
        let mut interner = Interner::default();
        for number in 0..(3 * WORTH_SWEEPING) {
            row(&mut interner, "p", &number.to_string());
        }
        assert!(interner.epoch > 0);
        assert!(interner.next < 2 * WORTH_SWEEPING, "{} ids for one live class", interner.next);
    }
}
