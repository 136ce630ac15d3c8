//! The ReplicaSet and ReplicationController controllers: keep the desired number of pods of one template.
//!
//! The controller owns the pods that match its selector, adopts orphans, and releases pods that no longer match. It
//! never counts a terminated or terminating pod, and never creates more than a burst at a time.

mod replicated;

use std::marker::PhantomData;
use std::time::Duration;

use corten_api::k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use corten_api::k8s_openapi::api::core::v1::{Pod, ReplicationController};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Failure, Plan, PodRow, Report, ResourceType, View, Watch};
use crate::workload::condition::{self, count};
use crate::workload::owner::{self, claim, matching_orphan, new_orphan, owners_of};
use crate::workload::{pods, template};
use replicated::Replicated;

/// The most pods that one reconcile creates or deletes.
const BURST: usize = 500;
const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The controller of one of the kinds.
pub struct Replicas<K>(PhantomData<K>);

pub const REPLICA_SETS: Replicas<ReplicaSet> = Replicas(PhantomData);
pub const REPLICATION_CONTROLLERS: Replicas<ReplicationController> = Replicas(PhantomData);

pub struct Observed<K> {
    owner: K,
    /// The owner's pods and matching orphans.
    candidates: Vec<PodRow>,
    /// The pods of all ReplicaSets with the same owner, for a scale-down that spreads them over nodes.
    related: Vec<PodRow>,
    failure: Option<Failure>,
}

impl<K: Replicated> Controller for Replicas<K> {
    type Observed = Observed<K>;

    const NAME: &'static str = K::CONTROLLER;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<K>(), Watch::mapped::<Pod>(of_pod::<K>)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed<K>> {
        let owner: K = view.typed(key)?;
        let uid = owner.meta().uid.clone()?;
        let candidates = view.claimable_rows(&key.namespace, &uid, &owner.selector()?);
        // Only a scale-down needs the related pods.
        let surplus = candidates.len() > usize::try_from(owner.replicas()).unwrap_or(0);
        let related = if surplus { related_pods(view, &owner) } else { Vec::new() };
        Some(Observed { owner, candidates, related, failure: view.last_failure() })
    }

    fn reconcile(&self, observed: &Observed<K>, now: Timestamp) -> Plan {
        let owner = &observed.owner;
        let Some(selector) = owner.selector() else { return Plan::nothing() };
        let claimed = claim(owner, &selector, &observed.candidates);
        let (active, rest): (Vec<PodRow>, Vec<PodRow>) = claimed.owned.into_iter().partition(pods::is_active);
        let terminating = rest.iter().filter(|pod| pods::is_terminating(*pod) && !pods::is_terminal(*pod)).count();

        let mut plan = Plan::from(claimed.actions);
        // The status goes first: a rejected creation must not prevent the report of the last failure.
        update_status(&mut plan, observed, &active, terminating, now);
        if owner.meta().deletion_timestamp.is_none() {
            manage_replicas(&mut plan, observed, active, now);
        }
        plan
    }
}

/// Returns the pod's controller, before and after; for an orphan all whose selector matches.
fn of_pod<K: Replicated>(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys: Vec<Key> = owners_of(change, K::KIND);
    keys.extend(new_orphan(change).into_iter().flat_map(|pod| matching_orphan::<K>(view, pod, K::selector)));
    keys
}

fn related_pods<K: Replicated>(view: &dyn View, owner: &K) -> Vec<PodRow> {
    let siblings: Vec<String> = match owner::controller_of(owner.meta()) {
        Some(above) => view.owned(ResourceType::of::<K>(), &above.uid).iter().map(|o| o.header.uid.clone()).collect(),
        None => owner.meta().uid.iter().cloned().collect(),
    };
    view.rows(siblings.iter().flat_map(|uid| view.owned(ResourceType::of::<Pod>(), uid)).collect())
}

fn manage_replicas<K: Replicated>(plan: &mut Plan, observed: &Observed<K>, mut active: Vec<PodRow>, now: Timestamp) {
    let owner = &observed.owner;
    let wanted = usize::try_from(owner.replicas()).unwrap_or(0);
    if active.len() < wanted {
        let Some(template) = owner.template() else { return };
        let pod = template::pod_from(template, owner);
        let missing = (wanted - active.len()).min(BURST);
        plan.actions.extend((0..missing).map(|_| Action::create_reported(&pod, Report::pod_created(owner))));
    } else if active.len() > wanted {
        let surplus = (active.len() - wanted).min(BURST);
        pods::rank_for_deletion(&mut active, &observed.related, now);
        count_age_ratios(plan, &active, surplus, now);
        let report = Report::pod_deleted(owner);
        plan.actions.extend(active[..surplus].iter().map(|pod| Action::delete_pod(pod, report.clone())));
    }
}

/// Counts the ages of the deleted ready pods relative to the youngest of all.
fn count_age_ratios(plan: &mut Plan, active: &[PodRow], surplus: usize, now: Timestamp) {
    let age = |pod: &PodRow| now.duration_since(pods::PodState::created(pod).unwrap_or(now)).as_millis();
    let youngest = active.iter().map(age).min().unwrap_or(0);
    for pod in active[..surplus].iter().filter(|pod| pods::is_ready(*pod) && youngest > 0) {
        plan.count(&metrics::DELETION_AGE_RATIO, [], age(pod) as f64 / youngest as f64);
    }
}

fn update_status<K: Replicated>(
    plan: &mut Plan,
    observed: &Observed<K>,
    active: &[PodRow],
    terminating: usize,
    now: Timestamp,
) {
    let owner = &observed.owner;
    let wait = |pod: &PodRow| pods::available_in(pod, owner.min_ready_seconds(), now);
    if let Some(wait) = active.iter().filter_map(wait).filter(|wait| !wait.is_zero()).min() {
        plan.requeue(wait.max(Duration::from_millis(1)));
    }
    let updated = owner.with_status(status(observed, active, terminating, now));
    if updated != *owner {
        plan.push(Action::update_status(&updated));
    }
}

fn status<K: Replicated>(
    observed: &Observed<K>,
    active: &[PodRow],
    terminating: usize,
    now: Timestamp,
) -> ReplicaSetStatus {
    let owner = &observed.owner;
    let template = owner.template().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let labelled = |pod: &&PodRow| labels.iter().all(|(key, value)| pod.object.header.labels.get(key) == Some(value));
    let min_ready = owner.min_ready_seconds();
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let mut status = ReplicaSetStatus {
        replicas: number(active.len()),
        fully_labeled_replicas: count(number(active.iter().filter(labelled).count())),
        ready_replicas: count(number(active.iter().filter(|pod| pods::is_ready(*pod)).count())),
        available_replicas: count(number(active.iter().filter(|pod| pods::is_available(*pod, min_ready, now)).count())),
        terminating_replicas: Some(number(terminating)),
        observed_generation: owner.meta().generation,
        conditions: owner.conditions(),
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
mod tests;
