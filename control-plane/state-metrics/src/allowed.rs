//! Families of labels and annotations: `kube_pod_labels` and its like, for keys that the user allows.
//!
//! Every key becomes a label of the series, so a cluster would have as many different series as its users have ideas:
//! hence only the keys of a list, in the format of kube-state-metrics: `pods=[app,team-*],nodes=[*]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The keys that are shown, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(BTreeMap<String, Vec<String>>);

impl AllowList {
    /// Parses `RESOURCE=[KEY,…],…`. `*` stands for every resource, or for any part of a key.
    pub fn parse(text: &str) -> Result<AllowList, String> {
        let mut list = BTreeMap::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let malformed = || format!("{rest:?} is not RESOURCE=[KEY,…]");
            let (resource, after) = rest.split_once("=[").ok_or_else(malformed)?;
            let (keys, after) = after.split_once(']').ok_or_else(malformed)?;
            let keys = keys.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned);
            list.insert(resource.trim().to_owned(), keys.collect());
            rest = match after.trim() {
                "" => "",
                after => after.strip_prefix(',').ok_or_else(malformed)?.trim(),
            };
        }
        Ok(AllowList(list))
    }

    /// Returns the keys of a resource; none if it has no family.
    fn of(&self, plural: &str) -> Option<&Vec<String>> {
        self.0.get(plural).or_else(|| self.0.get("*"))
    }
}

/// A family of labels or annotations.
#[derive(Debug)]
pub struct KeyFamily {
    pub name: String,
    pub help: &'static str,
    /// The field of the metadata.
    pub field: &'static str,
    prefix: &'static str,
    allowed: Vec<String>,
}

/// Returns the families of a resource.
pub fn families(plural: &str, labels: &AllowList, annotations: &AllowList) -> Vec<KeyFamily> {
    let family = |list: &AllowList, field: &'static str, prefix: &'static str, help: &'static str| {
        let allowed = list.of(plural)?.clone();
        Some(KeyFamily { name: format!("kube_{}_{field}", singular(plural)), help, field, prefix, allowed })
    };
    let labels = family(labels, "labels", "label", "Kubernetes labels converted to Prometheus labels.");
    let help = "Kubernetes annotations converted to Prometheus labels.";
    let annotations = family(annotations, "annotations", "annotation", help);
    annotations.into_iter().chain(labels).collect()
}

fn singular(plural: &str) -> String {
    if let Some(stem) = plural.strip_suffix("ies") {
        return format!("{stem}y");
    }
    plural.strip_suffix("sses").map_or_else(|| plural.trim_end_matches('s').to_owned(), |stem| format!("{stem}ss"))
}

impl KeyFamily {
    /// Returns the labels of an object's series: names and values, in the order of the keys.
    pub fn labels<'a>(&self, keys: &'a BTreeMap<String, String>) -> Vec<(String, &'a str)> {
        let is_allowed = |key: &str| self.allowed.iter().any(|pattern| matches(pattern, key));
        let shown: Vec<(&String, &String)> = keys.iter().filter(|(key, _)| is_allowed(key)).collect();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (key, _) in &shown {
            *counts.entry(self.label(key)).or_default() += 1;
        }
        let mut used: BTreeSet<String> =
            counts.iter().filter(|(_, count)| **count == 1).map(|(name, _)| name.clone()).collect();
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut labels = Vec::new();
        for (key, value) in shown {
            let mut name = self.label(key);
            if counts.get(&name).is_some_and(|count| *count > 1) {
                let number = numbers.entry(name.clone()).or_default();
                let base = name.clone();
                // Several keys have the same name here: each gets a number, and none the plain name.
                while name == base || !used.insert(name.clone()) {
                    *number += 1;
                    name.clone_from(&base);
                    let _ = write!(name, "_conflict{number}");
                }
            }
            labels.push((name, value.as_str()));
        }
        labels
    }

    /// Returns the name of a key's label: in snake case, with an underscore for every other character.
    fn label(&self, key: &str) -> String {
        let mut label = format!("{}_", self.prefix);
        let mut previous = '_';
        for character in key.chars() {
            if character.is_ascii_uppercase() && (previous.is_ascii_lowercase() || previous.is_ascii_digit()) {
                label.push('_');
            }
            label.push(if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '_' });
            previous = character;
        }
        label
    }
}

/// Reports whether a key matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, key: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else { return pattern == key };
    let Some(mut rest) = key.strip_prefix(first) else { return false };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let list = AllowList::parse("pods=[app, team-*],nodes=[*]").unwrap();
        assert_eq!(list.of("pods"), Some(&vec!["app".to_owned(), "team-*".to_owned()]));
        assert_eq!(list.of("secrets"), None);
        assert!(AllowList::parse("*=[a]").unwrap().of("secrets").is_some());
        assert_eq!(AllowList::parse("").unwrap(), AllowList::default());
        for wrong in ["pods", "pods=app", "pods=[app", "pods=[app]nodes=[a]"] {
            assert!(AllowList::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_become_labels_as_those_of_kube_state_metrics() {
        let shown = |allowed: &str, keys: &[(&str, &str)]| {
            let list = AllowList::parse(&format!("pods=[{allowed}]")).unwrap();
            let family = families("pods", &list, &AllowList::default()).pop().unwrap();
            let keys = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let labels = family.labels(&keys);
            labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let keys = [("app.kubernetes.io/name", "web"), ("camelCase", "1"), ("team", "a")];
        assert_eq!(shown("*", &keys), "label_app_kubernetes_io_name=web label_camel_case=1 label_team=a");
        assert_eq!(shown("team", &keys), "label_team=a");
        assert_eq!(shown("app*name,none", &keys), "label_app_kubernetes_io_name=web");
        let alike = [("a-b", "1"), ("a.b", "2"), ("a_b_conflict1", "3")];
        assert_eq!(shown("*", &alike), "label_a_b_conflict2=1 label_a_b_conflict3=2 label_a_b_conflict1=3");
    }

    #[test]
    fn families_have_the_names_of_their_resource() {
        let list = AllowList::parse("*=[*]").unwrap();
        for (plural, name) in [
            ("pods", "kube_pod_labels"),
            ("ingresses", "kube_ingress_labels"),
            ("networkpolicies", "kube_networkpolicy_labels"),
            ("endpoints", "kube_endpoint_labels"),
        ] {
            assert_eq!(families(plural, &list, &AllowList::default())[0].name, name);
        }
    }
}
