//! TaintToleration: a node's taints keep pods away that do not tolerate them, or make it second choice.

use corten_api::k8s_openapi::api::core::v1::{Taint, Toleration};

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
        let mut hard = node.taints.iter().filter(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute");
        match hard.any(|taint| !pod.tolerations.iter().any(|toleration| tolerates(toleration, taint))) {
            true => Verdict::unresolvable("node(s) had untolerated taint(s)"),
            false => Verdict::Fits,
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

/// Whether a toleration covers a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_covers_by_key_value_and_effect() {
        let taint = Taint { key: "k".into(), value: Some("v".into()), effect: "NoSchedule".into(), time_added: None };
        let toleration = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
            key: Some(key.into()),
            operator: Some(operator.into()),
            value: Some(value.into()),
            effect: Some(effect.into()),
            toleration_seconds: None,
        };
        for (given, expected) in [
            (toleration("k", "Equal", "v", "NoSchedule"), true),
            (toleration("k", "", "v", ""), true),
            (toleration("k", "Equal", "w", ""), false),
            (toleration("k", "Exists", "", ""), true),
            (toleration("", "Exists", "", ""), true),
            (toleration("k", "Exists", "", "NoExecute"), false),
            (toleration("j", "Exists", "", ""), false),
        ] {
            assert_eq!(tolerates(&given, &taint), expected, "{given:?}");
        }
    }
}
