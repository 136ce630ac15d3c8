//! Advice: warnings of a component that the binary plugged in, about objects as they are stored.

use std::sync::Arc;

use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

/// A component that knows more about some objects than their schema does. It warns their authors; it refuses nothing.
pub trait Adviser: std::fmt::Debug + Send + Sync {
    /// Returns the warnings about a new or changed object of a kind.
    fn warnings(&self, group: &str, plural: &str, object: &Value) -> Vec<String>;
}

pub struct Advice(pub Arc<dyn Adviser>);

impl Plugin for Advice {
    /// Warns of the object as it is after all changes of other plugins.
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let is_write = matches!(a.operation, Operation::Create | Operation::Update);
        if is_write && a.subresource().is_empty() {
            let kind = a.target.resource.kind();
            let warnings = self.0.warnings(&kind.group, &kind.plural, &a.object);
            warnings.into_iter().for_each(|warning| a.target.context.warn(warning));
        }
        Box::pin(super::plugin::Indifferent)
    }
}
