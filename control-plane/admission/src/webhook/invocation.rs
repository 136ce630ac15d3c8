//! The invocation of a webhook for a write: converts the object to the version that it sees, and back.

use std::sync::Arc;

use corten_meta::{Status, Value};

use super::configuration::Webhook;
use crate::attributes::Attributes;
use crate::door::Resource;

/// A webhook to be called, with the version of the resource.
pub struct Invocation<'a> {
    pub hook: &'a Webhook,
    /// The resource in the version that the webhook's rules name.
    pub resource: Arc<dyn Resource>,
}

impl Invocation<'_> {
    /// Returns group, version and kind of the object that the webhook sees.
    pub fn kind(&self, a: &Attributes<'_>) -> (String, String, String) {
        a.kind_in(&*self.resource)
    }

    fn is_converted(&self, a: &Attributes<'_>) -> bool {
        self.resource.kind().api_version() != a.target.resource.kind().api_version() && a.is_about_the_object()
    }

    /// Returns an object of the request in the version that the webhook sees.
    pub async fn show(&self, a: &Attributes<'_>, object: &Value) -> Result<Value, Status> {
        if object.is_null() || !self.is_converted(a) {
            return Ok(object.clone());
        }
        a.target.resource.convert(object.clone(), self.resource.kind()).await
    }

    /// Returns the webhook's object in the version of the request: validated, pruned and with its defaults.
    pub async fn read(&self, a: &Attributes<'_>, object: Value) -> Result<Value, Status> {
        let mut object = object;
        if self.is_converted(a) {
            let kind = self.resource.kind();
            check(&kind.schema, &mut object)?;
            kind.default(&mut object);
            object = self.resource.convert(object, a.target.resource.kind()).await?;
        }
        if a.is_about_the_object() {
            let kind = a.target.resource.kind();
            check(&kind.schema, &mut object)?;
            kind.default(&mut object);
        }
        Ok(object)
    }
}

/// Refuses a patched object that does not fit its schema, and prunes unknown fields.
fn check(schema: &str, object: &mut Value) -> Result<(), Status> {
    if schema.is_empty() {
        return Ok(());
    }
    if let Some(error) = corten_api::check_fields(schema, object).type_errors.first() {
        return Err(Status::internal(error));
    }
    corten_api::prune(schema, object);
    Ok(())
}
