//! The last search without a feasible node, cached for pods with the same demand.
//!
//! A thousand replicas that preempt are rejected by the same nodes for the same reasons; only the nodes that changed
//! since the one before are filtered again. Invariant: the cached result equals a new search.

use std::sync::Arc;

use crate::filtering::{Filters, filter_with_nominated};
use crate::framework::Search;
use crate::profile::Profile;
use crate::rows::demand::{Demand, NodeDemand};
use crate::rows::{PodRow, Snapshot};

#[derive(Default)]
pub struct Refused {
    kept: Option<Kept>,
}

struct Kept {
    profile: String,
    demand: Arc<Demand>,
    nodes: Arc<NodeDemand>,
    priority: i32,
    search: Search,
    /// The position of each node's verdict in the search, by slot.
    at: Vec<Option<u32>>,
    /// The number under which the snapshot records changes.
    noting: u64,
}

impl Refused {
    /// Caches a search, and lets the snapshot record the nodes that change from here on.
    pub fn keep(&mut self, profile: &Profile, pod: &PodRow, search: Search, snapshot: &mut Snapshot) {
        let mut at = vec![None; snapshot.slots()];
        for (number, rejected) in search.rejected.iter().enumerate() {
            at[rejected.slot] = u32::try_from(number).ok();
        }
        let noting = snapshot.begin_noting();
        // On its nominated node a pod does not block itself.
        if let Some(slot) = snapshot.find(&pod.nominated).map(|node| node.slot) {
            snapshot.touch(slot);
        }
        let (profile, demand, nodes) = (profile.name.clone(), pod.demand.clone(), pod.nodes.clone());
        self.kept = Some(Kept { profile, demand, nodes, priority: pod.priority, search, at, noting });
    }

    /// Takes the cached search and updates it, if it is for an equal pod and there is still no feasible node.
    pub fn take(
        &mut self,
        profile: &Profile,
        pod: &PodRow,
        filters: &Filters<'_>,
        snapshot: &mut Snapshot,
    ) -> Option<Search> {
        let mut kept = self.kept.take()?;
        let touched = snapshot.touched_since(kept.noting)?;
        let same = kept.profile == profile.name
            && kept.priority == pod.priority
            && Arc::ptr_eq(&kept.demand, &pod.demand)
            && Arc::ptr_eq(&kept.nodes, &pod.nodes);
        if !same || kept.search.rejected.len() != snapshot.len() {
            return None;
        }
        let nominated = snapshot.find(&pod.nominated).map(|node| node.slot);
        for slot in touched.into_iter().chain(nominated) {
            if !snapshot.node(slot).known {
                return None;
            }
            let number = kept.at.get(slot).copied().flatten()?;
            let (plugin, verdict) = filter_with_nominated(filters, pod, slot, snapshot)?;
            kept.search.replace(number as usize, plugin, verdict);
        }
        Some(kept.search)
    }
}
