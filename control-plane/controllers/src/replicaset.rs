//! ReplicaSet: as many pods of one template as asked for.
//!
//! Owns the pods that match its selector, adopts orphans, lets go what no longer matches. It never counts a pod that
//! ended or is on its way out, and never creates more than a burst at a time.

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Failure, Plan, Report, ResourceType, View, Watch};
use crate::workload::condition::{self, count};
use crate::workload::owner::{self, claim, selector};
use crate::workload::{pods, template};

/// How many pods one pass creates or deletes at most.
const BURST: usize = 500;
const REPLICA_FAILURE: &str = "ReplicaFailure";

pub struct ReplicaSetController;

pub struct Observed {
    replica_set: ReplicaSet,
    /// Own pods and matching orphans.
    candidates: Vec<Pod>,
    /// Pods of every ReplicaSet with the same owner, for a scale-down: it evens them out over nodes.
    related: Vec<Pod>,
    failure: Option<Failure>,
}

impl Controller for ReplicaSetController {
    type Observed = Observed;

    fn name(&self) -> &'static str {
        "replicaset-controller"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<ReplicaSet>(), Watch::mapped::<Pod>(of_pod)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let replica_set: ReplicaSet = view.typed(key)?;
        let uid = replica_set.metadata.uid.clone()?;
        let selector = selector(&replica_set.spec.as_ref()?.selector);
        let candidates: Vec<Pod> = view.claimable(&key.namespace, &uid, &selector);
        // Only who must give some up needs to know where the others are.
        let wanted = replica_set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let surplus = candidates.len() > usize::try_from(wanted).unwrap_or(0);
        let related = if surplus { related_pods(view, &replica_set) } else { Vec::new() };
        Some(Observed { replica_set, candidates, related, failure: view.last_failure() })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let replica_set = &observed.replica_set;
        let Some(spec) = &replica_set.spec else { return Plan::nothing() };
        let claimed = claim(replica_set, &selector(&spec.selector), &observed.candidates);
        let (active, rest): (Vec<Pod>, Vec<Pod>) = claimed.owned.into_iter().partition(pods::is_active);
        let terminating = rest.iter().filter(|pod| pods::is_terminating(pod) && !pods::is_terminal(pod)).count();

        let mut plan = Plan::from(claimed.actions);
        // The status goes first: a refused creation must not keep the failure of the last pass from being told.
        update_status(&mut plan, observed, &active, terminating, now);
        if replica_set.metadata.deletion_timestamp.is_none() {
            manage_replicas(&mut plan, observed, active, now);
        }
        plan
    }
}

/// The ReplicaSet that controls the pod, before and after; for an orphan every one that would take it.
fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys: Vec<Key> = owners_of(change, ReplicaSet::KIND);
    if let Some(pod) = change.new.as_ref().filter(|pod| pod.controller().is_none()) {
        keys.extend(matching_orphan::<ReplicaSet>(view, pod, |set| {
            set.spec.as_ref().map(|spec| selector(&spec.selector))
        }));
    }
    keys
}

/// The keys of the controllers of one kind that the changed object belongs or belonged to.
pub fn owners_of(change: &Change, kind: &str) -> Vec<Key> {
    let mut keys: Vec<Key> = [&change.old, &change.new]
        .into_iter()
        .flatten()
        .filter_map(|object| object.controller().filter(|owner| owner.kind == kind))
        .map(|owner| Key { namespace: change.key.namespace.clone(), name: owner.name.clone() })
        .collect();
    keys.dedup();
    keys
}

/// The controllers whose selector matches an object nobody controls.
pub fn matching_orphan<K: Typed>(
    view: &dyn View,
    orphan: &Object,
    selector: fn(&K) -> Option<corten_meta::Selector>,
) -> Vec<Key> {
    if orphan.header.labels.is_empty() {
        return Vec::new();
    }
    let all: Vec<K> = view.all(&orphan.header.namespace);
    let takes = |controller: &&K| selector(controller).is_some_and(|selector| selector.matches(&orphan.header.labels));
    all.iter().filter(takes).map(crate::runtime::key_of).collect()
}

fn related_pods(view: &dyn View, replica_set: &ReplicaSet) -> Vec<Pod> {
    let siblings: Vec<String> = match owner::controller_of(&replica_set.metadata) {
        Some(owner) => {
            view.owned(ResourceType::of::<ReplicaSet>(), &owner.uid).iter().map(|o| o.header.uid.clone()).collect()
        }
        None => replica_set.metadata.uid.iter().cloned().collect(),
    };
    siblings.iter().flat_map(|uid| view.owned_by::<Pod>(uid)).collect()
}

fn manage_replicas(plan: &mut Plan, observed: &Observed, mut active: Vec<Pod>, now: Timestamp) {
    let replica_set = &observed.replica_set;
    let Some(spec) = &replica_set.spec else { return };
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        let Some(template) = &spec.template else { return };
        let pod = template::pod_from(template, replica_set);
        let missing = (wanted - active.len()).min(BURST);
        plan.actions.extend((0..missing).map(|_| Action::create_reported(&pod, Report::pod_created(replica_set))));
    } else if active.len() > wanted {
        let surplus = (active.len() - wanted).min(BURST);
        pods::rank_for_deletion(&mut active, &observed.related, now);
        let report = Report::pod_deleted(replica_set);
        plan.actions
            .extend(active[..surplus].iter().map(|pod| Action::delete_with(pod, None, None, Some(report.clone()))));
    }
}

fn update_status(plan: &mut Plan, observed: &Observed, active: &[Pod], terminating: usize, now: Timestamp) {
    let status = status(observed, active, terminating, now);
    let min_ready = observed.replica_set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let soonest =
        active.iter().filter_map(|pod| pods::available_in(pod, min_ready, now)).filter(|wait| !wait.is_zero()).min();
    if let Some(wait) = soonest {
        plan.requeue(wait.max(Duration::from_millis(1)));
    }
    if observed.replica_set.status.as_ref() != Some(&status) {
        let mut updated = observed.replica_set.clone();
        updated.status = Some(status);
        plan.push(Action::update_status(&updated));
    }
}

fn status(observed: &Observed, active: &[Pod], terminating: usize, now: Timestamp) -> ReplicaSetStatus {
    let replica_set = &observed.replica_set;
    let spec = replica_set.spec.clone().unwrap_or_default();
    let labels = spec.template.and_then(|template| template.metadata).and_then(|meta| meta.labels).unwrap_or_default();
    let labelled = |pod: &&Pod| {
        labels.iter().all(|(key, value)| pod.metadata.labels.as_ref().and_then(|all| all.get(key)) == Some(value))
    };
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let mut status = ReplicaSetStatus {
        replicas: number(active.len()),
        fully_labeled_replicas: count(number(active.iter().filter(labelled).count())),
        ready_replicas: count(number(active.iter().filter(|pod| pods::is_ready(pod)).count())),
        available_replicas: count(number(active.iter().filter(|pod| pods::is_available(pod, min_ready, now)).count())),
        terminating_replicas: Some(number(terminating)),
        observed_generation: replica_set.metadata.generation,
        conditions: replica_set.status.as_ref().and_then(|status| status.conditions.clone()),
    };
    match &observed.failure {
        Some(failure) if condition::find(&status.conditions, REPLICA_FAILURE).is_none() => condition::set(
            &mut status.conditions,
            ReplicaSetCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                reason: Some(failure.reason.clone()),
                message: Some(failure.message.clone()),
                last_transition_time: Some(Time(now)),
            },
        ),
        Some(_) => {}
        None => condition::remove(&mut status.conditions, REPLICA_FAILURE),
    }
    status
}

#[cfg(test)]
#[path = "replicaset_tests.rs"]
mod tests;
