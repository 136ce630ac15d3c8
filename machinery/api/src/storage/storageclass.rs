//! StorageClass.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "StorageClass", "storageclasses")
        .cluster()
        .short(&["sc"])
        .table("Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age")
}
