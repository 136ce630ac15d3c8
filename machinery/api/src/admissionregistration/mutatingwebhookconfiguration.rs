//! MutatingWebhookConfiguration.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
        .cluster()
        .category("api-extensions")
        .generation()
        .table("Name, Webhooks:integer, Age")
}
