//! Pages that the server shows beside the API, such as a console. They are static: all that they do, they do by the API.

use bytes::Bytes;
use http::{HeaderMap, Method, Response};

/// Static pages below one path. Every client may read them.
pub trait Site: std::fmt::Debug + Send + Sync {
    /// Returns the path below which the pages are, with a slash at its end.
    fn prefix(&self) -> &'static str;

    /// Answers a request for the prefix, with or without its last slash, or for a path below it.
    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes>;
}

/// Reports whether a path is one of the site's.
pub fn has(site: &dyn Site, path: &str) -> bool {
    let prefix = site.prefix();
    path.starts_with(prefix) || path == prefix.trim_end_matches('/')
}
