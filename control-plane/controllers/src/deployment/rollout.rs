//! The two strategies: RollingUpdate within bounds, and Recreate.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use super::{Pass, available, bounds, is_rolling, replicas, size_of, total};
use crate::workload::pods;

/// Returns the size of the new ReplicaSet that the surge allows, given the replicas of all ReplicaSets.
pub fn new_size(deployment: &Deployment, total: i32, current: i32) -> i32 {
    let wanted = replicas(deployment);
    if !is_rolling(deployment) {
        return wanted;
    }
    let room = wanted.saturating_add(bounds(deployment).0).saturating_sub(total).max(0);
    current + room.min(wanted - current)
}

impl Pass<'_> {
    /// Scales the new ReplicaSet up within the surge, then the old ones down within availability.
    pub(super) fn roll(&mut self) {
        if self.new.is_none() {
            return self.create_new();
        }
        if !self.grow_new() && !self.shrink_old() && self.is_complete() {
            self.clean_up();
        }
        self.sync_rollout_status();
    }

    /// Scales all old ReplicaSets down; scales the new one up only when the last old pod has terminated.
    pub(super) fn recreate(&mut self) {
        let old = self.old.clone();
        let mut scaled_down = false;
        for set in old.iter().filter(|set| size_of(set) > 0) {
            scaled_down |= self.resize(set, 0, false);
        }
        if scaled_down || self.old_pods_run() {
            return self.sync_rollout_status();
        }
        let Some(new) = self.new.clone() else { return self.create_new() };
        self.resize(&new, self.replicas(), false);
        if self.is_complete() {
            self.clean_up();
        }
        self.sync_rollout_status();
    }

    fn old_pods_run(&self) -> bool {
        let counted = self.old.iter().any(|set| set.status.as_ref().is_some_and(|status| status.replicas > 0));
        let new = self.new.as_ref().and_then(|set| set.metadata.uid.clone()).unwrap_or_default();
        counted || self.observed.pods.iter().any(|(set, pod)| *set != new && !pods::is_terminal(pod))
    }

    fn grow_new(&mut self) -> bool {
        let Some(new) = self.new.clone() else { return false };
        let (size, wanted) = (size_of(&new), self.replicas());
        let target =
            if size > wanted { wanted } else { new_size(&self.deployment, total(self.all().map(size_of)), size) };
        self.resize(&new, target, false)
    }

    /// Scales old ReplicaSets down: unhealthy replicas first, then healthy ones while enough stay available.
    fn shrink_old(&mut self) -> bool {
        let Some(new) = &self.new else { return false };
        let least_available = self.replicas() - bounds(&self.deployment).1;
        let unavailable = size_of(new).saturating_sub(available(new));
        let removable = total(self.all().map(size_of)).saturating_sub(least_available).saturating_sub(unavailable);
        let mut old: Vec<ReplicaSet> = self.old.iter().filter(|set| size_of(set) > 0).cloned().collect();
        if old.is_empty() || removable <= 0 {
            return false;
        }
        old.sort_unstable_by_key(|set| {
            (set.metadata.creation_timestamp.as_ref().map(|time| time.0), set.name().to_owned())
        });
        let available_now = total(self.all().map(available));
        let sizes = shrunk(&old, removable, available_now.saturating_sub(least_available).max(0));
        let mut changed = false;
        for (set, size) in old.iter().zip(sizes) {
            changed |= self.resize(set, size, false);
        }
        changed
    }
}

/// Returns the sizes after removing at most `unhealthy` unavailable replicas and then `healthy` of the rest.
fn shrunk(old: &[ReplicaSet], mut unhealthy: i32, mut healthy: i32) -> Vec<i32> {
    let mut sizes: Vec<i32> = old.iter().map(size_of).collect();
    for (size, set) in sizes.iter_mut().zip(old) {
        let removed = (*size - available(set)).clamp(0, unhealthy);
        *size -= removed;
        unhealthy -= removed;
    }
    for size in &mut sizes {
        let removed = (*size).min(healthy);
        *size -= removed;
        healthy -= removed;
    }
    sizes
}
