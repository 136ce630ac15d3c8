//! ConfigMap.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ConfigMap", "configmaps")
        .short(&["cm"])
        .table("Name, Data, Age")
}
