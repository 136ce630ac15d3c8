//! CustomResourceDefinition.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        .cluster()
        .short(&["crd", "crds"])
        .category("api-extensions")
        .status()
        .generation()
}
