//! The rules of CustomResourceDefinitions: a definition whose expressions do not compile, or can cost too much, is
//! refused. It stands among the plugins because the kind table, which validates the rest, knows no expressions.

use corten_meta::FieldError;

use super::{Attributes, Operation, Plugin};
use crate::custom_resources;

pub struct CustomResourceRules;

impl Plugin for CustomResourceRules {
    fn name(&self) -> &'static str {
        "CustomResourceRules"
    }

    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.is("apiextensions.k8s.io", "customresourcedefinitions", "") {
            return Vec::new();
        }
        custom_resources::validate_expressions(&a.object, a.old.as_deref())
    }
}
