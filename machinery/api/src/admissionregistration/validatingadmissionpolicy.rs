//! ValidatingAdmissionPolicy.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
        .cluster()
        .category("api-extensions")
        .status()
        .generation()
        .table("Name, Validations:integer, ParamKind, Age")
}
