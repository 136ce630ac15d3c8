//! Filters: what happens to a request or response on its way.

use crate::BackendKey;
use crate::policy::{
    AddressPolicy, BasicAuth, ConcurrencyLimit, ErrorPages, FixedResponse, ForwardAuth, HashKey, Jwt, RateLimit,
};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub enum Filter {
    RequestHeaders(HeaderChange),
    ResponseHeaders(HeaderChange),
    Redirect(Redirect),
    Rewrite {
        hostname: Option<Arc<str>>,
        path: Option<PathChange>,
    },
    Mirror(Mirror),
    Cors(Cors),
    RateLimit(Arc<RateLimit>),
    Concurrency(Arc<ConcurrencyLimit>),
    Addresses(Arc<AddressPolicy>),
    BasicAuth(Arc<BasicAuth>),
    ForwardAuth(Arc<ForwardAuth>),
    Jwt(Arc<Jwt>),
    /// The most bytes of a request body; a bigger one is answered with 413.
    BodySize(u64),
    /// Responses of text are compressed by gzip if the client accepts that.
    Compression,
    /// Requests are not written to the access log.
    NoAccessLog,
    HashBy(HashKey),
    ErrorPages(Arc<ErrorPages>),
    /// Every request is answered with this response.
    Respond(Arc<FixedResponse>),
    /// One of these lets the request pass; the answer of the last is the client's otherwise.
    AnyOf(Arc<[Filter]>),
    /// Redirects and cookies of the backend name other addresses.
    Origin(Arc<OriginChange>),
}

/// Changes of the addresses that responses name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginChange {
    /// The beginning of URLs in Location and Refresh.
    pub redirect: Option<Replacement>,
    /// The attribute Domain of cookies.
    pub cookie_domain: Option<Replacement>,
    /// The beginning of the attribute Path of cookies.
    pub cookie_path: Option<Replacement>,
}

/// A string, and the one that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    pub from: Arc<str>,
    pub to: Arc<str>,
}

/// Headers: set, then add, then remove.
#[derive(Clone, Debug, Default)]
pub struct HeaderChange {
    pub set: Vec<(String, String)>,
    pub add: Vec<(String, String)>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Redirect {
    pub scheme: Option<Arc<str>>,
    pub hostname: Option<Arc<str>>,
    pub path: Option<PathChange>,
    /// None: the scheme's own port if the scheme is given, else the listener's.
    pub port: Option<u16>,
    pub status: u16,
}

#[derive(Clone, Debug)]
pub enum PathChange {
    ReplaceFull(Arc<str>),
    /// Replaces the part that a prefix matched.
    ReplacePrefix(Arc<str>),
    /// Replaces the whole path; `$1` is the first group of the rule's regular expression.
    ReplaceGroups(Arc<str>),
}

/// Sends copies of requests to a backend whose answers are dropped.
#[derive(Clone, Debug)]
pub struct Mirror {
    pub backend: BackendKey,
    pub numerator: u32,
    pub denominator: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Cors {
    /// Origins: exact, `*`, or with a wildcard in the host.
    pub allow_origins: Vec<String>,
    pub allow_methods: Vec<String>,
    pub allow_headers: Vec<String>,
    pub expose_headers: Vec<String>,
    pub allow_credentials: bool,
    pub max_age_seconds: u32,
}
