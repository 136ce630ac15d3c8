//! Binding: the scheduler's decision that a pod runs on a node. Answered, never stored.

use crate::kind::Kind;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Binding", "bindings").review()
}
