//! VolumeAttachment.

use corten_meta::Value;

use crate::kind::{Behaviour, Kind};

struct VolumeAttachment;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments")
        .cluster()
        .status()
        .status_takes_identity()
        .conditional_update()
        .table(
            "Name, Attacher:string/name=/spec/attacher, PV=/spec/source/persistentVolumeName, Node=/spec/nodeName, \
             Attached:boolean=bool(/status/attached), Age",
        )
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
}
