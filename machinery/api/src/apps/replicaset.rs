//! ReplicaSet.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .category("all")
        .scale()
        .status()
        .generation()
        .table("Name, Desired:integer, Current:integer, Ready:integer, Age; Containers, Images, Selector")
}
