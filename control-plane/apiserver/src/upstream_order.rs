//! The field order of documents about the API itself: the order that people and scripts know from upstream.
//!
//! JSON has no order, and objects are written in alphabetical order. But people and `grep` read discovery, and find a
//! field more easily in its usual position.

use corten_meta::Value;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

/// The first fields of a document. The fields that are not listed come after them.
const DOCUMENT: &[&str] = &[
    "kind",
    "apiVersion",
    "groupVersion",
    "name",
    "versions",
    "major",
    "minor",
    "emulationMajor",
    "emulationMinor",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
    "gitVersion",
    "gitCommit",
    "gitTreeState",
    "buildDate",
    "goVersion",
    "compiler",
    "platform",
];
/// The first fields of values inside a document.
const WITHIN: &[&str] = &[
    "metadata",
    "name",
    "singularName",
    "namespaced",
    "resource",
    "subresource",
    "responseKind",
    "scope",
    "singularResource",
    "groupVersion",
    "group",
    "version",
    "kind",
    "verbs",
    "shortNames",
    "categories",
    "versions",
    "preferredVersion",
    "resources",
    "freshness",
];

/// A document that is serialised in upstream's order.
pub struct UpstreamOrder<'a> {
    value: &'a Value,
    order: &'static [&'static str],
}

impl<'a> UpstreamOrder<'a> {
    pub fn document(value: &'a Value) -> UpstreamOrder<'a> {
        UpstreamOrder { value, order: DOCUMENT }
    }

    fn within(value: &'a Value) -> UpstreamOrder<'a> {
        UpstreamOrder { value, order: WITHIN }
    }
}

impl Serialize for UpstreamOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Value::Object(map) => {
                let rank = |key: &str| self.order.iter().position(|known| *known == key).unwrap_or(usize::MAX);
                let mut fields: Vec<(&String, &Value)> = map.iter().collect();
                fields.sort_by_key(|(key, _)| rank(key));
                let mut out = serializer.serialize_map(Some(fields.len()))?;
                for (key, value) in fields {
                    out.serialize_entry(key, &UpstreamOrder::within(value))?;
                }
                out.end()
            }
            Value::Array(list) => {
                let mut out = serializer.serialize_seq(Some(list.len()))?;
                for item in list {
                    out.serialize_element(&UpstreamOrder::within(item))?;
                }
                out.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_in_upstreams_order() {
        let list = json!({ "apiVersion": "v1", "groupVersion": "apps/v1", "kind": "APIResourceList", "resources": [
            { "categories": ["all"], "kind": "Pod", "name": "pods", "namespaced": true, "shortNames": ["po"],
              "singularName": "pod", "storageVersionHash": "x", "verbs": ["get"] }] });
        let text = serde_json::to_string(&UpstreamOrder::document(&list)).expect("a value can be written");
        assert_eq!(
            text,
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get"],"shortNames":["po"],"categories":["all"],"storageVersionHash":"x"}]}"#
        );
        assert_eq!(serde_json::from_str::<Value>(&text).expect("it is JSON"), list);
    }
}
