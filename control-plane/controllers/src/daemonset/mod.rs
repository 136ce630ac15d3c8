//! The DaemonSet controller: one pod on every eligible node.
//!
//! The steps: find the eligible nodes, [`manage`] creates and deletes pods accordingly, [`update`] replaces pods of an
//! old template within bounds, then the status. The controller binds no pod: a pod names its node by affinity, and the
//! scheduler binds it.

mod update;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use corten_api::k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use corten_api::placement::{selects_node, tolerates_all};
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use crate::runtime::{Action, Controller, NodeRow, Plan, PodRow, Report, View, Watch, decode, key_of};
use crate::workload::condition::count;
use crate::workload::history::{self, Current, History, REVISION_HASH_LABEL};
use crate::workload::owner::{claim, matching_orphan, new_orphan, owners_of, selector};
use crate::workload::{pods, template};

const BURST: usize = 250;
/// The taints that every pod of a DaemonSet tolerates: it stays where other pods are evicted.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

pub struct DaemonSetController;

pub struct Observed {
    set: DaemonSet,
    /// All nodes, by name.
    nodes: Vec<NodeRow>,
    candidates: Vec<PodRow>,
    history: History,
}

impl Controller for DaemonSetController {
    type Observed = Observed;

    const NAME: &'static str = "daemon-set-controller";
    const COMPONENT: &'static str = "daemonset-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<DaemonSet>(),
            Watch::mapped::<Pod>(of_pod),
            Watch::mapped::<Node>(of_node),
            Watch::mapped::<ControllerRevision>(|_, change| owners_of(change, DaemonSet::KIND)),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let set: DaemonSet = view.typed(key)?;
        let uid = set.metadata.uid.clone()?;
        let selector = selector(&set.spec.as_ref()?.selector);
        let candidates = view.claimable_rows(&key.namespace, &uid, &selector);
        let history = History::observe(view, &key.namespace, &uid, &selector);
        Some(Observed { set, nodes: view.nodes(), candidates, history })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let set = &observed.set;
        let Some(spec) = &set.spec else { return Plan::nothing() };
        let selector = selector(&spec.selector);
        let claimed = claim(set, &selector, &observed.candidates);
        let mut plan = Plan::from(claimed.actions);
        if set.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let revisions = observed.history.claim(set, &selector);
        plan.actions.extend(revisions.actions);
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let revision = match observed.history.current(set, &revisions.owned, collisions) {
            Current::Is(revision) => revision,
            Current::Becomes(action) => {
                plan.push(*action);
                return plan;
            }
            Current::Collides => return count_collision(set),
        };
        let pass = Pass::new(set, &observed.nodes, claimed.owned, history::hash_of(&revision), now);
        // The update runs only when every node has the pods it should have.
        if !pass.manage(&mut plan) {
            pass.update(&mut plan);
        }
        let all = pass.nodes_with_pods.iter().flat_map(|on_node| &on_node.pods).chain(&pass.homeless);
        let live: BTreeSet<&str> = all.map(revision_hash).chain([pass.hash.as_str()]).collect();
        plan.actions.extend(history::clean_up(&revisions.owned, &live, spec.revision_history_limit.unwrap_or(10)));
        pass.tell(&mut plan);
        plan
    }
}

fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = owners_of(change, DaemonSet::KIND);
    if let Some(pod) = new_orphan(change) {
        keys.extend(matching_orphan::<DaemonSet>(view, pod, |set| {
            set.spec.as_ref().map(|spec| selector(&spec.selector))
        }));
    }
    keys
}

/// Every DaemonSet if a node was created or deleted, or if its labels or taints changed; none for a heartbeat.
fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new) {
        let taints = |node: &Arc<Object>| NodeRow::new(Arc::clone(node)).facts.taints.clone();
        if old.header.labels == new.header.labels && taints(old) == taints(new) {
            return Vec::new();
        }
    }
    view.all::<DaemonSet>("").iter().map(key_of).collect()
}

fn count_collision(set: &DaemonSet) -> Plan {
    let mut updated = set.clone();
    let status = updated.status.get_or_insert_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
    Plan::from(Action::update_status(&updated))
}

/// Returns the node of a pod, or the node that its affinity names before it is scheduled.
fn target_node(pod: &PodRow) -> Cow<'_, str> {
    let bound = pods::node_name(pod);
    if !bound.is_empty() {
        return Cow::Borrowed(bound);
    }
    let required = || {
        let affinity = decode::<Pod>(&pod.object)?.spec?.affinity?.node_affinity?;
        let terms = affinity.required_during_scheduling_ignored_during_execution?.node_selector_terms;
        let mut fields = terms.into_iter().flat_map(|term| term.match_fields.unwrap_or_default());
        fields.find(|field| field.key == "metadata.name")?.values?.into_iter().next()
    };
    Cow::Owned(required().unwrap_or_default())
}

fn revision_hash(pod: &PodRow) -> &str {
    pod.label(REVISION_HASH_LABEL)
}

/// A node, the DaemonSet's decision for it, and the pods it has there, the oldest first.
struct NodePods<'a> {
    node: &'a NodeRow,
    runs: bool,
    /// Whether a pod that runs there stays, although taints would keep a new one out.
    stays: bool,
    pods: Vec<PodRow>,
}

/// One reconcile of a DaemonSet.
struct Pass<'a> {
    set: &'a DaemonSet,
    nodes_with_pods: Vec<NodePods<'a>>,
    /// Pods of nodes that do not exist.
    homeless: Vec<PodRow>,
    /// The number of nodes that should have a pod.
    desired: i32,
    hash: String,
    now: Timestamp,
}

impl<'a> Pass<'a> {
    fn new(set: &'a DaemonSet, nodes: &'a [NodeRow], owned: Vec<PodRow>, hash: String, now: Timestamp) -> Pass<'a> {
        let none = PodSpec::default();
        let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).unwrap_or(&none);
        let tolerations = tolerations(spec);
        let node_pods = |node: &'a NodeRow| {
            let (runs, stays) = wants(spec, &tolerations, node);
            NodePods { node, runs, stays, pods: Vec::new() }
        };
        let mut nodes_with_pods: Vec<NodePods<'a>> = nodes.iter().map(node_pods).collect();
        let by_name: HashMap<&str, usize> = nodes.iter().enumerate().map(|(at, node)| (node.name(), at)).collect();
        let mut homeless = Vec::new();
        for pod in owned {
            match by_name.get(&*target_node(&pod)) {
                Some(at) => nodes_with_pods[*at].pods.push(pod),
                None => homeless.push(pod),
            }
        }
        for on_node in nodes_with_pods.iter_mut().filter(|on_node| on_node.pods.len() > 1) {
            on_node.pods.sort_unstable_by(|a, b| {
                (a.object.header.creation_timestamp, a.name()).cmp(&(b.object.header.creation_timestamp, b.name()))
            });
        }
        homeless.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let desired = nodes_with_pods.iter().filter(|on_node| on_node.runs).count();
        Pass { set, nodes_with_pods, homeless, desired: i32::try_from(desired).unwrap_or(i32::MAX), hash, now }
    }
}

/// Returns (should run, should continue running).
fn wants(spec: &PodSpec, tolerations: &[Toleration], node: &NodeRow) -> (bool, bool) {
    let (none, header) = (BTreeMap::new(), &node.object.header);
    let named = spec.node_name.as_deref().is_none_or(|name| name.is_empty() || name == header.name);
    let wanted = spec.node_selector.as_ref().unwrap_or(&none);
    if !named || !selects_node(wanted, spec.affinity.as_ref(), &header.name, &header.labels) {
        return (false, false);
    }
    let stays = tolerates_all(tolerations, &node.facts.taints, &["NoExecute"]);
    (stays && tolerates_all(tolerations, &node.facts.taints, &["NoSchedule"]), stays)
}

impl Pass<'_> {
    fn min_ready(&self) -> i32 {
        self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn is_updated(&self, pod: &PodRow) -> bool {
        revision_hash(pod) == self.hash
    }

    /// Creates missing pods and deletes surplus ones; reports whether it planned a write.
    fn manage(&self, plan: &mut Plan) -> bool {
        let before = plan.actions.len();
        let surges = self.max_surge() > 0;
        // A pod that waits for a deleted node would wait forever. The pod garbage collector deletes the pods that ran
        // there.
        let lost = |pod: &&PodRow| pods::node_name(*pod).is_empty() && !pods::is_terminating(*pod);
        let (mut missing, mut surplus): (Vec<&str>, Vec<&PodRow>) =
            (Vec::new(), self.homeless.iter().filter(lost).collect());
        for on_node in &self.nodes_with_pods {
            let there = || on_node.pods.iter().filter(|pod| !pods::is_terminating(pod));
            for pod in there().filter(pods::is_terminal) {
                self.tell_ended(plan, pod, on_node.node.name());
                surplus.push(pod);
            }
            let alive = there().filter(|pod| !pods::is_terminal(pod));
            if !on_node.stays {
                surplus.extend(alive);
            } else if on_node.runs && on_node.pods.is_empty() {
                missing.push(on_node.node.name());
            } else if !surges {
                surplus.extend(alive.skip(1));
            }
        }
        let report = Report::pod_deleted(self.set);
        let deletions = surplus.into_iter().take(BURST).map(|pod| Action::delete_pod(pod, report.clone()));
        plan.actions.extend(deletions);
        plan.actions.extend(missing.into_iter().take(BURST).map(|node| self.create(node)));
        plan.actions.len() > before
    }

    fn tell_ended(&self, plan: &mut Plan, pod: &PodRow, node: &str) {
        let name = pod.object.key();
        if pods::phase(pod) == "Failed" {
            let message = format!("Found failed daemon pod {name} on node {node}, will try to kill it");
            plan.push(Action::warning(self.set, "FailedDaemonPod", message));
        } else {
            let message = format!("Found succeeded daemon pod {name} on node {node}, will try to delete it");
            plan.push(Action::normal(self.set, "SucceededDaemonPod", message));
        }
    }

    fn create(&self, node: &str) -> Action {
        let template = self.set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let mut pod = template::pod_from(&template, self.set);
        pod.metadata.labels.get_or_insert_default().insert(REVISION_HASH_LABEL.to_owned(), self.hash.clone());
        if let Some(generation) =
            self.set.metadata.annotations.as_ref().and_then(|all| all.get("deprecated.daemonset.template.generation"))
        {
            pod.metadata
                .labels
                .get_or_insert_default()
                .insert("pod-template-generation".to_owned(), generation.clone());
        }
        let spec = pod.spec.get_or_insert_default();
        spec.tolerations = Some(tolerations(spec));
        pin(spec, node);
        Action::create_reported(&pod, Report::pod_created(self.set))
    }

    /// Updates the status if it changed, and reconciles again when a pod becomes available.
    fn tell(&self, plan: &mut Plan) {
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: self.set.status.as_ref().and_then(|status| status.collision_count),
            conditions: self.set.status.as_ref().and_then(|status| status.conditions.clone()),
            ..DaemonSetStatus::default()
        };
        let (mut available, mut updated) = (0, 0);
        for on_node in &self.nodes_with_pods {
            let runs = on_node.runs;
            let alive = on_node.pods.iter().find(|pod| !pods::is_terminating(pod));
            status.desired_number_scheduled += i32::from(runs);
            status.number_misscheduled += i32::from(!runs && alive.is_some());
            let Some(pod) = alive.filter(|_| runs) else { continue };
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(pods::is_ready(pod));
            updated += i32::from(self.is_updated(pod));
            match pods::available_in(pod, self.min_ready(), self.now) {
                Some(Duration::ZERO) => available += 1,
                Some(wait) => plan.requeue(wait),
                None => {}
            }
        }
        status.updated_number_scheduled = count(updated);
        status.number_available = count(available);
        status.number_unavailable = count(status.desired_number_scheduled - available);
        if self.set.status.as_ref() != Some(&status) {
            let mut set = self.set.clone();
            set.status = Some(status);
            plan.push(Action::update_status(&set));
        }
    }
}

fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let mut tolerations = spec.tolerations.clone().unwrap_or_default();
    let network = ("node.kubernetes.io/network-unavailable", "NoSchedule");
    let wanted = TOLERATED.into_iter().chain((spec.host_network == Some(true)).then_some(network));
    for (key, effect) in wanted {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    tolerations
}

/// Requires one node by name, in place of the node names that the template requires.
fn pin(spec: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    let required =
        affinity.required_during_scheduling_ignored_during_execution.get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_fields = Some(vec![field.clone()]);
    }
}
