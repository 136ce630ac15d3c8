//! Policies beyond those of Gateway API: who may send requests, how many, and fixed answers.

use crate::{BackendKey, Network};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The most requests of a client, or of all clients, on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The name of the limit. Rules with the same name share it, and it keeps its counts when the configuration changes.
    pub name: Arc<str>,
    pub requests: u32,
    pub period: Duration,
    /// Requests beyond the rate that may come at once.
    pub burst: u32,
    pub per_client: bool,
    /// Clients that are not counted.
    pub exempt: Vec<Network>,
}

/// The most requests of one client that are in flight on this node; further ones are answered with 503.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The name of the limit, which rules share as they share that of a [`RateLimit`].
    pub name: Arc<str>,
    pub requests: u32,
    /// Clients that are not counted.
    pub exempt: Vec<Network>,
}

/// The value by which requests are spread over endpoints: those with the same value go to the same endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    ClientAddress,
    /// The name in lower case.
    Header(Arc<str>),
    Cookie(Arc<str>),
    /// Path and query.
    Target,
    Host,
}

/// Responses of endpoints with some statuses, and errors of the edge itself, whose body a backend makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPages {
    pub statuses: Vec<u16>,
    pub backend: BackendKey,
}

/// The addresses that may send requests; others are answered with 403. The client's address comes from a forwarding
/// header only if the peer is a trusted proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    /// Empty: every address.
    pub allow: Vec<Network>,
    /// Checked before `allow`.
    pub deny: Vec<Network>,
}

/// Users with passwords, as `htpasswd` writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    pub realm: Arc<str>,
    /// The hash of each user's password: `{SHA}…` or `$apr1$…`. A user with another hash is refused.
    pub users: BTreeMap<String, String>,
}

/// A backend that decides on each request: a status of 2xx lets it pass, every other is the client's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardAuth {
    pub backend: BackendKey,
    /// The host name that the backend is called by; None: the request's.
    pub host: Option<Arc<str>>,
    /// The path that is asked; `{path}` stands for the request's own path and query.
    pub path: Arc<str>,
    /// Request headers that the backend sees. Empty: all.
    pub request_headers: Vec<String>,
    /// Headers of the backend's answer that the request gets.
    pub response_headers: Vec<String>,
    /// The address that a client without authorization is redirected to. `{url}` stands for the URL that it asked for,
    /// `{path}` for its path and query, `{scheme}` and `{host}` for its parts.
    pub sign_in: Option<Arc<str>>,
}

/// JSON Web Tokens that requests must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwt {
    pub issuer: Option<Arc<str>>,
    /// Empty: every audience.
    pub audiences: Vec<Arc<str>>,
    /// The issuer's JSON Web Key Set.
    pub keys_json: Arc<[u8]>,
    /// The name of the set if its keys are fetched: tokens with keys that it lacks are reported.
    pub key_set: Option<Arc<str>>,
    pub claim_headers: Vec<ClaimHeader>,
}

/// A header that gets the value of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHeader {
    pub claim: String,
    /// In lower case.
    pub header: String,
}

/// A response that the edge itself gives, for one a maintenance page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedResponse {
    pub status: u16,
    pub content_type: Arc<str>,
    pub body: Arc<[u8]>,
    /// Clients whose requests go on.
    pub exempt: Vec<Network>,
}

/// Requests of one session go to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPersistence {
    pub kind: SessionKind,
    /// The name of the cookie, or of the header in lower case.
    pub name: Arc<str>,
    /// The age after which a session ends, though its client still uses it.
    pub absolute_timeout: Option<Duration>,
    /// The time without a request after which a session ends.
    pub idle_timeout: Option<Duration>,
    /// The Path attribute of the cookie.
    pub path: Arc<str>,
    /// The cookie outlives the client's session: it carries the absolute timeout as Max-Age.
    pub permanent: bool,
    pub cookie: CookieAttributes,
}

/// Attributes of a session's cookie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CookieAttributes {
    pub same_site: SameSite,
    pub secure: bool,
    pub domain: Option<Arc<str>>,
}

/// The requests of other sites that carry a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    #[default]
    Lax,
    Strict,
    None,
}

impl SameSite {
    /// Returns the attribute's value.
    pub fn as_str(self) -> &'static str {
        match self {
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
            SameSite::None => "None",
        }
    }
}

/// The carrier of a session's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKind {
    Cookie,
    Header,
}
