//! CustomResourceDefinition.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use corten_meta::quote::quote;
use jiff::Timestamp;
use serde_json::json;

use super::schemas;
use crate::cells::{boolean, list, text};
use crate::defaulting::{absent, default_at, items, put, remove};
use crate::kind::{Behaviour, Kind};

struct CustomResourceDefinition;

/// The finalizer that keeps a CustomResourceDefinition until its objects are deleted.
pub const CUSTOM_RESOURCE_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

pub fn kind() -> Kind {
    Kind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        .cluster()
        .short(&["crd", "crds"])
        .category("api-extensions")
        .status()
        .status_needs_spec()
        .status_without_rows()
        .generation()
        .conditional_update()
        .marked_by_time()
        .stored_at("/registry/apiextensions.k8s.io/customresourcedefinitions")
        .table("Name, Created At:date")
        .behaviour(CustomResourceDefinition)
}

/// Adds the storage version to the stored versions.
fn remember_storage(object: &mut Value) {
    if list(object, "/status/storedVersions").is_empty()
        && let Some(name) = storage_version(object)
    {
        put(object, "/status/storedVersions", json!([name]));
    }
}

/// Returns the version that objects are stored in.
fn storage_version(object: &Value) -> Option<Value> {
    list(object, "/spec/versions").iter().find(|v| boolean(v, "/storage")).map(|v| v["name"].clone())
}

/// The versions of ConversionReview that a webhook may read.
const REVIEW_VERSIONS: &str = "/spec/conversion/webhook/conversionReviewVersions";

/// Removes an empty webhook. An explicit empty list is owned by its author before it is removed.
fn drop_no_webhook(object: &mut Value) {
    if absent(object, "/spec/conversion/webhook/clientConfig") && list(object, REVIEW_VERSIONS).is_empty() {
        remove(object, "/spec/conversion/webhook");
    }
}

impl Behaviour for CustomResourceDefinition {
    fn rules(&self) -> &'static str {
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
    }

    fn default(&self, object: &mut Value) {
        let kind = text(object, "/spec/names/kind").to_string();
        default_at(object, "/spec/names/singular", kind.to_lowercase());
        if !kind.is_empty() {
            default_at(object, "/spec/names/listKind", format!("{kind}List"));
        }
        if object["status"].is_object() {
            remember_storage(object);
        }
        default_at(object, "/spec/conversion", json!({"strategy": "None"}));
        default_at(object, "/spec/conversion/webhook/clientConfig/service/port", 443);
        if absent(object, REVIEW_VERSIONS) {
            drop_no_webhook(object);
        }
        for version in items(object, "/spec/versions") {
            default_at(version, "/served", false);
            default_at(version, "/storage", false);
            if version.pointer("/subresources/status").is_some_and(Value::is_object) {
                put(version, "/subresources/status", json!({}));
            }
            if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
                schemas::prune(schema);
            }
        }
    }

    /// Sets the stored versions, which are kept until the objects are migrated.
    fn prepare_create(&self, object: &mut Value) {
        drop_no_webhook(object);
        let stored: Vec<Value> = storage_version(object).into_iter().collect();
        put(object, "/status", json!({"storedVersions": stored}));
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value) {
        drop_no_webhook(new);
        let storage = storage_version(new);
        let mut stored = list(new, "/status/storedVersions").to_vec();
        if let Some(storage) = storage.filter(|s| !stored.contains(s)) {
            stored.push(storage);
            default_at(new, "/status", json!({}));
            put(new, "/status/storedVersions", stored);
        }
    }

    /// Keeps the storage version in the status.
    fn prepare_status_update(&self, new: &mut Value, _old: &Value, _now: Timestamp) {
        remember_storage(new);
    }

    /// Adds the finalizer that keeps the CustomResourceDefinition until its objects are deleted.
    fn prepare_delete(&self, object: &mut Value, now: Timestamp) {
        let mut finalizers = list(object, "/metadata/finalizers").to_vec();
        if !finalizers.iter().any(|one| one == CUSTOM_RESOURCE_CLEANUP) {
            finalizers.push(CUSTOM_RESOURCE_CLEANUP.into());
            put(object, "/metadata/finalizers", finalizers);
        }
        let mut conditions = list(object, "/status/conditions").to_vec();
        conditions.retain(|condition| text(condition, "/type") != "Terminating");
        conditions.push(json!({"type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
            "lastTransitionTime": corten_meta::time::rfc3339(now),
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"}));
        default_at(object, "/status", json!({}));
        put(object, "/status/conditions", conditions);
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        super::validation::validate_definition(object)
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        super::validation::validate_rest(object, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let established = list(old, "/status/conditions")
            .iter()
            .any(|c| text(c, "/type") == "Established" && text(c, "/status") == "True");
        let fixed: &[&str] =
            if established { &["scope", "names/kind", "group", "names/plural"] } else { &["group", "names/plural"] };
        for field in fixed {
            let pointer = format!("/spec/{field}");
            if new.pointer(&pointer) != old.pointer(&pointer) {
                let path = Path::root("spec").child(field.replace('/', "."));
                let value = new.pointer(&pointer).cloned().unwrap_or_default();
                errors.push(FieldError::invalid(&path, value, "field is immutable"));
            }
        }
        errors.extend(super::validation::validate_rest(new, Some(old)));
        errors
    }

    /// Warns of unknown formats, which are not checked, once per format.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let before = old.map(schemas::unknown_formats).unwrap_or_default();
        let mut found = schemas::unknown_formats(new);
        found.retain(|format| !before.contains(format));
        found.into_iter().map(|format| format!("unrecognized format {}", quote(&format))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_versions_are_required_at_every_update() {
        let stored = |versions: Value| {
            let object = json!({"spec": {"versions": [{"name": "v1", "storage": true}]},
                                "status": {"storedVersions": versions}});
            let errors = crate::apiextensions::validation::validate_rest(&object, Some(&object));
            errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
        };
        assert_eq!(stored(json!(["v1", "v9"])), ["status.storedVersions[1]"]);
        assert!(stored(json!(["v1"])).is_empty());
    }

    #[test]
    fn an_empty_webhook_is_removed() {
        for (webhook, wanted) in [
            (json!({}), [false, false]),
            (json!({"conversionReviewVersions": []}), [true, false]),
            (json!({"conversionReviewVersions": ["v1"]}), [true, true]),
            (json!({"clientConfig": {}}), [true, true]),
        ] {
            let mut object = json!({"spec": {"conversion": {"strategy": "None", "webhook": webhook}}});
            let is_there = |object: &Value| object.pointer("/spec/conversion/webhook").is_some();
            CustomResourceDefinition.default(&mut object);
            let read = is_there(&object);
            CustomResourceDefinition.prepare_update(&mut object, &Value::Null);
            assert_eq!([read, is_there(&object)], wanted);
        }
    }
}
