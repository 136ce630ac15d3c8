//! Endpoints.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Endpoints", "endpoints")
        .short(&["ep"])
        .table("Name, Endpoints, Age")
}
