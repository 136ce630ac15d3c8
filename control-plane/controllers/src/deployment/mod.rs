//! The Deployment controller: moves pods from one template to the next, one ReplicaSet each, within surge and
//! availability bounds.
//!
//! The steps: [`revisions`] finds the new ReplicaSet and numbers it, [`scaling`] resizes in proportion, [`rollout`]
//! moves replicas from the old ReplicaSets to the new one, [`status`] reports the progress. A Deployment never writes a
//! pod itself.

mod revisions;
mod rollout;
mod scaling;
mod status;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Failure, Plan, ResourceType, View, Watch};
use crate::workload::int_or_percent::scaled;
use crate::workload::owner::{self, claim, matching_orphan, new_orphan, owners_of, selector};

pub struct DeploymentController;

pub struct Observed {
    deployment: Deployment,
    /// The Deployment's ReplicaSets, and orphans that match its selector.
    replica_sets: Vec<ReplicaSet>,
    /// Whether another object has the name of the new ReplicaSet.
    collides: bool,
    /// The pods of the Deployment's ReplicaSets, by the uid of the ReplicaSet; only the Recreate strategy reads them.
    pods: Vec<(String, Pod)>,
    failure: Option<Failure>,
}

impl Controller for DeploymentController {
    type Observed = Observed;

    const NAME: &'static str = "deployment-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Deployment>(), Watch::mapped::<ReplicaSet>(of_replica_set), Watch::mapped::<Pod>(of_pod)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let deployment: Deployment = view.typed(key)?;
        let uid = deployment.metadata.uid.clone()?;
        let chosen = selector(&deployment.spec.as_ref()?.selector);
        let replica_sets: Vec<ReplicaSet> = view.claimable(&key.namespace, &uid, &chosen);
        let name = revisions::find_new(&deployment, &replica_sets).is_none().then(|| revisions::new_name(&deployment));
        let taken =
            |name: String| view.get(ResourceType::of::<ReplicaSet>(), &Key::new(&key.namespace, name)).is_some();
        let collides = name.flatten().is_some_and(|(name, _)| taken(name));
        let recreates = !is_rolling(&deployment);
        let own = replica_sets.iter().filter(|set| recreates && owner::is_controlled_by(&set.metadata, &uid));
        let of_set = |set: &ReplicaSet| set.metadata.uid.clone().unwrap_or_default();
        let pods = own
            .flat_map(|set| view.owned_by::<Pod>(&of_set(set)).into_iter().map(move |pod| (of_set(set), pod)))
            .collect();
        Some(Observed { deployment, replica_sets, collides, pods, failure: view.last_failure() })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let deployment = &observed.deployment;
        let Some(spec) = &deployment.spec else { return Plan::nothing() };
        let claimed = claim(deployment, &selector(&spec.selector), &observed.replica_sets);
        if !claimed.actions.is_empty() {
            return Plan::from(claimed.actions);
        }
        let mut owned = claimed.owned;
        // The oldest of equal ReplicaSets is the new one; the name makes the order total.
        owned.sort_by(|a, b| by_age(a).cmp(&by_age(b)));
        let mut pass = Pass::new(observed, owned, now);
        pass.run();
        pass.plan
    }
}

fn by_age(set: &ReplicaSet) -> (Option<Timestamp>, &str) {
    (set.metadata.creation_timestamp.as_ref().map(|time| time.0), set.name())
}

fn of_replica_set(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = owners_of(change, Deployment::KIND);
    if let Some(set) = new_orphan(change) {
        keys.extend(matching_orphan::<Deployment>(view, set, |d| d.spec.as_ref().map(|spec| selector(&spec.selector))));
    }
    keys
}

/// The strategy Recreate may wait for the deletion of a pod.
fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.new.as_ref().is_some_and(|pod| pod.header.deletion_timestamp.is_none()) {
        return Vec::new();
    }
    let sets = owners_of(change, ReplicaSet::KIND);
    let resource = ResourceType::of::<ReplicaSet>();
    let deployment = |set: &Key| {
        let object = view.get(resource, set)?;
        let owner = object.controller().filter(|owner| owner.kind == Deployment::KIND)?;
        Some(Key { namespace: set.namespace.clone(), name: owner.name.clone() })
    };
    sets.iter().filter_map(deployment).collect()
}

/// One reconcile of a Deployment: the parts of the decision, and the plan.
struct Pass<'a> {
    observed: &'a Observed,
    deployment: Deployment,
    new: Option<ReplicaSet>,
    old: Vec<ReplicaSet>,
    now: Timestamp,
    plan: Plan,
}

impl<'a> Pass<'a> {
    fn new(observed: &'a Observed, mut owned: Vec<ReplicaSet>, now: Timestamp) -> Pass<'a> {
        let deployment = observed.deployment.clone();
        let new = revisions::find_new(&deployment, &owned).map(|index| owned.remove(index));
        Pass { observed, deployment, new, old: owned, now, plan: Plan::nothing() }
    }

    /// Runs the steps in order. A step that writes what the next one would read ends the reconcile; the echo of its
    /// write starts the next.
    fn run(&mut self) {
        if self.deployment.metadata.deletion_timestamp.is_some() {
            return self.sync_status();
        }
        if self.mark_paused() || self.sync_revision() {
            return;
        }
        if self.is_paused() || self.is_scaling() {
            self.scale();
            if self.is_paused() {
                self.clean_up();
            }
            return self.sync_status();
        }
        match is_rolling(&self.deployment) {
            true => self.roll(),
            false => self.recreate(),
        }
    }

    fn is_paused(&self) -> bool {
        self.deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false)
    }

    fn all(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.old.iter().chain(&self.new)
    }

    fn replicas(&self) -> i32 {
        replicas(&self.deployment)
    }

    /// Resizes a ReplicaSet and writes the bounds it was sized for; reports whether the size changed.
    fn resize(&mut self, set: &ReplicaSet, size: i32, even_if_same: bool) -> bool {
        let before = size_of(set);
        if before == size && !even_if_same {
            return false;
        }
        let mut updated = set.clone();
        let bounds_changed = revisions::annotate_bounds(&mut updated, &self.deployment);
        if before == size && !bounds_changed {
            return false;
        }
        updated.spec.get_or_insert_default().replicas = Some(size);
        self.plan.push(Action::update(&updated));
        if before != size {
            let direction = if before < size { "up" } else { "down" };
            let message = format!("Scaled {direction} replica set {} from {before} to {size}", set.name());
            self.plan.push(Action::normal(&self.deployment, "ScalingReplicaSet", message));
        }
        before != size
    }
}

fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("Recreate")
}

fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// Sums sizes without overflow: users may write any number.
fn total(sizes: impl Iterator<Item = i32>) -> i32 {
    sizes.fold(0, i32::saturating_add)
}

fn size_of(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

/// Returns the bounds in pods: (surge, unavailable). They are never both zero, or no rollout could proceed; Recreate
/// has none.
fn bounds(deployment: &Deployment) -> (i32, i32) {
    let total = replicas(deployment);
    if !is_rolling(deployment) || total == 0 {
        return (0, 0);
    }
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
    let surge = scaled(rolling.max_surge.as_ref(), total, true);
    let unavailable = scaled(rolling.max_unavailable.as_ref(), total, false);
    match (surge, unavailable) {
        (0, 0) => (0, 1),
        (surge, unavailable) => (surge, unavailable.min(total)),
    }
}

#[cfg(test)]
mod tests;
