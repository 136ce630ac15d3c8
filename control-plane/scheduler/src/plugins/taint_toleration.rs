//! TaintToleration: a node's taints keep pods away that do not tolerate them, or make it second choice.

use corten_api::k8s_openapi::api::core::v1::{Taint, Toleration};
use corten_api::placement::{tolerates, tolerates_all};

use crate::framework::{ClusterEvent, Plugin, PreFilter, PreScore, State, Verdict, normalize};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }

    fn pre_filter(&self, _: &PodRow, _: &Snapshot) -> PreFilter {
        PreFilter::Continue(Box::new(()))
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow) -> Verdict {
        match tolerates_all(&pod.tolerations, &node.taints, &["NoSchedule", "NoExecute"]) {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) had untolerated taint(s)"),
        }
    }

    fn pre_score(&self, _: &PodRow, _: &Snapshot, _: &[&NodeRow]) -> PreScore {
        PreScore::Ready(Box::new(()))
    }

    /// The number of soft taints that the pod does not tolerate.
    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow) -> i64 {
        let soft = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
        let relevant = |t: &&Toleration| {
            t.effect.as_deref().unwrap_or_default().is_empty() || t.effect.as_deref() == Some("PreferNoSchedule")
        };
        let tolerated =
            |taint: &Taint| pod.tolerations.iter().filter(relevant).any(|toleration| tolerates(toleration, taint));
        soft.filter(|taint| !tolerated(taint)).count() as i64
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        normalize(scores, true);
    }

    fn wakes(&self, event: ClusterEvent) -> bool {
        matches!(event, ClusterEvent::NodeAdded | ClusterEvent::NodeUpdated)
    }
}
