//! IPAddress.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses")
        .cluster()
        .short(&["ip"])
        .table("Name, ParentRef")
}
