//! VolumeAttachment.

use corten_meta::Value;
use jiff::Timestamp;

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
    fn rules(&self) -> &'static str {
        ".storage.v1.VolumeAttachment"
    }

    fn default(&self, object: &mut Value) {
        crate::defaulting::default_at(object, "/spec/source/inlineVolumeSpec/hostPath/type", "");
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
