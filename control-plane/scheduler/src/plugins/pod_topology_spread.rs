//! PodTopologySpread: pods of a kind spread evenly over zones, hosts or whatever label divides the nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use corten_api::k8s_openapi::api::core::v1::TopologySpreadConstraint;
use corten_api::placement::{selects_node, tolerates};
use corten_meta::Selector;

use super::inter_pod_affinity::selector;
use crate::framework::{MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

const NOT_MATCH: &str = "node(s) didn't match pod topology spread constraints";
const LABEL_MISSING: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

pub struct PodTopologySpread;

/// One constraint with its matching pods counted by domain.
struct Counted {
    key: String,
    max_skew: i64,
    min_domains: usize,
    selects_self: bool,
    counts: HashMap<String, i64>,
}

impl Counted {
    /// The least pods of any domain; zero as long as there are fewer domains than asked for.
    fn minimum(&self) -> i64 {
        match self.counts.len() < self.min_domains {
            true => 0,
            false => self.counts.values().copied().min().unwrap_or(0),
        }
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &Snapshot) -> PreFilter {
        let hard = constraints(pod, "DoNotSchedule");
        if hard.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Continue(Box::new(count(pod, snapshot, &hard)))
    }

    fn filter(&self, state: &State, _: &PodRow, node: &NodeRow) -> Verdict {
        let Some(counted) = state.downcast_ref::<Vec<Counted>>() else { return Verdict::Fits };
        for constraint in counted {
            let Some(domain) = node.labels.get(&constraint.key) else { return Verdict::unresolvable(LABEL_MISSING) };
            let here = constraint.counts.get(domain).copied().unwrap_or(0) + i64::from(constraint.selects_self);
            if here - constraint.minimum() > constraint.max_skew {
                return Verdict::unschedulable(NOT_MATCH);
            }
        }
        Verdict::Fits
    }

    fn pre_score(&self, pod: &PodRow, snapshot: &Snapshot, _: &[&NodeRow]) -> PreScore {
        let soft = constraints(pod, "ScheduleAnyway");
        if soft.is_empty() {
            return PreScore::Skip;
        }
        PreScore::Ready(Box::new(count(pod, snapshot, &soft)))
    }

    /// The fuller its domains the worse the node; a node outside all domains is worst.
    fn score(&self, state: &State, _: &PodRow, node: &NodeRow) -> i64 {
        let Some(counted) = state.downcast_ref::<Vec<Counted>>() else { return 0 };
        if counted.iter().any(|constraint| !node.labels.contains_key(&constraint.key)) {
            return i64::MAX;
        }
        let weighed = counted.iter().map(|constraint| {
            let here =
                node.labels.get(&constraint.key).and_then(|domain| constraint.counts.get(domain)).copied().unwrap_or(0);
            here as f64 * (constraint.counts.len() as f64 + 2.0).ln() + (constraint.max_skew - 1) as f64
        });
        weighed.sum::<f64>().round() as i64
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        let placed: Vec<i64> = scores.iter().copied().filter(|score| *score != i64::MAX).collect();
        let (least, most) = (placed.iter().copied().min().unwrap_or(0), placed.iter().copied().max().unwrap_or(0));
        for score in scores.iter_mut() {
            *score = match *score {
                i64::MAX => 0,
                _ if most == 0 => MAX_SCORE,
                value => MAX_SCORE * (most + least - value) / most,
            };
        }
    }
}

fn constraints<'a>(pod: &'a PodRow, when: &str) -> Vec<&'a TopologySpreadConstraint> {
    pod.spread.iter().filter(|constraint| constraint.when_unsatisfiable == when).collect()
}

fn count(pod: &PodRow, snapshot: &Snapshot, constraints: &[&TopologySpreadConstraint]) -> Vec<Counted> {
    let keys: BTreeSet<&String> = constraints.iter().map(|constraint| &constraint.topology_key).collect();
    constraints.iter().map(|constraint| count_one(pod, snapshot, constraint, &keys)).collect()
}

fn count_one(
    pod: &PodRow,
    snapshot: &Snapshot,
    constraint: &TopologySpreadConstraint,
    keys: &BTreeSet<&String>,
) -> Counted {
    let selector = spread_selector(pod, constraint);
    let mut counts: HashMap<String, i64> = HashMap::new();
    let eligible =
        |node: &&NodeRow| keys.iter().all(|key| node.labels.contains_key(*key)) && included(pod, constraint, node);
    for node in snapshot.nodes().filter(eligible) {
        let Some(domain) = node.labels.get(&constraint.topology_key) else { continue };
        let alike = node.pods.values().filter(|other| !other.terminating && other.key.namespace == pod.key.namespace);
        *counts.entry(domain.clone()).or_default() +=
            alike.filter(|other| selector.matches(&other.labels)).count() as i64;
    }
    Counted {
        key: constraint.topology_key.clone(),
        max_skew: i64::from(constraint.max_skew),
        min_domains: usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(1),
        selects_self: selector.matches(&pod.labels),
        counts,
    }
}

/// The selector of a constraint, narrowed to the pod's own values of `matchLabelKeys`.
fn spread_selector(pod: &PodRow, constraint: &TopologySpreadConstraint) -> Selector {
    let mut labels = constraint.label_selector.clone().unwrap_or_default();
    let own: BTreeMap<String, String> = constraint
        .match_label_keys
        .iter()
        .flatten()
        .filter_map(|key| Some((key.clone(), pod.labels.get(key)?.clone())))
        .collect();
    if constraint.label_selector.is_none() && own.is_empty() {
        return Selector::nothing();
    }
    labels.match_labels.get_or_insert_default().extend(own);
    selector(&labels)
}

/// Whether a node counts: by default one that the pod's affinity allows, whatever its taints.
fn included(pod: &PodRow, constraint: &TopologySpreadConstraint, node: &NodeRow) -> bool {
    let affinity = constraint.node_affinity_policy.as_deref() == Some("Ignore")
        || selects_node(&pod.node_selector, pod.affinity.as_deref(), &node.name, &node.labels);
    let tolerated = || {
        let mut hard = node.taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
        hard.all(|taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    };
    affinity && (constraint.node_taints_policy.as_deref() != Some("Honor") || tolerated())
}
