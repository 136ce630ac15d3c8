//! ControllerRevision.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ControllerRevision", "controllerrevisions")
        .table("Name, Controller, Revision, Age")
}
