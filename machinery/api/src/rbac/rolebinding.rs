//! RoleBinding.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::{binding_cells, default_binding, validation};
use crate::kind::{Behaviour, Kind, NameRule};

struct RoleBinding;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
        .create_on_update()
        .name_rule(NameRule::PathSegment)
        .table("Name, Role, Age; Users, Groups, ServiceAccounts")
        .behaviour(RoleBinding)
}

impl Behaviour for RoleBinding {
    fn default(&self, object: &mut Value) {
        default_binding(object);
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_binding(object, &["Role", "ClusterRole"])
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_role_ref_immutable(new, old)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(object, now)
    }
}
