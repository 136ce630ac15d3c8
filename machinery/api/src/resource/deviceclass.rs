//! DeviceClass.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "DeviceClass", "deviceclasses").cluster().generation()
}
