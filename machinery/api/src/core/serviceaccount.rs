//! ServiceAccount.

use crate::kind::{Kind, Role};

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ServiceAccount", "serviceaccounts").short(&["sa"]).returns_deleted().sub(
        "token",
        Role::Token,
        &["create"],
        ("authentication.k8s.io", "v1", "TokenRequest"),
    )
}
