//! PriorityClass.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
        .cluster()
        .short(&["pc"])
        .generation()
        .table("Name, Value:integer, Global-Default:boolean, Age, PreemptionPolicy")
}
