//! Node.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Node", "nodes")
        .cluster()
        .short(&["no"])
        .status()
        .table("Name, Status, Roles, Age, Version; Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime")
}
