//! TaintToleration: rejects nodes with taints that the pod does not tolerate, and avoids those with PreferNoSchedule
//! taints.

use corten_api::k8s_openapi::api::core::v1::{Taint, Toleration};
use corten_api::placement::tolerates;

use crate::framework::{ClusterEvent, MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict, normalize, state};
use crate::rows::node_sets::NodeQuery;
use crate::rows::shortlist::Shortlist;
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct TaintToleration;

impl Plugin for TaintToleration {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        let tolerated = snapshot.node_set(NodeQuery::Tolerated(pod.demand.tolerations.clone()));
        match snapshot.sets().len(tolerated) == snapshot.len() {
            true => PreFilter::Skip,
            false => PreFilter::Continue(Box::new(tolerated)),
        }
    }

    fn filter(&self, tolerated: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        match state::<usize>(tolerated).is_none_or(|set| snapshot.sets().contains(*set, node.slot)) {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) had untolerated taint(s)"),
        }
    }

    fn surely_fits(&self, tolerated: &State, _: &PodRow, slot: usize, snapshot: &Snapshot) -> bool {
        state::<usize>(tolerated).is_some_and(|set| snapshot.sets().contains(*set, slot))
    }

    fn shorten(&self, tolerated: &State, snapshot: &Snapshot, list: &mut Shortlist) {
        if let Some(set) = state::<usize>(tolerated) {
            snapshot.sets().shorten(*set, snapshot.len(), list);
        }
    }

    fn pre_score(&self, _: &PodRow, snapshot: &mut Snapshot, _: &[usize]) -> PreScore {
        match snapshot.softly_tainted() {
            0 => PreScore::Same(MAX_SCORE),
            _ => PreScore::Ready(Box::new(())),
        }
    }

    /// Counts the PreferNoSchedule taints that the pod does not tolerate.
    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> i64 {
        let soft = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
        let relevant = |t: &&Toleration| {
            t.effect.as_deref().unwrap_or_default().is_empty() || t.effect.as_deref() == Some("PreferNoSchedule")
        };
        let tolerations = &pod.demand.tolerations.0;
        let tolerated = |taint: &Taint| tolerations.iter().filter(relevant).any(|one| tolerates(one, taint));
        soft.filter(|taint| !tolerated(taint)).count() as i64
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        normalize(scores, true);
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => pod.demand.tolerations.admit(node),
            ClusterEvent::NodeUpdated(node, change) => change.taints && pod.demand.tolerations.admit(node),
            _ => false,
        }
    }
}
