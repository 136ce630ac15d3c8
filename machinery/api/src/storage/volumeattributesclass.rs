//! VolumeAttributesClass.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::kind::{Behaviour, Kind};

struct VolumeAttributesClass;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
        .cluster()
        .short(&["vac"])
        .table("Name, DriverName, Age")
        .behaviour(VolumeAttributesClass)
}

impl Behaviour for VolumeAttributesClass {
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/driverName").into(), age(object, now)]
    }
}
