//! PodDisruptionBudget.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
        .short(&["pdb"])
        .status()
        .generation()
        .table("Name, Min Available, Max Unavailable, Allowed Disruptions:integer, Age")
}
