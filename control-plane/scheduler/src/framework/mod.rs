//! The steps of scheduling by upstream's names, and what a plugin may do at each.
//!
//! Every hook is defaulted and decides on rows alone. What must be written or waited for is returned as [`Effect`]s;
//! only the scheduler's own task carries them out, so a plugin must never block or talk to the API.

mod search;

use std::any::Any;
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

/// What a plugin worked out once for a pod, for its own later steps.
pub type State = Box<dyn Any + Send + Sync>;

/// How many nodes are looked at before the best of them is taken.
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

/// Where plugins are called.
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

    /// Upstream's name of it.
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

/// Why not, in upstream's words. One fixed sentence is the rule, and costs nothing.
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
    /// Not now; other pods going away could change it.
    Unschedulable(Reasons),
    /// No pod going away changes it.
    Unresolvable(Reasons),
    /// Something is wrong with what the pod asks for: no node gets it, and it is tried again after a while.
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
    /// Only these nodes, by slot, are worth a look.
    Only(State, Vec<usize>),
    /// No node will do.
    Reject(Verdict),
}

pub enum PreScore {
    Skip,
    /// All nodes would get this score.
    Same(i64),
    Ready(State),
}

/// Something to write for a pod, before it is bound or because it cannot be.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Give the volume to the claim.
    BindVolume { volume: String, claim: Key, claim_uid: String },
    /// Have a volume made for the claim where the node can use it. `written` is the claim's revision that names the node.
    Provision { claim: Key, written: Option<u64> },
    /// Give devices to the ResourceClaim, unless it has them, and reserve it for the pod.
    AllocateClaim { claim: Key, allocation: Option<Box<AllocationResult>> },
    /// Make the ResourceClaim of the pod's extended resources, with devices, and reserve it. `written` is the claim's name.
    CreateClaim {
        claim: Box<ResourceClaim>,
        allocation: Box<AllocationResult>,
        mappings: Vec<ContainerExtendedResourceRequest>,
        written: Option<Key>,
    },
    /// Take the devices of a ResourceClaim away.
    DeallocateClaim { claim: Key },
    /// Delete a ResourceClaim that was made for the pod's extended resources in vain.
    DeleteClaim { claim: Key },
}

/// What a plugin does about a pod that found no node, and its word on it.
pub struct Aftermath {
    pub why: String,
    pub effect: Option<Effect>,
    /// No plugin after it is heard.
    pub ends: bool,
}

/// Something that happened in the cluster and may make a rejected pod schedulable.
#[derive(Clone, Copy, Debug)]
pub enum ClusterEvent<'a> {
    NodeAdded(&'a NodeRow),
    NodeUpdated(&'a NodeRow, NodeChange),
    NodeRemoved,
    /// A pod was placed.
    PodPlaced(&'a PodRow),
    /// Labels or requests of a placed pod changed.
    PodUpdated(&'a PodRow, &'a PodRow),
    /// A placed pod ended or was deleted.
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
    /// Upstream's name of it, in metrics.
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
    fn name(&self) -> &'static str;

    /// Where it has something to say.
    fn points(&self) -> &'static [Point];

    /// Queue sort: the pod with the lesser rank goes first.
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

    /// Whether the filter lets the node in this slot pass, as far as can be said without its row: of thousands of rows
    /// few are in the processor's caches, and most nodes pass. False where it has to be asked.
    fn surely_fits(&self, _state: &State, _pod: &PodRow, _slot: usize, _snapshot: &Snapshot) -> bool {
        false
    }

    /// Strikes off nodes that the filter is going to refuse, if they are many and known without looking at each.
    fn shorten(&self, _state: &State, _snapshot: &Snapshot, _list: &mut Shortlist) {}

    /// Whether its filter hangs on nothing but the pod and the node's own row.
    fn is_local(&self) -> bool {
        false
    }

    fn pre_score(&self, _pod: &PodRow, _snapshot: &mut Snapshot, _feasible: &[usize]) -> PreScore {
        PreScore::Skip
    }

    fn score(&self, _state: &State, _pod: &PodRow, _node: &NodeRow, _snapshot: &Snapshot) -> i64 {
        0
    }

    /// Whether its score hangs on nothing but what the pod asks for and the node's own row, and is not normalized.
    fn scores_locally(&self) -> bool {
        false
    }

    /// Post-filter: what it does about a pod that found no node.
    fn post_filter(&self, _pod: &PodRow, _search: &Search, _snapshot: &Snapshot) -> Option<Aftermath> {
        None
    }

    /// Post-filter: within which bounds room may be made, if at all.
    fn preemption(&self) -> Option<Limits> {
        None
    }

    /// Brings the scores of all nodes into 0 to [`MAX_SCORE`].
    fn normalize(&self, _state: &State, _scores: &mut [i64]) {}

    /// Reserve: takes what the pod needs on the chosen node, and says what must be written before the pod is bound.
    fn reserve(&self, _pod: &PodRow, _slot: usize, _snapshot: &mut Snapshot) -> Result<Vec<Effect>, Verdict> {
        Ok(Vec::new())
    }

    /// Pre-bind: how long its effects may take to show.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Gives back what was reserved.
    fn unreserve(&self, _pod: &PodRow, _snapshot: &mut Snapshot) {}

    /// Queueing hint: whether this event could turn this plugin's rejection of this pod.
    fn wakes(&self, _pod: &PodRow, _event: &ClusterEvent<'_>, _snapshot: &Snapshot) -> bool {
        true
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

/// What a plugin's own state is; a plugin that finds none has nothing to say.
pub fn state<T: 'static>(state: &State) -> Option<&T> {
    state.downcast_ref::<T>()
}
