//! Pod.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Pod", "pods")
        .short(&["po"])
        .category("all")
        .status()
        .generation()
}
