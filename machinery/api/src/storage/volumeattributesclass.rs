//! VolumeAttributesClass.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
        .cluster()
        .short(&["vac"])
        .table("Name, DriverName, Age")
}
