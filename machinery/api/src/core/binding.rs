//! Binding: the scheduler's word that a pod runs on a node. Answered, never stored.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Binding", "bindings").review()
}
