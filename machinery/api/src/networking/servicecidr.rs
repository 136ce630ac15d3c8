//! ServiceCIDR.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs")
        .cluster()
        .status()
        .table("Name, CIDRs, Age")
}
