//! Filters with their parts parsed once: names and values of headers, keys, limits, backends.

use std::sync::Arc;

use corten_routing::{
    AddressPolicy, BackendKey, ErrorPages, Filter, FixedResponse, ForwardAuth, HashKey, HeaderChange, OriginChange,
    PathChange, Redirect,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::backend::Backend;
use crate::policy::basic_auth::Users;
use crate::policy::cors::CorsPolicy;
use crate::policy::jwt::TokenVerifier;
use crate::policy::origin;
use crate::policy::rate::{Concurrency, Limiter, Limiters};
use crate::policy::unknown_keys::UnknownKeys;

/// The filters of a rule or of a reference to a backend, in their order.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    pub(crate) request: Vec<RequestFilter>,
    pub(crate) response: Vec<ResponseFilter>,
    pub(crate) is_compressed: bool,
    /// Whether requests stay out of the access log.
    pub(crate) is_silent: bool,
    pub(crate) hash: Option<HashKey>,
    pub(crate) error_pages: Option<ErrorBackend>,
}

/// The backend that makes error pages.
#[derive(Debug)]
pub(crate) struct ErrorBackend {
    pub(crate) pages: Arc<ErrorPages>,
    pub(crate) backend: Arc<Backend>,
}

#[derive(Debug)]
pub(crate) enum ResponseFilter {
    Headers(HeaderChanges),
    Origin(Arc<OriginChange>),
}

impl ResponseFilter {
    /// Changes the headers of a response.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        match self {
            ResponseFilter::Headers(changes) => changes.apply(headers),
            ResponseFilter::Origin(change) => origin::apply(change, headers),
        }
    }
}

#[derive(Debug)]
pub(crate) enum RequestFilter {
    Headers(HeaderChanges),
    Redirect(Redirect),
    Rewrite { hostname: Option<HeaderValue>, path: Option<PathChange> },
    Mirror { backend: Arc<Backend>, numerator: u32, denominator: u32 },
    Cors(CorsPolicy),
    RateLimit(Arc<Limiter>),
    Concurrency(Arc<Concurrency>),
    Addresses(Arc<AddressPolicy>),
    BasicAuth(Users),
    ForwardAuth { policy: Arc<ForwardAuth>, backend: Arc<Backend> },
    Jwt(TokenVerifier),
    BodySize(u64),
    Respond(Arc<FixedResponse>),
    AnyOf(Vec<Filters>),
}

/// Changes of headers, parsed.
#[derive(Debug, Default)]
pub(crate) struct HeaderChanges {
    set: Vec<Header>,
    add: Vec<Header>,
    remove: Vec<HeaderName>,
}

#[derive(Debug)]
struct Header {
    name: HeaderName,
    value: HeaderValue,
}

impl HeaderChanges {
    /// Parses changes. Names and values that HTTP does not allow are left out: the API refuses them already.
    fn new(change: &HeaderChange) -> HeaderChanges {
        let parse = |headers: &[(String, String)]| -> Vec<Header> {
            let valid = headers.iter().filter_map(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                Some(Header { name, value: HeaderValue::from_str(value).ok()? })
            });
            valid.collect()
        };
        let remove = change.remove.iter().filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        HeaderChanges { set: parse(&change.set), add: parse(&change.add), remove: remove.collect() }
    }

    /// Changes headers.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for header in &self.set {
            headers.insert(header.name.clone(), header.value.clone());
        }
        for header in &self.add {
            headers.append(header.name.clone(), header.value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

impl Filters {
    pub(crate) fn new(
        filters: &[Filter],
        backend: &dyn Fn(&BackendKey) -> Arc<Backend>,
        limiters: &Limiters,
        unknown_keys: &Arc<UnknownKeys>,
    ) -> Filters {
        let mut made = Filters::default();
        for filter in filters {
            let request = match filter {
                Filter::RequestHeaders(change) => RequestFilter::Headers(HeaderChanges::new(change)),
                Filter::ResponseHeaders(change) => {
                    made.response.push(ResponseFilter::Headers(HeaderChanges::new(change)));
                    continue;
                }
                Filter::Origin(change) => {
                    made.response.push(ResponseFilter::Origin(Arc::clone(change)));
                    continue;
                }
                Filter::Compression => {
                    made.is_compressed = true;
                    continue;
                }
                Filter::NoAccessLog => {
                    made.is_silent = true;
                    continue;
                }
                Filter::HashBy(key) => {
                    made.hash = Some(key.clone());
                    continue;
                }
                Filter::ErrorPages(pages) => {
                    let backend = backend(&pages.backend);
                    made.error_pages = Some(ErrorBackend { pages: Arc::clone(pages), backend });
                    continue;
                }
                Filter::Redirect(redirect) => RequestFilter::Redirect(redirect.clone()),
                Filter::Rewrite { hostname, path } => RequestFilter::Rewrite {
                    hostname: hostname.as_ref().and_then(|name| HeaderValue::from_str(name).ok()),
                    path: path.clone(),
                },
                Filter::Mirror(mirror) => RequestFilter::Mirror {
                    backend: backend(&mirror.backend),
                    numerator: mirror.numerator,
                    denominator: mirror.denominator,
                },
                Filter::Cors(cors) => RequestFilter::Cors(CorsPolicy::new(cors)),
                Filter::RateLimit(limit) => RequestFilter::RateLimit(limiters.get(limit)),
                Filter::Concurrency(limit) => RequestFilter::Concurrency(limiters.concurrency(limit)),
                Filter::Addresses(policy) => RequestFilter::Addresses(Arc::clone(policy)),
                Filter::BasicAuth(users) => RequestFilter::BasicAuth(Users::new(users)),
                Filter::ForwardAuth(policy) => {
                    RequestFilter::ForwardAuth { backend: backend(&policy.backend), policy: Arc::clone(policy) }
                }
                Filter::Jwt(jwt) => RequestFilter::Jwt(TokenVerifier::new(jwt, unknown_keys)),
                Filter::BodySize(limit) => RequestFilter::BodySize(*limit),
                Filter::Respond(response) => RequestFilter::Respond(Arc::clone(response)),
                Filter::AnyOf(conditions) => {
                    let of = |one: &Filter| Filters::new(std::slice::from_ref(one), backend, limiters, unknown_keys);
                    RequestFilter::AnyOf(conditions.iter().map(of).collect())
                }
            };
            made.request.push(request);
        }
        made
    }
}
