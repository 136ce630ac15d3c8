//! ClusterRoleBinding.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::{binding_cells, default_binding, validation};
use crate::kind::{Behaviour, Kind, NameRule};

struct ClusterRoleBinding;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings")
        .cluster()
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Role, Age; Users, Groups, ServiceAccounts")
        .behaviour(ClusterRoleBinding)
}

impl Behaviour for ClusterRoleBinding {
    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_binding(object, &["ClusterRole"])
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_role_ref_immutable(new, old)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(object, now)
    }
}
