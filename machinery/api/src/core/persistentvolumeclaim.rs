//! PersistentVolumeClaim.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .short(&["pvc"])
        .status()
        .table("Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age; VolumeMode")
}
