//! StatefulSet.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "StatefulSet", "statefulsets")
        .short(&["sts"])
        .category("all")
        .scale()
        .status()
        .generation()
        .table("Name, Ready, Age; Containers, Images")
}
