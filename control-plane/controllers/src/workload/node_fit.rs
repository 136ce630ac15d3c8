//! Whether a pod may be on a node: node name, selector, affinity and taints. What a scheduler would say, for those
//! controllers that place pods themselves.

use std::collections::BTreeMap;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{
    Affinity, Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};

/// Whether a toleration covers a taint, by upstream's rules.
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

/// Whether the pod tolerates every taint with one of the effects.
pub fn tolerates_all(tolerations: &[Toleration], taints: &[Taint], effects: &[&str]) -> bool {
    let mut binding = taints.iter().filter(|taint| effects.contains(&taint.effect.as_str()));
    binding.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether node name, selector and required affinity of the pod allow the node.
pub fn selects_node(spec: &PodSpec, node: &Node) -> bool {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let named = spec.node_name.as_deref().is_none_or(|name| name.is_empty() || name == node.name());
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let terms = required_terms(spec.affinity.as_ref());
    named && selected && terms.is_none_or(|terms| terms.iter().any(|term| term_matches(term, node.name(), labels)))
}

fn required_terms(affinity: Option<&Affinity>) -> Option<&Vec<NodeSelectorTerm>> {
    let node = affinity?.node_affinity.as_ref()?;
    Some(&node.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms)
}

/// An empty term matches nothing; otherwise every requirement must hold.
fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let of_label = |one: &NodeSelectorRequirement| holds(one, labels.get(&one.key).map(String::as_str));
    let of_field = |one: &NodeSelectorRequirement| one.key == "metadata.name" && holds(one, Some(name));
    !(expressions.is_empty() && fields.is_empty()) && expressions.iter().all(of_label) && fields.iter().all(of_field)
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
