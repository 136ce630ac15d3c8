//! APIService.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apiregistration.k8s.io", "v1", "APIService", "apiservices")
        .cluster()
        .category("api-extensions")
        .status()
}
