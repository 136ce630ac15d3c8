//! CustomResourceDefinitions as upstream stores them: in v1beta1, which is shorter when all versions share a schema.

use corten_meta::Value;
use serde_json::{Map, json};

pub const GROUP: &str = "apiextensions.k8s.io";

/// The fields that v1beta1 may have once for all versions.
const SHARED: [(&str, &str); 3] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
];

/// Changes a CustomResourceDefinition of v1beta1 to one of v1.
pub fn from_beta(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let version = spec.remove("version");
    if spec.get("versions").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let name = version.unwrap_or_default();
        spec.insert("versions".to_owned(), json!([{ "name": name, "served": true, "storage": true }]));
    }
    let shared: Vec<(&str, Value)> =
        SHARED.into_iter().filter_map(|(old, new)| spec.remove(old).map(|value| (new, value))).collect();
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(version) = version.as_object_mut() else { continue };
        for (field, value) in &shared {
            version.entry(*field).or_insert_with(|| value.clone());
        }
        rename_paths(version);
    }
    convert_webhook(spec);
}

/// Renames the path of printer columns, whose case differs.
fn rename_paths(version: &mut Map<String, Value>) {
    let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
    for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(path) = column.remove("JSONPath") {
            column.insert("jsonPath".to_owned(), path);
        }
    }
}

/// Moves the fields of a conversion webhook into one.
fn convert_webhook(spec: &mut Map<String, Value>) {
    let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) else { return };
    let config = conversion.remove("webhookClientConfig");
    let versions = conversion.remove("conversionReviewVersions");
    if conversion.get("strategy").and_then(Value::as_str) != Some("Webhook") {
        return;
    }
    let webhook = conversion.entry("webhook").or_insert_with(|| json!({}));
    if let Some(config) = config {
        webhook["clientConfig"] = config;
    }
    webhook["conversionReviewVersions"] = versions.unwrap_or_else(|| json!(["v1beta1"]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_v1beta1_is_the_v1_that_was_created() {
        let mut crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1beta1",
            "spec": {
                "group": "g", "version": "v1", "preserveUnknownFields": false,
                "versions": [{ "name": "v1", "served": true, "storage": true }, { "name": "v2", "served": true, "storage": false }],
                "validation": { "openAPIV3Schema": { "type": "object" } },
                "additionalPrinterColumns": [{ "name": "Age", "type": "date", "JSONPath": ".metadata.creationTimestamp" }],
                "conversion": { "strategy": "Webhook", "webhookClientConfig": { "url": "https://x" }, "conversionReviewVersions": ["v1"] },
            },
        });
        from_beta(&mut crd);
        let version = |name: &str, storage: bool| {
            json!({ "name": name, "served": true, "storage": storage,
                    "schema": { "openAPIV3Schema": { "type": "object" } },
                    "additionalPrinterColumns": [{ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" }] })
        };
        assert_eq!(
            crd["spec"],
            json!({ "group": "g", "preserveUnknownFields": false,
                    "versions": [version("v1", true), version("v2", false)],
                    "conversion": { "strategy": "Webhook", "webhook": { "clientConfig": { "url": "https://x" }, "conversionReviewVersions": ["v1"] } } })
        );
    }

    #[test]
    fn a_single_version_stands_for_the_list() {
        let mut crd = json!({ "spec": { "version": "v1", "subresources": { "status": {} } } });
        from_beta(&mut crd);
        let version = json!({ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} } });
        assert_eq!(crd["spec"], json!({ "versions": [version] }));
    }
}
