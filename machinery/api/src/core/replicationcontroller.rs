//! ReplicationController.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ReplicationController", "replicationcontrollers")
        .short(&["rc"])
        .category("all")
        .scale()
        .status()
        .generation()
        .table("Name, Desired:integer, Current:integer, Ready:integer, Age; Containers, Images, Selector")
}
