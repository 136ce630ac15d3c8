//! DaemonSet: one pod on every node that should have one.
//!
//! The steps: which nodes want a pod, [`manage`] creates and deletes accordingly, [`update`] replaces pods of an old
//! template within bounds, then the status. It binds nothing: a pod names its node by affinity and is scheduled.

mod update;

use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use corten_api::k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
};
use corten_api::placement::{selects_node, tolerates_all};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::replicaset::{matching_orphan, new_orphan, owners_of};
use crate::runtime::{Action, Controller, Plan, Report, View, Watch, key_of};
use crate::workload::condition::count;
use crate::workload::history::{self, Current, REVISION_HASH_LABEL};
use crate::workload::owner::{claim, selector};
use crate::workload::{pods, template};

const BURST: usize = 250;
/// A daemon stays where others are driven away: what every pod of a DaemonSet tolerates.
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
    nodes: Vec<Node>,
    candidates: Vec<Pod>,
    revisions: Vec<ControllerRevision>,
}

impl Controller for DaemonSetController {
    type Observed = Observed;

    fn name(&self) -> &'static str {
        "daemon-set-controller"
    }

    fn component(&self) -> &'static str {
        "daemonset-controller"
    }

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
        let candidates = view.claimable(&key.namespace, &uid, &selector(&set.spec.as_ref()?.selector));
        let mut nodes: Vec<Node> = view.all("");
        nodes.sort_by(|a, b| a.name().cmp(b.name()));
        Some(Observed { set, nodes, candidates, revisions: view.all(&key.namespace) })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let set = &observed.set;
        let Some(spec) = &set.spec else { return Plan::nothing() };
        let claimed = claim(set, &selector(&spec.selector), &observed.candidates);
        let mut plan = Plan::from(claimed.actions);
        if set.metadata.deletion_timestamp.is_some() {
            return plan;
        }
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let revision = match history::current(set, &observed.revisions, collisions) {
            Current::Is(revision) => revision,
            Current::Becomes(action) => {
                plan.push(*action);
                return plan;
            }
            Current::Collides => return count_collision(set),
        };
        let pass = Pass {
            set,
            nodes: &observed.nodes,
            by_node: by_node(claimed.owned),
            hash: history::hash_of(&revision),
            now,
        };
        // A plan that replaces pods is made only when every node has what it should have.
        if !pass.manage(&mut plan) {
            pass.update(&mut plan);
        }
        let live: Vec<String> = pass.by_node.values().flatten().map(revision_hash).chain([pass.hash.clone()]).collect();
        let owned = history::owned(set, &observed.revisions);
        plan.actions.extend(history::clean_up(&owned, &live, spec.revision_history_limit.unwrap_or(10)));
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

/// A node that came, went, or changed its labels or taints concerns every DaemonSet; a heartbeat none.
fn of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    if let (Some(old), Some(new)) = (&change.old, &change.new) {
        let taints = |object| {
            crate::runtime::decode::<Node>(object)
                .and_then(|node| node.spec)
                .map(|spec| (spec.taints, spec.unschedulable))
        };
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

/// The node a pod is on, or is meant for while it waits to be scheduled.
fn target_node(pod: &Pod) -> String {
    let bound = pods::node_name(pod);
    if !bound.is_empty() {
        return bound.to_owned();
    }
    let required = || {
        let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
        let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
        let field = terms
            .iter()
            .flat_map(|term| term.match_fields.iter().flatten())
            .find(|field| field.key == "metadata.name")?;
        field.values.as_ref()?.first().cloned()
    };
    required().unwrap_or_default()
}

/// Pods by node, the oldest first.
fn by_node(mut owned: Vec<Pod>) -> BTreeMap<String, Vec<Pod>> {
    owned.sort_by_key(|pod| (pod.metadata.creation_timestamp.as_ref().map(|time| time.0), pod.name().to_owned()));
    let mut by_node: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for pod in owned {
        by_node.entry(target_node(&pod)).or_default().push(pod);
    }
    by_node
}

fn revision_hash(pod: &Pod) -> String {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION_HASH_LABEL)).cloned().unwrap_or_default()
}

/// One pass over a DaemonSet.
struct Pass<'a> {
    set: &'a DaemonSet,
    nodes: &'a [Node],
    by_node: BTreeMap<String, Vec<Pod>>,
    hash: String,
    now: Timestamp,
}

impl Pass<'_> {
    fn pods_on(&self, node: &str) -> &[Pod] {
        self.by_node.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    fn min_ready(&self) -> i32 {
        self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        revision_hash(pod) == self.hash
    }

    /// (should run, may stay): a pod already there stays through taints that would keep a new one out.
    fn wants(&self, node: &Node) -> (bool, bool) {
        let spec = self.set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
        let tolerations = tolerations(&spec);
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let none = BTreeMap::new();
        let (labels, wanted) = (node.metadata.labels.as_ref(), spec.node_selector.as_ref());
        let named = spec.node_name.as_deref().is_none_or(|name| name.is_empty() || name == node.name());
        let (labels, wanted) = (labels.unwrap_or(&none), wanted.unwrap_or(&none));
        if !named || !selects_node(wanted, spec.affinity.as_ref(), node.name(), labels) {
            return (false, false);
        }
        let stays = tolerates_all(&tolerations, &taints, &["NoExecute"]);
        (stays && tolerates_all(&tolerations, &taints, &["NoSchedule"]), stays)
    }

    /// Creates what is missing and deletes what is too much; says whether it wrote.
    fn manage(&self, plan: &mut Plan) -> bool {
        let before = plan.actions.len();
        let (mut missing, mut surplus) = (Vec::new(), Vec::new());
        for node in self.nodes {
            let (runs, stays) = self.wants(node);
            let (ended, alive): (Vec<&Pod>, Vec<&Pod>) =
                self.pods_on(node.name()).iter().filter(|pod| !pods::is_terminating(pod)).partition(pods::is_terminal);
            for pod in &ended {
                self.tell_ended(plan, pod, node.name());
            }
            surplus.extend(ended.iter().copied());
            if !stays {
                surplus.extend(alive);
            } else if alive.is_empty() && ended.is_empty() && runs && self.pods_on(node.name()).is_empty() {
                missing.push(node.name());
            } else if self.max_surge() == 0 {
                surplus.extend(alive.into_iter().skip(1));
            }
        }
        let report = Report::pod_deleted(self.set);
        let deletions =
            surplus.into_iter().take(BURST).map(|pod| Action::delete_with(pod, None, None, Some(report.clone())));
        plan.actions.extend(deletions);
        plan.actions.extend(missing.into_iter().take(BURST).map(|node| self.create(node)));
        plan.actions.len() > before
    }

    fn tell_ended(&self, plan: &mut Plan, pod: &Pod, node: &str) {
        let name = format!("{}/{}", pod.namespace(), pod.name());
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

    /// Writes the status if it changed, and looks again when a pod becomes available.
    fn tell(&self, plan: &mut Plan) {
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            collision_count: self.set.status.as_ref().and_then(|status| status.collision_count),
            conditions: self.set.status.as_ref().and_then(|status| status.conditions.clone()),
            ..DaemonSetStatus::default()
        };
        let (mut available, mut updated) = (0, 0);
        for node in self.nodes {
            let (runs, _) = self.wants(node);
            let alive = self.pods_on(node.name()).iter().find(|pod| !pods::is_terminating(pod));
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

/// Requires one node by name, in place of whatever node names the template required.
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

#[cfg(test)]
mod tests;
