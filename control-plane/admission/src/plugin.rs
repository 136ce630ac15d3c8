//! The interface of admission plugins.

use std::pin::Pin;
use std::task::{Context, Poll};

use corten_meta::{FieldError, Status, Value};
use corten_store::Op;
use futures::future::BoxFuture;

use super::attributes::Attributes;
use crate::door::Target;

/// An admission plugin. Every hook has a default.
pub trait Plugin: Send + Sync {
    /// Changes the object, refuses it, or leaves it as it is.
    fn admit<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Allocates addresses, ports and the like for the object, after the last plugin that changes it.
    fn allocate<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Returns errors of the object beside those of its kind's validation, to be reported together with them.
    fn errors(&self, _: &Attributes<'_>) -> Vec<FieldError> {
        Vec::new()
    }

    /// Refuses the object, which is final now, or lets it pass.
    fn validate<'a>(&'a self, _: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Charges the object, which is final and valid now, to quotas; adds companions or refuses it.
    fn charge<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Returns the operations that release the allocations of an object that is about to be deleted, for the same
    /// commit.
    fn released<'a>(&'a self, _target: &'a Target<'_>, _object: &'a Value) -> BoxFuture<'a, Result<Vec<Op>, Status>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// The answer of a plugin that does not handle a write. It has no size, so that boxing it takes no memory.
pub struct Indifferent;

impl Future for Indifferent {
    type Output = Result<(), Status>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}
