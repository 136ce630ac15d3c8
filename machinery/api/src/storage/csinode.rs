//! CSINode.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes")
        .cluster()
        .table("Name, Drivers:integer, Age")
}
