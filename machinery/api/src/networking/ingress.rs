//! Ingress.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses")
        .short(&["ing"])
        .status()
        .generation()
        .table("Name, Class, Hosts, Address, Ports, Age")
}
