//! The rules of CustomResourceDefinitions: a definition whose expressions do not compile, or can cost too much, is
//! refused. It stands among the plugins because the kind table, which validates the rest, knows no expressions.

use corten_meta::Status;
use futures::future::BoxFuture;

use super::{Attributes, Operation, Plugin};
use crate::custom_resources;

pub struct CustomResourceRules;

impl Plugin for CustomResourceRules {
    fn name(&self) -> &'static str {
        "CustomResourceRules"
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let writes = matches!(a.operation, Operation::Create | Operation::Update);
            if !writes || !a.is("apiextensions.k8s.io", "customresourcedefinitions", "") {
                return Ok(());
            }
            let errors = custom_resources::validate_expressions(&a.object, a.old.as_deref());
            if errors.is_empty() {
                return Ok(());
            }
            Err(Status::invalid(&a.target.resource.group_kind(), corten_meta::name(&a.object), errors))
        })
    }
}
