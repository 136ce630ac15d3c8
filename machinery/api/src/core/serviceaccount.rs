//! ServiceAccount.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ServiceAccount", "serviceaccounts")
        .short(&["sa"])
}
