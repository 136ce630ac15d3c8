//! Namespace.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Namespace", "namespaces")
        .cluster()
        .short(&["ns"])
        .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
        .status()
        .table("Name, Status, Age")
}
