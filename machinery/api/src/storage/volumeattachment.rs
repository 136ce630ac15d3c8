//! VolumeAttachment.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::validation;
use crate::cells::{age, boolean, name, text};
use crate::kind::{Behaviour, Kind};

struct VolumeAttachment;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments")
        .cluster()
        .status()
        .status_takes_identity()
        .conditional_update()
        .table("Name, Attacher:string/name, PV, Node, Attached:boolean, Age")
        .returns_deleted()
        .behaviour(VolumeAttachment)
}

impl Behaviour for VolumeAttachment {
    fn default(&self, object: &mut Value) {
        crate::defaulting::default_at(object, "/spec/source/inlineVolumeSpec/hostPath/type", "");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_attachment(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_fixed(new, old, &["spec"])
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        validation::validate_attachment(new)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name(object),
            text(object, "/spec/attacher").into(),
            text(object, "/spec/source/persistentVolumeName").into(),
            text(object, "/spec/nodeName").into(),
            boolean(object, "/status/attached").into(),
            age(object, now),
        ]
    }
}
