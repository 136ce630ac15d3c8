//! LimitRange.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "LimitRange", "limitranges")
        .short(&["limits"])
}
