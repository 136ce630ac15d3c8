//! ClusterRole.

use crate::kind::{Kind, NameRule};

pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles")
        .cluster()
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Created At:date")
        .ruled()
}
