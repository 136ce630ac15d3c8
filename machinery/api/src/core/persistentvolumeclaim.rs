//! PersistentVolumeClaim.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::claim_validation;
use super::volume_cells::{access_modes, quantity, storage_class};
use crate::cells::{age, name, or, text};
use crate::defaulting::{absent, default_at, put};
use crate::kind::{Behaviour, Kind};

struct PersistentVolumeClaim;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .short(&["pvc"])
        .status()
        .selectable(&["name"])
        .table("Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age; VolumeMode")
        .behaviour(PersistentVolumeClaim)
}

/// Defaults of a claim, also of a StatefulSet's templates.
pub(crate) fn default_claim(claim: &mut Value) {
    default_at(claim, "/status/phase", "Pending");
    default_at(claim, "/spec/volumeMode", "Filesystem");
    mirror_data_source(claim);
}

/// `dataSource` is the narrower, older form of `dataSourceRef`; a claim without namespace has both.
fn mirror_data_source(claim: &mut Value) {
    let source = claim.pointer("/spec/dataSource").filter(|s| s.is_object()).cloned();
    let reference = claim.pointer("/spec/dataSourceRef").filter(|s| s.is_object()).cloned();
    match (source, reference) {
        (Some(source), None) => put(claim, "/spec/dataSourceRef", source),
        (None, Some(reference)) if reference.get("namespace").is_none_or(Value::is_null) => {
            put(claim, "/spec/dataSource", reference);
        }
        _ => {}
    }
}

impl Behaviour for PersistentVolumeClaim {
    fn default(&self, object: &mut Value) {
        default_claim(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        put(object, "/status", json!({"phase": "Pending"}));
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

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        (field == "name").then(|| text(object, "/metadata/name").to_string())
    }
}
