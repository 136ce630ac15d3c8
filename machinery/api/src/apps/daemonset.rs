//! DaemonSet.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "DaemonSet", "daemonsets")
        .short(&["ds"])
        .category("all")
        .status()
        .generation()
        .table("Name, Desired:integer, Current:integer, Ready:integer, Up-to-date:integer, Available:integer, Node Selector, Age; Containers, Images, Selector")
}
