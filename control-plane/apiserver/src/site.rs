//! Pages that the server shows beside the API: a console, which is static and does all by the API, and metrics of objects.

use std::sync::Arc;

use bytes::Bytes;
use corten_access::User;
use corten_meta::Object;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Response};

/// A request for a page.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    pub user: &'a User,
}

/// Pages below one path. Every client may read those that are static.
pub trait Site: std::fmt::Debug + Send + Sync {
    /// Returns the path below which the pages are, with a slash at its end.
    fn prefix(&self) -> &'static str;

    /// Answers a request for the prefix, with or without its last slash, or for a path below it.
    fn answer<'a>(&'a self, request: PageRequest<'a>) -> BoxFuture<'a, Response<Bytes>>;
}

/// Reports whether a path is one of the site's.
pub fn has(site: &dyn Site, path: &str) -> bool {
    let prefix = site.prefix();
    path.starts_with(prefix) || path == prefix.trim_end_matches('/')
}

/// Lists the objects of a group, version and plural name.
pub type ListObjects<'a> = &'a dyn Fn(&str, &str, &str) -> Vec<Arc<Object>>;

/// Metrics that are made of objects, on request.
pub trait ObjectMetrics: std::fmt::Debug + Send + Sync {
    /// Returns the metrics in the Prometheus text format.
    fn page(&self, list: ListObjects<'_>) -> String;
}
