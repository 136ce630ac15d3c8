//! The scope of a request for a resource: its target, and the admission that its writes pass.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use corten_admission::Chain;
use corten_meta::{Status, Value};

use crate::decode::{self, Expected};
use crate::registry::Resource;
use crate::target::Target;

/// A request for a resource, as the verbs handle it.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pub target: Target<'a>,
    pub admission: &'a Chain,
}

impl<'a> Deref for Scope<'a> {
    type Target = Target<'a>;

    fn deref(&self) -> &Target<'a> {
        &self.target
    }
}

impl<'a> Scope<'a> {
    /// Returns the same request, for another object.
    pub fn at<'b>(&self, resource: &'b Arc<Resource>, namespace: &'b str, name: &'b str) -> Scope<'b>
    where
        'a: 'b,
    {
        Scope { target: Target { resource, namespace, name, ..self.target }, admission: self.admission }
    }

    /// Decodes a body that must be an object of the resource's kind.
    pub fn decode(&self, bytes: &Bytes) -> Result<Value, Status> {
        let kind = &self.resource.kind;
        let api_version = kind.api_version();
        decode::object(self.context, bytes, &Expected::of(kind, &api_version))
    }
}
