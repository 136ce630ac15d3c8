//! Rules of HTTP hosts.

use crate::{BackendRef, Filter, ObjectName, SessionPersistence};
use ::http::HeaderMap;
use regex::Regex;
use std::sync::Arc;
use std::time::Duration;

/// One match of a route's rule with what follows from it. A rule with several matches is several of these, which share
/// their filters and backends.
#[derive(Clone, Debug)]
pub struct HttpRule {
    /// The route, and the name of the rule if it has one.
    pub route: ObjectName,
    pub rule_name: Option<Arc<str>>,
    pub path: PathMatch,
    /// In upper case.
    pub method: Option<Arc<str>>,
    pub headers: Vec<HeaderMatch>,
    pub query: Vec<QueryMatch>,
    pub filters: Arc<[Filter]>,
    pub backends: Arc<[BackendRef]>,
    pub timeouts: Timeouts,
    pub retry: Option<Arc<Retry>>,
    pub session: Option<Arc<SessionPersistence>>,
    /// gRPC: errors of the edge itself are gRPC statuses.
    pub grpc: bool,
    /// The method of gRPC whose service does not matter: the last of two path elements.
    pub grpc_method: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub enum PathMatch {
    Exact(String),
    /// Path elements: `/a` matches `/a` and `/a/b`, not `/ab`. Without a trailing slash; the root is "".
    Prefix(String),
    Regex(Regex),
}

#[derive(Clone, Debug)]
pub enum StringMatch {
    Exact(String),
    Regex(Regex),
}

#[derive(Clone, Debug)]
pub struct HeaderMatch {
    /// In lower case.
    pub name: String,
    pub value: StringMatch,
}

#[derive(Clone, Debug)]
pub struct QueryMatch {
    pub name: String,
    pub value: StringMatch,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the request's first byte to the response's last. Zero in the API means none.
    pub request: Option<Duration>,
    /// Of one try.
    pub backend_request: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    pub attempts: u32,
    pub codes: Vec<u16>,
    pub backoff: Duration,
    /// Requests that may change something are sent once.
    pub idempotent_only: bool,
}

/// The parts of a request that rules match.
pub struct Request<'a> {
    pub method: &'a str,
    /// Normalized by [`crate::normalize`].
    pub path: &'a str,
    pub query: Option<&'a str>,
    /// Several values of a header are matched as one, joined by commas.
    pub headers: &'a HeaderMap,
}
