//! Role.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "Role", "roles")
}
