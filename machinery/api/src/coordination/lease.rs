//! Lease.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "Lease", "leases")
        .table("Name, Holder, Age")
}
