//! Service.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Service", "services")
        .short(&["svc"])
        .category("all")
        .status()
        .table("Name, Type, Cluster-IP, External-IP, Port(s), Age; Selector")
}
