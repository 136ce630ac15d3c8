//! The placement of a pod: tolerations against taints, node selectors and node affinity against a node's labels.
//!
//! The only implementation of these rules, for the scheduler and for the controllers that place or evict pods
//! themselves. Pure; it must never include resources, other pods or the weights of preferences, which belong to the
//! scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

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

/// Reports whether every taint with one of the effects is tolerated.
pub fn tolerates_all(tolerations: &[Toleration], taints: &[Taint], effects: &[&str]) -> bool {
    let mut binding = taints.iter().filter(|taint| effects.contains(&taint.effect.as_str()));
    binding.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Reports whether a node satisfies the selector and, if there is one, any required term of the affinity.
pub fn selects_node(
    selector: &BTreeMap<String, String>,
    affinity: Option<&Affinity>,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let selected = selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let required = required_node_terms(affinity);
    selected && required.is_none_or(|terms| terms.iter().any(|term| node_term_matches(term, name, labels)))
}

/// Returns the required terms, of which one must match, if the affinity has any.
pub fn required_node_terms(affinity: Option<&Affinity>) -> Option<&[NodeSelectorTerm]> {
    let node = affinity?.node_affinity.as_ref()?;
    Some(&node.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms)
}

/// Reports whether a term matches: an empty term matches nothing; otherwise every requirement must hold.
pub fn node_term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
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
        for (input, expected) in [
            (toleration("k", "Equal", "v", "NoSchedule"), true),
            (toleration("k", "", "v", ""), true),
            (toleration("k", "Equal", "w", ""), false),
            (toleration("k", "Exists", "", ""), true),
            (toleration("", "Exists", "", ""), true),
            (toleration("k", "Exists", "", "NoExecute"), false),
            (toleration("j", "Exists", "", ""), false),
        ] {
            assert_eq!(tolerates(&input, &taint), expected, "{input:?}");
        }
    }

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
        assert!(!node_term_matches(&NodeSelectorTerm::default(), "n", &BTreeMap::new()));
    }
}
