//! MutatingAdmissionPolicy.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
        .cluster()
        .category("api-extensions")
        .generation()
        .table("Name, Mutations:integer, ParamKind, Age")
}
