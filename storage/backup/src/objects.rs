//! The place of a repository: objects by name, written as a whole.

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::error::Result;

/// A place for objects. Names are parts of lowercase characters, digits and hyphens between slashes.
///
/// *Invariant: an object is there as a whole or not at all, also after a crash, and a list shows every object that was
/// written before it.*
pub trait Objects: Send + Sync {
    /// Writes an object, over an older one.
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<()>>;
    /// Reads an object of at most `most` bytes; none if it does not exist.
    fn get<'a>(&'a self, name: &'a str, most: usize) -> BoxFuture<'a, Result<Option<Bytes>>>;
    fn exists<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>>;
    /// Lists at most `most` names that begin with `prefix`, which is empty or ends with a slash.
    fn list<'a>(&'a self, prefix: &'a str, most: usize) -> BoxFuture<'a, Result<Vec<String>>>;
    /// Deletes an object; an absent one is the wanted state.
    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>>;
    /// Returns when everything that was written survives a crash.
    fn flush(&self) -> BoxFuture<'_, Result<()>>;
}
