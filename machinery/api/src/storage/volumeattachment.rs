//! VolumeAttachment.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments")
        .cluster()
        .status()
        .table("Name, Attacher, PV, Node, Attached:boolean, Age")
}
