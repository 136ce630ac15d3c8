//! The rules of CustomResourceDefinitions: a CRD whose expressions do not compile, or can cost too much, is refused,
//! and a CRD that is being deleted gets no new objects. This is an admission plugin because the kind table, which
//! validates the rest, knows neither expressions nor other objects.

use corten_admission::{Attributes, Operation, Plugin};
use corten_meta::{FieldError, Status};
use futures::future::BoxFuture;

use super::{TERMINATING, is_terminating, validate_bundle};

pub struct CustomResourceRules;

impl Plugin for CustomResourceRules {
    /// Refuses new objects of a CRD that is being deleted, before any other plugin.
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let kind = a.target.resource.kind();
            let creates = a.operation == Operation::Create && kind.is_custom() && a.subresource().is_empty();
            if creates && is_terminating(a.target.core.objects, kind) {
                return Err(a.forbidden(TERMINATING));
            }
            Ok(())
        })
    }

    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.is("apiextensions.k8s.io", "customresourcedefinitions", "") {
            return Vec::new();
        }
        let mut errors = validate_bundle(&a.object, a.old.as_deref());
        errors.extend(corten_structural::validate_expressions(&a.object, a.as_sent(), a.old.as_deref()));
        errors
    }
}
