//! The resource and the object that a request is about.

use std::sync::Arc;

use corten_meta::{Object, Status};

use crate::context::Context;
use crate::core::Core;
use crate::registry::Resource;

/// A request together with the resource that it is about.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub core: &'a Core,
    pub context: &'a Context,
    pub resource: &'a Arc<Resource>,
    /// Empty for cluster-scoped resources, for requests across namespaces, and where a path names none.
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Target<'_> {
    /// Returns the 404 of this object.
    pub fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group_resource(), self.name)
    }

    /// Returns the object as this request shows it: some fields are only shown by subresources.
    pub fn shown(&self, object: Arc<Object>) -> Arc<Object> {
        let is_main = self.context.info.subresource.is_empty();
        let shown = is_main.then(|| crate::cache::shown(&self.resource.kind, &object)).flatten();
        shown.unwrap_or(object)
    }
}
