//! DeviceClass.

use crate::kind::{Behaviour, Kind, NameRule};

struct DeviceClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "DeviceClass", "deviceclasses")
        .cluster()
        .generation()
        .name_rule(NameRule::SubdomainInBytes)
        .returns_deleted()
        .behaviour(DeviceClass)
}

impl Behaviour for DeviceClass {
    fn rules(&self) -> &'static str {
        ".resource.v1.DeviceClass"
    }
}
