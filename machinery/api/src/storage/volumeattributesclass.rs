//! VolumeAttributesClass.

use crate::kind::Kind;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
        .cluster()
        .short(&["vac"])
        .table("Name, DriverName=/driverName, Age")
        .returns_deleted()
        .ruled()
}
