//! IngressClass.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses")
        .cluster()
        .generation()
        .table("Name, Controller, Parameters, Age")
}
