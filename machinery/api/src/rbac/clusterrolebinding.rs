//! ClusterRoleBinding.

use corten_meta::Value;
use jiff::Timestamp;

use super::{binding_cells, default_binding};
use crate::kind::{Behaviour, Kind, NameRule};

struct ClusterRoleBinding;

pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings")
        .cluster()
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Role, Age; Users, Groups, ServiceAccounts")
        .behaviour(ClusterRoleBinding)
}

impl Behaviour for ClusterRoleBinding {
    fn rules(&self) -> &'static str {
        ".rbac.v1.ClusterRoleBinding"
    }

    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(object, now)
    }
}
