//! ComponentStatus.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ComponentStatus", "componentstatuses")
        .cluster()
        .short(&["cs"])
        .verbs(&["get", "list"])
        .table("Name, Status, Message, Error")
}
