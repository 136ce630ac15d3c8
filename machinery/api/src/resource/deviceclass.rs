//! DeviceClass.

use crate::kind::{Kind, NameRule};

pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "DeviceClass", "deviceclasses")
        .cluster()
        .generation()
        .name_rule(NameRule::SubdomainInBytes)
        .returns_deleted()
        .ruled()
}
