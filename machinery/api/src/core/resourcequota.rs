//! ResourceQuota.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ResourceQuota", "resourcequotas")
        .short(&["quota"])
        .status()
        .table("Name, Request, Limit, Age")
}
