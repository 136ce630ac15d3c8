//! MutatingAdmissionPolicyBinding.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")
        .cluster()
        .category("api-extensions")
        .generation()
        .table("Name, PolicyName, ParamRef, Age")
}
