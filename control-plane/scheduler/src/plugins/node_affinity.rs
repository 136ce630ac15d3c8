//! NodeAffinity: the nodes a pod asks for by label or name, strictly or by preference.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm,
};

use crate::framework::{ClusterEvent, Plugin, PreFilter, PreScore, State, Verdict, normalize};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn pre_filter(&self, pod: &PodRow, _: &Snapshot) -> PreFilter {
        match pod.node_selector.is_empty() && required(pod.affinity.as_deref()).is_none() {
            true => PreFilter::Skip,
            false => PreFilter::Continue(Box::new(())),
        }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow) -> Verdict {
        match matches_node(&pod.node_selector, pod.affinity.as_deref(), &node.name, &node.labels) {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) didn't match Pod's node affinity/selector"),
        }
    }

    fn pre_score(&self, pod: &PodRow, _: &Snapshot, _: &[&NodeRow]) -> PreScore {
        if preferred(pod).next().is_some() { PreScore::Ready(Box::new(())) } else { PreScore::Skip }
    }

    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow) -> i64 {
        let matching = preferred(pod).filter(|term| term_matches(&term.preference, &node.name, &node.labels));
        matching.map(|term| i64::from(term.weight)).sum()
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        normalize(scores, false);
    }

    fn wakes(&self, event: ClusterEvent) -> bool {
        matches!(event, ClusterEvent::NodeAdded | ClusterEvent::NodeUpdated)
    }
}

fn required(affinity: Option<&Affinity>) -> Option<&Vec<NodeSelectorTerm>> {
    let node = affinity?.node_affinity.as_ref()?;
    Some(&node.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms)
}

fn preferred(pod: &PodRow) -> impl Iterator<Item = &PreferredSchedulingTerm> {
    let node = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    node.and_then(|node| node.preferred_during_scheduling_ignored_during_execution.as_ref()).into_iter().flatten()
}

/// Whether a node satisfies the selector and, if there is one, any required term of the affinity.
pub fn matches_node(
    selector: &BTreeMap<String, String>,
    affinity: Option<&Affinity>,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let selected = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    selected && required(affinity).is_none_or(|terms| terms.iter().any(|term| term_matches(term, name, labels)))
}

/// An empty term matches nothing; otherwise every requirement must hold.
fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let of_field =
        |requirement: &NodeSelectorRequirement| requirement.key == "metadata.name" && holds(requirement, Some(name));
    expressions.iter().all(|requirement| holds(requirement, labels.get(&requirement.key).map(String::as_str)))
        && fields.iter().all(of_field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = value.is_some_and(|value| values.iter().any(|candidate| candidate == value));
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match requirement.operator.as_str() {
        "In" => among,
        "NotIn" => !among,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_hold_by_operator() {
        let requirement = |operator: &str, values: &[&str]| NodeSelectorRequirement {
            key: "k".into(),
            operator: operator.into(),
            values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
        };
        for (operator, values, value, expected) in [
            ("In", &["a", "b"][..], Some("a"), true),
            ("In", &["a"], None, false),
            ("NotIn", &["a"], Some("b"), true),
            ("NotIn", &["a"], None, true),
            ("Exists", &[], Some(""), true),
            ("DoesNotExist", &[], None, true),
            ("Gt", &["5"], Some("6"), true),
            ("Gt", &["5"], Some("x"), false),
            ("Lt", &["5"], Some("4"), true),
            ("Lt", &["5"], None, false),
        ] {
            assert_eq!(holds(&requirement(operator, values), value), expected, "{operator} {values:?} {value:?}");
        }
    }

    #[test]
    fn an_empty_term_matches_no_node() {
        assert!(!term_matches(&NodeSelectorTerm::default(), "n", &BTreeMap::new()));
    }
}
