//! RoleBinding.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
        .table("Name, Role, Age; Users, Groups, ServiceAccounts")
}
