//! PersistentVolumeClaim.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::claim_validation;
use super::volume_cells::{access_modes, quantity, storage_class};
use crate::cells::{age, name, or, text};
use crate::check::At;
use crate::defaulting::{absent, default_at, put};
use crate::kind::{Behaviour, Kind};

struct PersistentVolumeClaim;

pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .short(&["pvc"])
        .status()
        .table("Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age; VolumeMode")
        .returns_deleted()
        .behaviour(PersistentVolumeClaim)
}

/// Sets the defaults of a claim, also of a StatefulSet's templates.
pub(crate) fn default_claim(claim: &mut Value) {
    default_at(claim, "/status/phase", "Pending");
    default_at(claim, "/spec/volumeMode", "Filesystem");
}

/// Keeps `dataSource`, the narrower, older form, and `dataSourceRef` consistent; a source without namespace is in both.
fn mirror_data_source(claim: &mut Value) {
    let source = claim.pointer("/spec/dataSource").filter(|s| s.is_object()).cloned();
    let reference = claim.pointer("/spec/dataSourceRef").filter(|s| s.is_object()).cloned();
    match (source, reference) {
        (Some(source), None) => put(claim, "/spec/dataSourceRef", source),
        (None, Some(mut reference)) if text(&reference, "/namespace").is_empty() => {
            crate::defaulting::remove(&mut reference, "/namespace");
            put(claim, "/spec/dataSource", reference);
        }
        _ => {}
    }
}

/// Drops a source in another namespace, whose feature is disabled.
fn drop_foreign_source(claim: &mut Value) {
    if !text(claim, "/spec/dataSourceRef/namespace").is_empty() {
        crate::defaulting::remove(claim, "/spec/dataSourceRef");
    }
}

/// Drops an old-form source that is neither a claim nor a snapshot.
fn drop_unknown_source(claim: &mut Value) {
    let is = |field: &str, value: &str| crate::cells::text(claim, &format!("/spec/dataSource/{field}")) == value;
    let known = (is("apiGroup", "") && is("kind", "PersistentVolumeClaim"))
        || (is("apiGroup", "snapshot.storage.k8s.io") && is("kind", "VolumeSnapshot"));
    if !known && claim.pointer("/spec/dataSourceRef").is_none_or(Value::is_null) {
        crate::defaulting::remove(claim, "/spec/dataSource");
    }
}

impl Behaviour for PersistentVolumeClaim {
    /// Reports whether the phase is missing.
    fn is_completed_when_read(&self, _claim: &Value) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        default_claim(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        put(object, "/status", json!({"phase": "Pending"}));
        drop_foreign_source(object);
        drop_unknown_source(object);
        mirror_data_source(object);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if absent(old, "/spec/dataSourceRef") {
            drop_foreign_source(object);
            if absent(old, "/spec/dataSource") {
                drop_unknown_source(object);
            }
        }
        mirror_data_source(object);
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        claim_validation::validate_claim(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        claim_validation::validate_claim_update(new, old)
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        claim_validation::validate_claim_status_update(new)
    }

    fn warnings(&self, claim: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = super::pod_warnings::of_old_annotations(claim, &super::pod_warnings::OLD_CLASS);
        super::pod_warnings::of_claim_spec(&At::object(claim).get("spec"), &mut out);
        out
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let bound = !text(object, "/spec/volumeName").is_empty();
        let phase =
            if absent(object, "/metadata/deletionTimestamp") { text(object, "/status/phase") } else { "Terminating" };
        let capacity = if bound { quantity(object, "/status/capacity/storage") } else { String::new() };
        let modes = if bound { access_modes(object, "/status/accessModes") } else { String::new() };
        vec![
            name(object),
            phase.into(),
            text(object, "/spec/volumeName").into(),
            capacity.into(),
            modes.into(),
            storage_class(object).into(),
            or(text(object, "/spec/volumeAttributesClassName"), "<unset>").into(),
            age(object, now),
            or(text(object, "/spec/volumeMode"), "<unset>").into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_a_namespace_is_in_both_fields() {
        for (namespace, mirrors) in [(json!(null), true), (json!(""), true), (json!("n"), false)] {
            let reference = json!({ "kind": "PersistentVolumeClaim", "name": "a", "namespace": namespace });
            let mut claim = json!({ "spec": { "dataSourceRef": reference } });
            mirror_data_source(&mut claim);
            let source = claim["spec"].get("dataSource").cloned();
            assert_eq!(source, mirrors.then(|| json!({ "kind": "PersistentVolumeClaim", "name": "a" })));
        }
    }
}
