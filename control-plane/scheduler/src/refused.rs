//! The last search that found no node, kept for pods that ask for the same.
//!
//! A thousand replicas that make room for themselves are refused by the same nodes for the same reasons; only the nodes
//! that changed since the one before are looked at again. Invariant: what is taken out is what a search would find now.

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
    /// By slot, where in the search its verdict is.
    at: Vec<Option<u32>>,
    /// By which the snapshot says what changed since.
    noting: u64,
}

impl Refused {
    /// Keeps what was found, and has the snapshot note from here on which nodes change.
    pub fn keep(&mut self, profile: &Profile, pod: &PodRow, search: Search, snapshot: &mut Snapshot) {
        let mut at = vec![None; snapshot.slots()];
        for (number, rejected) in search.rejected.iter().enumerate() {
            at[rejected.slot] = u32::try_from(number).ok();
        }
        let noting = snapshot.begin_noting();
        // A pod is not in its own way where it is nominated to, as it is in others'.
        if let Some(slot) = snapshot.find(&pod.nominated).map(|node| node.slot) {
            snapshot.touch(slot);
        }
        let (profile, demand, nodes) = (profile.name.clone(), pod.demand.clone(), pod.nodes.clone());
        self.kept = Some(Kept { profile, demand, nodes, priority: pod.priority, search, at, noting });
    }

    /// What was kept, brought up to date, if it is of a pod like this one and there is still no node. What is taken out
    /// is kept no longer.
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
