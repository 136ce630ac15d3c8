//! VolumeAttributesClass.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::kind::{Behaviour, Kind};

struct VolumeAttributesClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
        .cluster()
        .short(&["vac"])
        .table("Name, DriverName, Age")
        .returns_deleted()
        .behaviour(VolumeAttributesClass)
}

impl Behaviour for VolumeAttributesClass {
    fn rules(&self) -> &'static str {
        ".storage.v1.VolumeAttributesClass"
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/driverName").into(), age(object, now)]
    }
}
