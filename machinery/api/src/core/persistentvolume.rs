//! PersistentVolume.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolume", "persistentvolumes")
        .cluster()
        .short(&["pv"])
        .status()
        .table("Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age; VolumeMode")
}
