//! InterPodAffinity: pods that want to be, or must not be, in the same domain as certain others.

use std::collections::HashMap;

use corten_api::k8s_openapi::api::core::v1::PodAffinityTerm;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use corten_meta::{Selector, Value};
use serde_json::json;

use crate::framework::{MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict};
use crate::rows::{NodeRow, PodRow, Snapshot};

/// The weight of a term that the pods already there require, as preferences go.
const HARD_AFFINITY_WEIGHT: i64 = 1;

pub struct InterPodAffinity;

/// Counts of pods by topology key and value.
type Domains = HashMap<(String, String), i64>;

#[derive(Default)]
struct Counted {
    /// Domains that pods already placed keep this one out of.
    repelled: Domains,
    /// Pods that match all required affinity terms, by the domains of each term.
    attracting: Domains,
    /// Pods that match a required anti-affinity term.
    avoided: Domains,
    selects_self: bool,
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &Snapshot) -> PreFilter {
        let counted = count(pod, snapshot);
        match counted.repelled.is_empty() && required(pod, false).is_empty() && required(pod, true).is_empty() {
            true => PreFilter::Skip,
            false => PreFilter::Continue(Box::new(counted)),
        }
    }

    fn filter(&self, state: &State, pod: &PodRow, node: &NodeRow) -> Verdict {
        let Some(counted) = state.downcast_ref::<Counted>() else { return Verdict::Fits };
        let domain = |key: &str| node.labels.get(key).map(|value| (key.to_owned(), value.clone()));
        let holds =
            |domains: &Domains, key: &str| domain(key).is_some_and(|at| domains.get(&at).copied().unwrap_or(0) > 0);
        let wanted = required(pod, false);
        if wanted.iter().any(|term| domain(&term.topology_key).is_none()) {
            return Verdict::unresolvable("node(s) didn't match pod affinity rules");
        }
        // The first of a group that wants its own kind near has nobody to be near to.
        let first_of_its_kind = counted.attracting.is_empty() && counted.selects_self;
        if !first_of_its_kind && !wanted.iter().all(|term| holds(&counted.attracting, &term.topology_key)) {
            return Verdict::unresolvable("node(s) didn't match pod affinity rules");
        }
        if required(pod, true).iter().any(|term| holds(&counted.avoided, &term.topology_key)) {
            return Verdict::unschedulable("node(s) didn't match pod anti-affinity rules");
        }
        let repelled = counted.repelled.keys().any(|(key, value)| node.labels.get(key) == Some(value));
        match repelled {
            true => Verdict::unschedulable("node(s) didn't satisfy existing pods anti-affinity rules"),
            false => Verdict::Fits,
        }
    }

    fn pre_score(&self, pod: &PodRow, snapshot: &Snapshot, _: &[&NodeRow]) -> PreScore {
        let weights = preferences(pod, snapshot);
        if weights.is_empty() { PreScore::Skip } else { PreScore::Ready(Box::new(weights)) }
    }

    fn score(&self, state: &State, _: &PodRow, node: &NodeRow) -> i64 {
        let Some(weights) = state.downcast_ref::<Domains>() else { return 0 };
        weights.iter().filter(|((key, value), _)| node.labels.get(key) == Some(value)).map(|(_, weight)| *weight).sum()
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        let (least, most) = (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
        for score in scores.iter_mut() {
            *score = if most > least { MAX_SCORE * (*score - least) / (most - least) } else { 0 };
        }
    }
}

/// A label selector as the API writes it; one that does not parse selects nothing.
pub fn selector(selector: &LabelSelector) -> Selector {
    let requirements: Vec<Value> = selector.match_expressions.iter().flatten()
        .map(|requirement| json!({"key": requirement.key, "operator": requirement.operator, "values": requirement.values}))
        .collect();
    let value = json!({"matchLabels": selector.match_labels, "matchExpressions": requirements});
    Selector::from_label_selector(&value).unwrap_or_else(|_| Selector::nothing())
}

fn required(pod: &PodRow, anti: bool) -> &[PodAffinityTerm] {
    let Some(affinity) = &pod.affinity else { return &[] };
    let terms = match anti {
        true => affinity
            .pod_anti_affinity
            .as_ref()
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref()),
        false => affinity
            .pod_affinity
            .as_ref()
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref()),
    };
    terms.unwrap_or_default()
}

/// Preferred terms with their weights, negative for anti-affinity.
fn preferred(pod: &PodRow) -> Vec<(i64, &PodAffinityTerm)> {
    let Some(affinity) = &pod.affinity else { return Vec::new() };
    let wanted = affinity
        .pod_affinity
        .iter()
        .flat_map(|a| a.preferred_during_scheduling_ignored_during_execution.iter().flatten());
    let unwanted = affinity
        .pod_anti_affinity
        .iter()
        .flat_map(|a| a.preferred_during_scheduling_ignored_during_execution.iter().flatten());
    let near = wanted.map(|term| (i64::from(term.weight), &term.pod_affinity_term));
    near.chain(unwanted.map(|term| (-i64::from(term.weight), &term.pod_affinity_term))).collect()
}

/// Whether a term of `owner` selects `other`.
fn term_selects(term: &PodAffinityTerm, owner: &PodRow, other: &PodRow, snapshot: &Snapshot) -> bool {
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let namespace = &other.key.namespace;
    let by_selector = term.namespace_selector.as_ref().is_some_and(|wanted| {
        let none = Default::default();
        selector(wanted).matches(snapshot.namespaces.get(namespace).unwrap_or(&none))
    });
    let own = listed.is_empty() && term.namespace_selector.is_none() && *namespace == owner.key.namespace;
    if !own && !by_selector && !listed.contains(namespace) {
        return false;
    }
    let Some(labels) = &term.label_selector else { return false };
    let keys_match = term
        .match_label_keys
        .iter()
        .flatten()
        .all(|key| owner.labels.get(key).is_none_or(|value| other.labels.get(key) == Some(value)));
    let keys_differ = term.mismatch_label_keys.iter().flatten().all(|key| {
        owner.labels.get(key).is_none_or(|value| other.labels.get(key).is_some_and(|theirs| theirs != value))
    });
    keys_match && keys_differ && selector(labels).matches(&other.labels)
}

fn count(pod: &PodRow, snapshot: &Snapshot) -> Counted {
    let (wanted, unwanted) = (required(pod, false), required(pod, true));
    let selects_self = wanted.iter().all(|term| term_selects(term, pod, pod, snapshot));
    let mut counted = Counted { selects_self, ..Counted::default() };
    for node in snapshot.nodes() {
        let add = |domains: &mut Domains, key: &String| {
            if let Some(value) = node.labels.get(key) {
                *domains.entry((key.clone(), value.clone())).or_default() += 1;
            }
        };
        for other in node.pods.values() {
            if !wanted.is_empty() && wanted.iter().all(|term| term_selects(term, pod, other, snapshot)) {
                wanted.iter().for_each(|term| add(&mut counted.attracting, &term.topology_key));
            }
            for term in unwanted.iter().filter(|term| term_selects(term, pod, other, snapshot)) {
                add(&mut counted.avoided, &term.topology_key);
            }
            for term in required(other, true).iter().filter(|term| term_selects(term, other, pod, snapshot)) {
                add(&mut counted.repelled, &term.topology_key);
            }
        }
    }
    counted
}

/// How much each domain attracts the pod: by its own preferences and by those of the pods already there.
fn preferences(pod: &PodRow, snapshot: &Snapshot) -> Domains {
    let own = preferred(pod);
    let mut weights = Domains::new();
    for node in snapshot.nodes() {
        let mut add = |key: &String, weight: i64| {
            if let Some(value) = node.labels.get(key) {
                *weights.entry((key.clone(), value.clone())).or_default() += weight;
            }
        };
        for other in node.pods.values() {
            for (weight, term) in own.iter().filter(|(_, term)| term_selects(term, pod, other, snapshot)) {
                add(&term.topology_key, *weight);
            }
            if other.affinity.is_none() {
                continue;
            }
            for (weight, term) in preferred(other).iter().filter(|(_, term)| term_selects(term, other, pod, snapshot)) {
                add(&term.topology_key, *weight);
            }
            for term in required(other, false).iter().filter(|term| term_selects(term, other, pod, snapshot)) {
                add(&term.topology_key, HARD_AFFINITY_WEIGHT);
            }
        }
    }
    weights
}
