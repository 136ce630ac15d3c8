//! Pods and nodes as rows: the shared bytes, and the few facts beyond metadata that workload controllers need, parsed
//! once per version of the object.
//!
//! A workload of a thousand pods is reconciled after every change of one of them; decoding all of them each time would
//! be most of the work. A row is never older than its object: it is parsed from the same bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use corten_api::k8s_openapi::api::core::v1::Taint;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_meta::Object;
use jiff::Timestamp;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const INDEX_FAILURES_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The parsed fields of an object beyond its header.
pub trait Facts: Default {
    /// Parses the fields; none if the bytes are not such an object.
    fn parse(object: &Object) -> Option<Self>;
}

/// The parsed fields of a pod's spec, status and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    pub node: Box<str>,
    pub phase: Box<str>,
    /// Whether the pod is ready, with the transition time if the condition has one.
    pub ready: Option<Option<Timestamp>>,
    /// The latest finish time of the terminated containers.
    pub finished: Option<Timestamp>,
    /// The restart count of the container that restarted most.
    pub restarts: i32,
    /// The restarts of all containers, init containers included.
    pub all_restarts: i32,
    pub deletion_cost: i32,
    /// The completion index of a pod of an indexed Job.
    pub completion_index: Option<i32>,
    /// The number of counted and of ignored failures of that index before this pod.
    pub index_failures: i32,
    pub index_failures_ignored: i32,
}

/// The parsed fields of a node's spec and status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    pub taints: Vec<Taint>,
    /// Whether the condition Ready is True.
    pub ready: bool,
}

/// An object and its facts.
#[derive(Clone, Debug)]
pub struct Row<F> {
    pub object: Arc<Object>,
    pub facts: Arc<F>,
}

pub type PodRow = Row<PodFacts>;
pub type NodeRow = Row<NodeFacts>;

impl<F: Facts> Row<F> {
    /// Parses a row without caching it.
    pub fn new(object: Arc<Object>) -> Row<F> {
        let facts = Arc::new(F::parse(&object).unwrap_or_default());
        Row { object, facts }
    }

    pub fn name(&self) -> &str {
        &self.object.header.name
    }

    /// Returns the value of a label; empty if there is none.
    pub fn label(&self, key: &str) -> &str {
        self.object.header.labels.get(key).map_or("", String::as_str)
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(default)]
    spec: Spec<'a>,
    #[serde(default)]
    status: Status<'a>,
}

#[derive(serde::Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    annotations: HashMap<Cow<'a, str>, Cow<'a, str>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default)]
    node_name: Cow<'a, str>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
    #[serde(default)]
    conditions: Vec<Condition<'a>>,
    #[serde(borrow, default)]
    container_statuses: Vec<Container<'a>>,
    #[serde(borrow, default)]
    init_container_statuses: Vec<Container<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow, default)]
    last_transition_time: Option<Cow<'a, str>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    #[serde(default)]
    restart_count: i32,
    #[serde(borrow, default)]
    state: State<'a>,
}

#[derive(Default, serde::Deserialize)]
struct State<'a> {
    #[serde(borrow, default)]
    terminated: Option<Terminated<'a>>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminated<'a> {
    #[serde(borrow, default)]
    finished_at: Option<Cow<'a, str>>,
}

impl Facts for PodFacts {
    fn parse(object: &Object) -> Option<PodFacts> {
        let pod: Pod<'_> = serde_json::from_slice(&object.bytes).ok()?;
        let ready = pod.status.conditions.iter().find(|one| one.r#type == "Ready" && one.status == "True");
        let since = |one: &Condition<'_>| one.last_transition_time.as_ref().and_then(|time| time.parse().ok());
        let annotated = |key: &str| pod.metadata.annotations.get(key).and_then(|value| value.parse().ok());
        let (containers, init) = (&pod.status.container_statuses, &pod.status.init_container_statuses);
        let ended = |one: &Container<'_>| one.state.terminated.as_ref()?.finished_at.as_ref()?.parse().ok();
        Some(PodFacts {
            ready: ready.map(since),
            finished: containers.iter().filter_map(ended).max(),
            restarts: containers.iter().map(|one| one.restart_count).max().unwrap_or(0),
            all_restarts: init.iter().chain(containers).map(|one| one.restart_count).fold(0, i32::saturating_add),
            deletion_cost: annotated(DELETION_COST).unwrap_or(0),
            completion_index: annotated(COMPLETION_INDEX),
            index_failures: annotated(INDEX_FAILURES).filter(|count| *count >= 0).unwrap_or(0),
            index_failures_ignored: annotated(INDEX_FAILURES_IGNORED).filter(|count| *count >= 0).unwrap_or(0),
            node: pod.spec.node_name.into(),
            phase: pod.status.phase.into(),
        })
    }
}

#[derive(serde::Deserialize)]
struct Node<'a> {
    #[serde(default)]
    spec: NodeSpec,
    #[serde(borrow, default)]
    status: NodeStatus<'a>,
}

#[derive(Default, serde::Deserialize)]
struct NodeStatus<'a> {
    #[serde(borrow, default)]
    conditions: Vec<Condition<'a>>,
}

#[derive(Default, serde::Deserialize)]
struct NodeSpec {
    #[serde(default)]
    taints: Vec<NodeTaint>,
}

#[derive(serde::Deserialize)]
struct NodeTaint {
    key: String,
    #[serde(default)]
    value: Option<String>,
    effect: String,
    #[serde(default, rename = "timeAdded")]
    time_added: Option<Timestamp>,
}

impl Facts for NodeFacts {
    fn parse(object: &Object) -> Option<NodeFacts> {
        let node: Node<'_> = serde_json::from_slice(&object.bytes).ok()?;
        let taint = |taint: NodeTaint| Taint {
            key: taint.key,
            value: taint.value,
            effect: taint.effect,
            time_added: taint.time_added.map(Time),
        };
        let ready = node.status.conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True");
        Some(NodeFacts { taints: node.spec.taints.into_iter().map(taint).collect(), ready })
    }
}

/// The facts of the newest requested version of each object, by uid.
pub struct Rows<F>(Mutex<Kept<F>>);

type Kept<F> = HashMap<Box<str>, (u64, Arc<F>), BuildHasherDefault<UidHasher>>;

/// Hashes uids. The server generates them at random, so no client can choose ones that collide: a keyed hash is not
/// needed.
#[derive(Default)]
pub struct UidHasher(u64);

impl Hasher for UidHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }

    /// Mixes the upper bits into the lower ones: a hash table uses both.
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

impl<F> Default for Rows<F> {
    fn default() -> Rows<F> {
        Rows(Mutex::default())
    }
}

impl<F: Facts> Rows<F> {
    pub fn of(&self, objects: Vec<Arc<Object>>) -> Vec<Row<F>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |object: Arc<Object>| {
            if let Some((revision, facts)) = kept.get(object.header.uid.as_str())
                && *revision == object.revision
            {
                return Row { facts: facts.clone(), object };
            }
            let row = Row::<F>::new(object);
            kept.insert(row.object.header.uid.as_str().into(), (row.object.revision, row.facts.clone()));
            row
        };
        objects.into_iter().map(row).collect()
    }

    /// Removes the facts of a deleted object.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::pods::PodState;
    use proptest::prelude::*;
    use testkit_fixture as fixture;

    fn object(value: &corten_meta::Value, revision: u64) -> Arc<Object> {
        Arc::new(Object::from_value(value, revision).unwrap())
    }

    #[test]
    fn a_row_is_of_the_version_that_was_asked_for() {
        let rows = Rows::default();
        let old = object(&fixture::object("pod p Pending"), 1);
        let new = object(&fixture::object("pod p Running node=a"), 2);
        let phase = |object: &Arc<Object>| rows.of(vec![object.clone()])[0].phase().to_owned();
        assert_eq!(
            (phase(&old), phase(&new), phase(&new), phase(&old)),
            ("Pending".into(), "Running".into(), "Running".into(), "Pending".into())
        );
        rows.forget(&new.header.uid);
        assert!(rows.0.lock().unwrap().is_empty());
    }

    proptest! {
        /// A row and the decoded pod agree.
        #[test]
        fn a_row_says_what_the_pod_says(
            phase in prop::option::of(prop::sample::select(vec!["Pending", "Running", "Failed", "Succeeded", "Unknown"])),
            node in prop::option::of("[a-z]{0,3}"), ready in prop::option::of(0i64..100), cost in "[-]?[0-9]{0,3}",
            restarts in prop::collection::vec(0i32..9, 0..3), leaving: bool,
        ) {
            let mut line = format!("pod p annotation.{DELETION_COST}={cost}");
            if let Some(phase) = phase { line += &format!(" {phase}").replace(" Unknown", " phase=Unknown"); }
            if let Some(node) = &node { line += &format!(" node={node}"); }
            if let Some(seconds) = ready { line += &format!(" ready={seconds}"); }
            if leaving { line += " deleting"; }
            let statuses: Vec<_> = restarts.iter().map(|count| format!("{{name: c, restartCount: {count}}}")).collect();
            let value = fixture::object(&format!("{line} status.containerStatuses=[{}]", statuses.join(", ")));
            let object = object(&value, 1);
            let decoded = corten_api::decode_object::<corten_api::k8s_openapi::api::core::v1::Pod>(&object).unwrap();
            let row = PodRow::new(object);
            prop_assert_eq!(row.phase(), decoded.phase());
            prop_assert_eq!(row.node_name(), decoded.node_name());
            prop_assert_eq!(row.ready(), decoded.ready());
            prop_assert_eq!(row.restarts(), decoded.restarts());
            prop_assert_eq!(row.deletion_cost(), decoded.deletion_cost());
            prop_assert_eq!(row.is_terminating(), decoded.is_terminating());
            prop_assert_eq!(row.created(), decoded.created());
            prop_assert_eq!(row.uid(), decoded.uid());
        }
    }
}
