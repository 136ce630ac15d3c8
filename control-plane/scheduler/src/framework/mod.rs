//! The scheduling framework: upstream's extension points, and the hooks of a plugin.
//!
//! Every hook has a default and decides on rows alone. Writes and waits are returned as [`Effect`]s; only the
//! scheduler's own task carries them out, so a plugin must never block or call the API.

mod search;

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::ContainerExtendedResourceRequest;
use corten_api::k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use corten_meta::Key;

use crate::queue_entry::Entry;
use crate::rows::shortlist::Shortlist;
use crate::rows::{NodeChange, NodeRow, PodRow, Snapshot};

pub use search::{Rejected, Search};

pub const MAX_SCORE: i64 = 100;

/// The state that a plugin computes once for a pod, for its own later hooks.
pub type State = Box<dyn Any + Send + Sync>;

/// The number of nodes to find before the best of them is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub percentage: usize,
    pub absolute: usize,
}

impl Limits {
    pub fn candidates(self, nodes: usize) -> usize {
        (nodes * self.percentage / 100).max(self.absolute).min(nodes)
    }
}

/// An extension point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    pub const ALL: [Point; 12] = [
        Point::PreEnqueue,
        Point::QueueSort,
        Point::PreFilter,
        Point::Filter,
        Point::PostFilter,
        Point::PreScore,
        Point::Score,
        Point::Reserve,
        Point::Permit,
        Point::PreBind,
        Point::Bind,
        Point::PostBind,
    ];

    /// Returns upstream's name of the extension point.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; Point::ALL.len()] = [
            "PreEnqueue",
            "QueueSort",
            "PreFilter",
            "Filter",
            "PostFilter",
            "PreScore",
            "Score",
            "Reserve",
            "Permit",
            "PreBind",
            "Bind",
            "PostBind",
        ];
        NAMES[self as usize]
    }
}

/// The reasons of a verdict, in upstream's words. Usually one static string, which costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reasons {
    One(&'static str),
    Many(Arc<[String]>),
}

impl Reasons {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match self {
            Reasons::One(reason) => (Some(*reason), &[][..]),
            Reasons::Many(reasons) => (None, &reasons[..]),
        };
        one.into_iter().chain(many.iter().map(String::as_str))
    }

    pub fn text(&self) -> String {
        self.iter().collect::<Vec<_>>().join(", ")
    }
}

/// Whether a node can take the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fits,
    /// The node is infeasible; removing other pods could change that.
    Unschedulable(Reasons),
    /// The node is infeasible, and removing other pods does not change that.
    Unresolvable(Reasons),
    /// The pod cannot be decided about: it is rejected for all nodes and tried again after a backoff.
    Error(Reasons),
}

impl Verdict {
    pub fn unschedulable(reason: &'static str) -> Verdict {
        Verdict::Unschedulable(Reasons::One(reason))
    }

    pub fn unresolvable(reason: &'static str) -> Verdict {
        Verdict::Unresolvable(Reasons::One(reason))
    }

    pub fn unresolvable_because(reason: String) -> Verdict {
        Verdict::Unresolvable(Reasons::Many([reason].into()))
    }

    pub fn error(reason: String) -> Verdict {
        Verdict::Error(Reasons::Many([reason].into()))
    }

    pub fn fits(&self) -> bool {
        *self == Verdict::Fits
    }

    pub fn reasons(&self) -> Option<&Reasons> {
        match self {
            Verdict::Fits => None,
            Verdict::Unschedulable(reasons) | Verdict::Unresolvable(reasons) | Verdict::Error(reasons) => Some(reasons),
        }
    }
}

pub enum PreFilter {
    /// The plugin has nothing to filter for this pod.
    Skip,
    Continue(State),
    /// Only these nodes, by slot, can be feasible.
    Only(State, Vec<usize>),
    /// No node is feasible.
    Reject(Verdict),
}

pub enum PreScore {
    Skip,
    /// All nodes would get this score.
    Same(i64),
    Ready(State),
}

/// A write for a pod, before it is bound or because it cannot be.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Bind the volume to the claim.
    BindVolume { volume: String, claim: Key, claim_uid: String },
    /// Provision a volume for the claim that the node can use. `written` is the revision of the claim that names the
    /// node.
    Provision { claim: Key, written: Option<u64> },
    /// Allocate devices to the ResourceClaim, unless it has them, and reserve it for the pod.
    AllocateClaim { claim: Key, allocation: Option<Box<AllocationResult>> },
    /// Create the ResourceClaim of the pod's extended resources, allocated and reserved. `written` is the claim's name.
    CreateClaim {
        claim: Box<ResourceClaim>,
        allocation: Box<AllocationResult>,
        mappings: Vec<ContainerExtendedResourceRequest>,
        written: Option<Key>,
    },
    /// Deallocate a ResourceClaim.
    DeallocateClaim { claim: Key },
    /// Delete a ResourceClaim that was created for the pod's extended resources and is not used.
    DeleteClaim { claim: Key },
}

/// The result of a post-filter plugin: its writes and its message.
pub struct Aftermath {
    pub why: String,
    pub effect: Option<Effect>,
    /// Whether no further plugin is called.
    pub ends: bool,
}

/// A cluster event that may make a rejected pod schedulable.
#[derive(Clone, Copy, Debug)]
pub enum ClusterEvent<'a> {
    NodeAdded(&'a NodeRow),
    NodeUpdated(&'a NodeRow, NodeChange),
    NodeRemoved,
    /// A pod was bound or assumed.
    PodPlaced(&'a PodRow),
    /// Labels or requests of a scheduled pod changed.
    PodUpdated(&'a PodRow, &'a PodRow),
    /// A scheduled pod terminated or was deleted.
    PodRemoved(&'a PodRow),
    NamespaceChanged,
    ClaimChanged(&'a Key),
    VolumeChanged,
    StorageClassChanged,
    StorageCapacityChanged,
    CsiDriverChanged,
    CsiNodeChanged,
    AttachmentRemoved,
    /// ResourceSlices, DeviceClasses or ResourceClaims changed.
    DevicesChanged,
}

impl ClusterEvent<'_> {
    /// Returns upstream's name of the event, for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            ClusterEvent::NodeAdded(_) => "NodeAdd",
            ClusterEvent::NodeUpdated(_, change) => match change {
                NodeChange { allocatable: true, .. } => "NodeUpdateNodeAllocatable",
                NodeChange { labels: true, .. } => "NodeUpdateNodeLabel",
                NodeChange { declared_features: true, .. } => "NodeUpdateNodeDeclaredFeature",
                NodeChange { taints: true, .. } | NodeChange { unschedulable: true, .. } => "NodeUpdateNodeTaint",
                _ => "NodeUpdate",
            },
            ClusterEvent::NodeRemoved => "NodeDelete",
            ClusterEvent::PodPlaced(_) => "AssignedPodAdd",
            ClusterEvent::PodUpdated(_, _) => "AssignedPodUpdate",
            ClusterEvent::PodRemoved(_) => "AssignedPodDelete",
            ClusterEvent::NamespaceChanged => "NamespaceUpdate",
            ClusterEvent::ClaimChanged(_) => "PersistentVolumeClaimUpdate",
            ClusterEvent::VolumeChanged => "PersistentVolumeUpdate",
            ClusterEvent::StorageClassChanged => "storage.k8s.io/StorageClassUpdate",
            ClusterEvent::StorageCapacityChanged => "storage.k8s.io/CSIStorageCapacityUpdate",
            ClusterEvent::CsiDriverChanged => "storage.k8s.io/CSIDriverUpdate",
            ClusterEvent::CsiNodeChanged => "storage.k8s.io/CSINodeUpdate",
            ClusterEvent::AttachmentRemoved => "storage.k8s.io/VolumeAttachmentDelete",
            ClusterEvent::DevicesChanged => "resource.k8s.io/ResourceClaimUpdate",
        }
    }
}

pub trait Plugin: Send + Sync {
    /// Queue sort: the pod with the lower rank is first.
    fn rank(&self, _entry: &Entry) -> (i64, i128) {
        (0, 0)
    }

    fn pre_enqueue(&self, _pod: &PodRow) -> Verdict {
        Verdict::Fits
    }

    fn pre_filter(&self, _pod: &PodRow, _snapshot: &mut Snapshot) -> PreFilter {
        PreFilter::Skip
    }

    fn filter(&self, _state: &State, _pod: &PodRow, _node: &NodeRow, _snapshot: &Snapshot) -> Verdict {
        Verdict::Fits
    }

    /// Reports whether the filter certainly passes the node in this slot, as far as known without its row: of thousands
    /// of rows few are in the CPU's caches, and most nodes pass. False if the filter must be called.
    fn surely_fits(&self, _state: &State, _pod: &PodRow, _slot: usize, _snapshot: &Snapshot) -> bool {
        false
    }

    /// Removes nodes that the filter is going to reject, if they are many and known without visiting each.
    fn shorten(&self, _state: &State, _snapshot: &Snapshot, _list: &mut Shortlist) {}

    /// Reports whether the filter depends only on the pod and the node's own row.
    fn is_local(&self) -> bool {
        false
    }

    fn pre_score(&self, _pod: &PodRow, _snapshot: &mut Snapshot, _feasible: &[usize]) -> PreScore {
        PreScore::Skip
    }

    fn score(&self, _state: &State, _pod: &PodRow, _node: &NodeRow, _snapshot: &Snapshot) -> i64 {
        0
    }

    /// Reports whether the score depends only on the pod's demand and the node's own row, and is not normalized.
    fn scores_locally(&self) -> bool {
        false
    }

    /// Post-filter: handles a pod without a feasible node.
    fn post_filter(&self, _pod: &PodRow, _search: &Search, _snapshot: &Snapshot) -> Option<Aftermath> {
        None
    }

    /// Post-filter: returns the limits of preemption, if the plugin does it.
    fn preemption(&self) -> Option<Limits> {
        None
    }

    /// Normalizes the scores of all nodes to 0 to [`MAX_SCORE`].
    fn normalize(&self, _state: &State, _scores: &mut [i64]) {}

    /// Reserve: reserves the pod's resources on the selected node, and returns the writes that must precede the
    /// binding.
    fn reserve(&self, _pod: &PodRow, _slot: usize, _snapshot: &mut Snapshot) -> Result<Vec<Effect>, Verdict> {
        Ok(Vec::new())
    }

    /// Pre-bind: returns the longest time that its effects may take.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Releases the reserved resources.
    fn unreserve(&self, _pod: &PodRow, _snapshot: &mut Snapshot) {}

    /// Queueing hint: reports whether this event could change this plugin's rejection of the pod.
    fn wakes(&self, _pod: &PodRow, _event: &ClusterEvent<'_>, _snapshot: &Snapshot) -> bool {
        true
    }
}

/// A plugin of a profile, with its name in the registry.
pub struct Loaded {
    pub name: &'static str,
    pub plugin: Box<dyn Plugin>,
}

impl Deref for Loaded {
    type Target = dyn Plugin;

    fn deref(&self) -> &Self::Target {
        &*self.plugin
    }
}

/// Scales scores so that the highest is [`MAX_SCORE`]; reversed, the lowest is best.
pub fn normalize(scores: &mut [i64], reverse: bool) {
    let highest = scores.iter().copied().max().unwrap_or(0);
    for score in scores.iter_mut() {
        let scaled = if highest == 0 { 0 } else { MAX_SCORE * *score / highest };
        *score = if reverse { MAX_SCORE - scaled } else { scaled };
    }
}

/// Returns the plugin's own state; a plugin without one has nothing to do.
pub fn state<T: 'static>(state: &State) -> Option<&T> {
    state.downcast_ref::<T>()
}
