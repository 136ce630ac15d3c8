//! Secret.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Secret", "secrets")
        .table("Name, Type, Data, Age")
}
