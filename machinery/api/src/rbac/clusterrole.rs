//! ClusterRole.

use corten_meta::Value;
use jiff::Timestamp;

use crate::kind::{Behaviour, Kind, NameRule};

struct ClusterRole;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles")
        .cluster()
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Created At:date")
        .behaviour(ClusterRole)
}

impl Behaviour for ClusterRole {
    fn rules(&self) -> &'static str {
        ".rbac.v1.ClusterRole"
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        crate::cells::name_and_creation(object)
    }
}
