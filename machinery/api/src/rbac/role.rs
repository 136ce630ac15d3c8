//! Role.

use corten_meta::Value;
use jiff::Timestamp;

use crate::kind::{Behaviour, Kind, NameRule};

struct Role;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "Role", "roles")
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Created At:date")
        .behaviour(Role)
}

impl Behaviour for Role {
    fn rules(&self) -> &'static str {
        ".rbac.v1.Role"
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        crate::cells::name_and_creation(object)
    }
}
