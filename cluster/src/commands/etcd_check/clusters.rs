//! The signs of two Kubernetes clusters in one prefix: their controllers publish different CAs to the namespaces.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;

/// The ConfigMap by which each namespace gets the CA of its cluster.
const PUBLISHED: &str = "kube-root-ca.crt";

/// The CAs that were published, by namespace.
#[derive(Debug, Default)]
pub struct Clusters {
    authorities: BTreeMap<String, BTreeSet<String>>,
}

impl Clusters {
    /// Notes the CA of a ConfigMap that publishes one.
    pub fn note(&mut self, object: &Value) {
        if object["kind"] != "ConfigMap" || object["metadata"]["name"] != PUBLISHED {
            return;
        }
        let bundle = object["data"]["ca.crt"].as_str().unwrap_or_default();
        let certificates: BTreeSet<String> =
            bundle.split("-----END CERTIFICATE-----").map(|one| one.split_whitespace().collect()).collect();
        let certificates: BTreeSet<String> = certificates.into_iter().filter(|one| !one.is_empty()).collect();
        if !certificates.is_empty() {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            self.authorities.insert(namespace.to_owned(), certificates);
        }
    }

    /// Returns two namespaces whose CAs have nothing in common. While a CA is renewed, a bundle has both.
    pub fn strangers(&self) -> Option<(&str, &str)> {
        let mut all = self.authorities.iter();
        let (first, of_first) = all.next()?;
        let other = all.find(|(_, certificates)| certificates.is_disjoint(of_first))?.0;
        Some((first, other))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cas_without_a_common_certificate_are_those_of_two_clusters() {
        let pem = |name: &str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        let check = |bundles: &[(&str, String)]| {
            let mut clusters = Clusters::default();
            for (namespace, bundle) in bundles {
                let metadata = json!({ "name": PUBLISHED, "namespace": namespace });
                clusters.note(&json!({ "kind": "ConfigMap", "metadata": metadata, "data": { "ca.crt": bundle } }));
            }
            clusters.note(&json!({ "kind": "ConfigMap", "metadata": { "name": "other" }, "data": { "ca.crt": "x" } }));
            clusters.strangers().map(|(one, other)| format!("{one} {other}"))
        };
        assert_eq!(check(&[]), None);
        assert_eq!(check(&[("a", pem("one")), ("b", pem("one")), ("c", String::new())]), None);
        assert_eq!(check(&[("a", pem("one")), ("b", pem("two") + &pem("one"))]), None);
        assert_eq!(check(&[("a", pem("one")), ("b", pem("two"))]).as_deref(), Some("a b"));
    }
}
