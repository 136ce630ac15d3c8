//! ResourceSlice.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
        .cluster()
        .generation()
        .table("Name, Node, Driver, Pool, Age")
}
