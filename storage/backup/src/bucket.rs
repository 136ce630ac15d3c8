//! A repository in an S3 bucket.

use bytes::Bytes;
use corten_backup::s3::Bucket;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::{Error, Result};
use crate::objects::Objects;

fn failed(error: corten_backup::Error) -> Error {
    Error::Place(error.to_string())
}

impl Objects for Bucket {
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<()>> {
        async move { self.put_bytes(name, bytes).await.map_err(failed) }.boxed()
    }

    fn get<'a>(&'a self, name: &'a str, most: usize) -> BoxFuture<'a, Result<Option<Bytes>>> {
        async move { self.get_bytes(name, most).await.map_err(failed) }.boxed()
    }

    fn exists<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        async move { self.has(name).await.map_err(failed) }.boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, most: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        async move {
            let listed = self.list_below(prefix, most).await.map_err(failed)?;
            Ok(listed.into_iter().map(|object| object.name).collect())
        }
        .boxed()
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { Bucket::delete(self, name).await.map_err(failed) }.boxed()
    }

    /// Does nothing: S3 answers when an object is durable.
    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        async { Ok(()) }.boxed()
    }
}
