//! Job.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("batch", "v1", "Job", "jobs")
        .category("all")
        .status()
        .generation()
        .table("Name, Status, Completions, Duration, Age; Containers, Images, Selector")
}
