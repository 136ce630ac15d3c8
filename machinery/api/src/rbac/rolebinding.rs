//! RoleBinding.

use corten_meta::Value;
use jiff::Timestamp;

use super::{binding_cells, default_binding};
use crate::kind::{Behaviour, Kind, NameRule};

struct RoleBinding;

pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Role, Age; Users, Groups, ServiceAccounts")
        .behaviour(RoleBinding)
}

impl Behaviour for RoleBinding {
    fn rules(&self) -> &'static str {
        ".rbac.v1.RoleBinding"
    }

    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(object, now)
    }
}
