//! NetworkPolicy.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
        .short(&["netpol"])
        .generation()
        .table("Name, Pod-Selector, Age")
}
