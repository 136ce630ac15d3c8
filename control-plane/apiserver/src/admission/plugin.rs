//! The interface of admission plugins.

use std::pin::Pin;
use std::task::{Context, Poll};

use corten_meta::{FieldError, Status, Value};
use corten_store::Op;
use futures::future::BoxFuture;

use super::attributes::Attributes;
use crate::target::Target;

/// One plugin. Every hook is defaulted.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// The resources that it is about, by group and plural; about all of them, if it names none. It is not asked about
    /// others: most plugins have nothing to say about most writes.
    fn resources(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// May change the object or refuse it.
    fn admit<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Gives the object what it holds elsewhere, once nobody changes it any more.
    fn allocate<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// What is wrong with the object beside the errors of its kind, and told together with them.
    fn errors(&self, _: &Attributes<'_>) -> Vec<FieldError> {
        Vec::new()
    }

    /// May refuse the object, which is final now.
    fn validate<'a>(&'a self, _: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Charges the object, which is final and valid now, to what is limited; adds companions or refuses it.
    fn charge<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// What an object held that is about to go: to be given back in the same commit.
    fn released<'a>(&'a self, _target: &'a Target<'_>, _object: &'a Value) -> BoxFuture<'a, Result<Vec<Op>, Status>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// The answer of a plugin that has nothing to say. It has no size, so that boxing it takes no memory.
pub struct Indifferent;

impl Future for Indifferent {
    type Output = Result<(), Status>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}
