//! Lease.

use crate::kind::Kind;

pub fn kind() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "Lease", "leases")
        .create_on_update()
        .conditional_update()
        .table("Name, Holder=/spec/holderIdentity, Age")
        .ruled()
}
