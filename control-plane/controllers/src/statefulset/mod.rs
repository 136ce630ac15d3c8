//! The StatefulSet controller: pods with stable names, an order and volumes of their own.
//!
//! The steps: revisions of the template, then every ordinal in order ([`replicas`]), then surplus pods, then the
//! rolling update from the last to the first; claims get the owners that [`retention`] determines. With OrderedReady
//! pod management each step waits for the pod before it.

mod identity;
mod replicas;
mod retention;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus};
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Label, Plan, PodRow, ResourceType, View, Watch};
use crate::workload::condition::count;
use crate::workload::history::{self, Current, History};
use crate::workload::owner::{Claimable, claim, matching_orphan, new_orphan, owners_of, selector};
use crate::workload::pods;
use identity::{ordinal_of, revision_of};

pub struct StatefulSetController;

pub struct Observed {
    set: StatefulSet,
    candidates: Vec<PodRow>,
    claims: Vec<Arc<Object>>,
    history: History,
}

impl Controller for StatefulSetController {
    type Observed = Observed;

    const NAME: &'static str = "statefulset-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<StatefulSet>(),
            Watch::mapped::<Pod>(of_pod),
            Watch::mapped::<ControllerRevision>(|_, change| owners_of(change, StatefulSet::KIND)),
            Watch::mapped::<PersistentVolumeClaim>(retention::of_claim),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let set: StatefulSet = view.typed(key)?;
        let uid = set.metadata.uid.clone()?;
        let spec = set.spec.as_ref()?;
        let selector = selector(&spec.selector);
        let mut candidates = view.claimable_rows(&key.namespace, &uid, &selector);
        // A pod that merely has the labels is not adopted: its name must contain its ordinal.
        candidates.retain(|pod| ordinal_of(&set, pod.name()).is_some() || pod.controller_uid() == Some(&uid));
        let claims = match spec.volume_claim_templates {
            Some(_) => view.list(ResourceType::of::<PersistentVolumeClaim>(), &key.namespace),
            None => Vec::new(),
        };
        let history = History::observe(view, &key.namespace, &uid, &selector);
        Some(Observed { candidates, claims, history, set })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let set = &observed.set;
        let Some(spec) = &set.spec else { return Plan::nothing() };
        if set.metadata.deletion_timestamp.is_some() {
            return Plan::nothing();
        }
        let selector = selector(&spec.selector);
        let claimed = claim(set, &selector, &observed.candidates);
        let revisions = observed.history.claim(set, &selector);
        let mut plan = Plan::from(revisions.actions);
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let update = match observed.history.current(set, &revisions.owned, collisions) {
            Current::Is(revision) => *revision,
            Current::Becomes(action) => {
                plan.push(*action);
                return plan;
            }
            Current::Collides => return count_collision(set),
        };
        let current_name = set.status.as_ref().and_then(|status| status.current_revision.clone()).unwrap_or_default();
        let current =
            revisions.owned.iter().find(|revision| revision.name() == current_name).unwrap_or(&update).clone();
        plan.actions.extend(claimed.actions);
        let numbered = |pod: PodRow| Some((ordinal_of(set, pod.name())?, pod));
        let pass = Pass {
            set,
            spec,
            claims: observed.claims.iter().map(|claim| (claim.header.name.as_str(), claim)).collect(),
            members: claimed.owned.into_iter().filter_map(numbered).collect(),
            current,
            update,
            now,
        };
        pass.tell(&mut plan);
        pass.run(&mut plan);
        let known = [history::hash_of(&pass.current), history::hash_of(&pass.update)];
        let live: BTreeSet<&str> =
            known.iter().map(String::as_str).chain(pass.members.values().map(hash_label)).collect();
        plan.actions.extend(history::clean_up(&revisions.owned, &live, spec.revision_history_limit.unwrap_or(10)));
        plan
    }
}

fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = owners_of(change, StatefulSet::KIND);
    if let Some(pod) = new_orphan(change) {
        keys.extend(matching_orphan::<StatefulSet>(view, pod, |set| {
            set.spec.as_ref().map(|spec| selector(&spec.selector))
        }));
    }
    keys
}

fn count_collision(set: &StatefulSet) -> Plan {
    let mut updated = set.clone();
    let status = updated.status.get_or_insert_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
    Plan::from(Action::update_status(&updated))
}

fn hash_label(pod: &PodRow) -> &str {
    // Pods carry the whole name of their revision; the hash follows the name of the set.
    revision_of(pod).rsplit('-').next().unwrap_or_default()
}

/// One reconcile of a StatefulSet.
struct Pass<'a> {
    set: &'a StatefulSet,
    spec: &'a StatefulSetSpec,
    /// All claims of the namespace, by name, if the set has claim templates.
    claims: HashMap<&'a str, &'a Arc<Object>>,
    /// The pods of the set, by ordinal.
    members: BTreeMap<i32, PodRow>,
    current: ControllerRevision,
    update: ControllerRevision,
    now: Timestamp,
}

impl Pass<'_> {
    fn start(&self) -> i32 {
        self.spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0)
    }

    fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    /// Returns the desired ordinals. A set that starts near the largest number ends with it.
    fn ordinals(&self) -> Range<i32> {
        self.start()..self.start().saturating_add(self.replicas())
    }

    /// Returns the first ordinal that a rolling update reaches.
    fn first_updated(&self) -> i32 {
        self.start().saturating_add(self.partition())
    }

    /// Reports whether each step waits for the one before.
    fn is_ordered(&self) -> bool {
        self.spec.pod_management_policy.as_deref() != Some("Parallel")
    }

    fn min_ready(&self) -> i32 {
        self.spec.min_ready_seconds.unwrap_or(0)
    }

    fn is_available(&self, pod: &PodRow) -> bool {
        pods::is_available(pod, self.min_ready(), self.now) && pods::is_active(pod)
    }

    /// Returns the first ordinal that a rolling update reaches.
    fn partition(&self) -> i32 {
        let rolling = self.spec.update_strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
        rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    fn is_rolling(&self) -> bool {
        self.spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    fn tell(&self, plan: &mut Plan) {
        let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
        let mut soonest: Option<Duration> = None;
        for pod in self.members.values() {
            let wait = pods::available_in(pod, self.min_ready(), self.now);
            soonest = soonest.into_iter().chain(wait.filter(|wait| !wait.is_zero())).min();
            if pods::is_active(pod) {
                let revision = revision_of(pod);
                ready += i32::from(pods::is_ready(pod));
                available += i32::from(wait == Some(Duration::ZERO));
                current += i32::from(revision == self.current.name());
                updated += i32::from(revision == self.update.name());
            }
        }
        let mut status = StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: i32::try_from(self.members.len()).unwrap_or(i32::MAX),
            ready_replicas: count(ready),
            available_replicas: Some(available),
            current_replicas: count(current),
            updated_replicas: count(updated),
            current_revision: Some(self.current.name().to_owned()),
            update_revision: Some(self.update.name().to_owned()),
            collision_count: Some(self.set.status.as_ref().and_then(|status| status.collision_count).unwrap_or(0)),
            conditions: self.set.status.as_ref().and_then(|status| status.conditions.clone()),
        };
        // The update is complete when all pods have its revision and are ready: it becomes the current revision.
        let complete = self.is_rolling()
            && updated == status.replicas
            && ready == status.replicas
            && status.replicas == self.replicas();
        if complete {
            status.current_revision = status.update_revision.clone();
            status.current_replicas = status.updated_replicas;
        }
        let labels: [Label; 3] = [
            self.set.namespace().into(),
            self.set.name().into(),
            self.spec.pod_management_policy.as_deref().unwrap_or("OrderedReady").into(),
        ];
        plan.count(&metrics::MOST_UNAVAILABLE, labels.clone(), self.most_unavailable().into());
        plan.count(&metrics::UNAVAILABLE, labels, (self.replicas() - available).max(0).into());
        if let Some(wait) = soonest {
            plan.requeue(wait);
        }
        if self.set.status.as_ref() != Some(&status) {
            let mut updated = self.set.clone();
            updated.status = Some(status);
            plan.push(Action::update_status(&updated));
        }
    }
}
