//! RuntimeClass.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
        .cluster()
        .table("Name, Handler, Age")
}
