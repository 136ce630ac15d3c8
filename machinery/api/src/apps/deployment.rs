//! Deployment.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "Deployment", "deployments")
        .short(&["deploy"])
        .category("all")
        .scale()
        .status()
        .generation()
        .table("Name, Ready, Up-to-date, Available, Age; Containers, Images, Selector")
}
