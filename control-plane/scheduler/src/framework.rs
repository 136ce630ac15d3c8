//! The steps of scheduling by upstream's names, and what a plugin may do at each.
//!
//! A plugin is a unit struct; every hook is defaulted and pure on rows. Only the scheduler's own task acts on what
//! they decide, so a plugin must never block, keep state of its own or talk to the API.

use std::any::Any;
use std::borrow::Cow;
use std::cmp::Ordering;

use crate::queue::Entry;
use crate::rows::{NodeRow, PodRow, Snapshot};

pub const MAX_SCORE: i64 = 100;

/// What a plugin worked out once for a pod, for its own later steps.
pub type State = Box<dyn Any + Send + Sync>;

/// Whether a node can take the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fits,
    /// Not now; other pods going away could change it.
    Unschedulable(Vec<Cow<'static, str>>),
    /// No pod going away changes it.
    Unresolvable(Vec<Cow<'static, str>>),
}

impl Verdict {
    pub fn unschedulable(reason: &'static str) -> Verdict {
        Verdict::Unschedulable(vec![Cow::Borrowed(reason)])
    }

    pub fn unresolvable(reason: &'static str) -> Verdict {
        Verdict::Unresolvable(vec![Cow::Borrowed(reason)])
    }

    pub fn reasons(&self) -> &[Cow<'static, str>] {
        match self {
            Verdict::Fits => &[],
            Verdict::Unschedulable(reasons) | Verdict::Unresolvable(reasons) => reasons,
        }
    }
}

pub enum PreFilter {
    /// The plugin has nothing to filter for this pod.
    Skip,
    Continue(State),
}

pub enum PreScore {
    Skip,
    Ready(State),
}

/// Something that happened in the cluster and may make a rejected pod schedulable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterEvent {
    NodeAdded,
    NodeUpdated,
    /// A pod was placed, or the labels of a placed pod changed.
    PodPlaced,
    /// A placed pod ended or was deleted.
    PodRemoved,
    NamespaceChanged,
}

pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// Queue sort: which pod goes first.
    fn order(&self, _a: &Entry, _b: &Entry) -> Option<Ordering> {
        None
    }

    fn pre_enqueue(&self, _pod: &PodRow) -> Verdict {
        Verdict::Fits
    }

    fn pre_filter(&self, _pod: &PodRow, _snapshot: &Snapshot) -> PreFilter {
        PreFilter::Skip
    }

    fn filter(&self, _state: &State, _pod: &PodRow, _node: &NodeRow) -> Verdict {
        Verdict::Fits
    }

    fn pre_score(&self, _pod: &PodRow, _snapshot: &Snapshot, _feasible: &[&NodeRow]) -> PreScore {
        PreScore::Skip
    }

    fn score(&self, _state: &State, _pod: &PodRow, _node: &NodeRow) -> i64 {
        0
    }

    /// Brings the scores of all nodes into 0 to [`MAX_SCORE`].
    fn normalize(&self, _state: &State, _scores: &mut [i64]) {}

    /// Reserve: may veto the chosen node before the pod is assumed there.
    fn reserve(&self, _pod: &PodRow, _node: &NodeRow) -> Verdict {
        Verdict::Fits
    }

    /// Permit: may veto the binding of an assumed pod.
    fn permit(&self, _pod: &PodRow, _node: &NodeRow) -> Verdict {
        Verdict::Fits
    }

    /// Whether this event could turn this plugin's rejection.
    fn wakes(&self, _event: ClusterEvent) -> bool {
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
