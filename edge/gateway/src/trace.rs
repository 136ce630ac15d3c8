//! Follows a request through a configuration without sending it: the listener, the host, the rule and its consequences.
//!
//! It uses the matching of the proxy itself (`corten_routing`), so that its answer is the proxy's.

use corten_routing::{
    Configuration, Filter, HostPattern, Hosts, HttpHost, HttpRule, ListenerKey, ListenerProtocol, PathChange,
    PathMatch, Redirect, StringMatch, TlsHost, TlsUse, Transport,
};
use http::HeaderMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// A request.
#[derive(Clone, Debug)]
pub struct Question {
    pub is_tls: bool,
    /// In lower case.
    pub host: String,
    pub port: u16,
    pub method: String,
    pub path: String,
    pub query: Option<String>,
    pub headers: HeaderMap,
}

/// The error of a string that is no URL of HTTP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no URL such as https://a.example/path")]
pub struct InvalidUrl(String);

impl Question {
    /// Returns a request for a URL.
    pub fn new(url: &str, method: &str, headers: HeaderMap) -> Result<Question, InvalidUrl> {
        let invalid = || InvalidUrl(url.to_owned());
        let uri: http::Uri = url.parse().map_err(|_| invalid())?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        let host = uri.host().ok_or_else(invalid)?.to_ascii_lowercase();
        let path = corten_routing::normalize(uri.path()).map_err(|_| invalid())?.into_owned();
        Ok(Question {
            is_tls,
            host,
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            method: method.to_ascii_uppercase(),
            path: if path.is_empty() { "/".to_owned() } else { path },
            query: uri.query().map(str::to_owned),
            headers,
        })
    }
}

/// The way of a request at one listener.
#[derive(Clone, Debug)]
pub struct Hit<'a> {
    pub listener: &'a ListenerKey,
    pub outcome: Outcome<'a>,
}

/// The end of a request's way.
#[derive(Clone, Debug)]
pub enum Outcome<'a> {
    Rule {
        host: HostPattern,
        rule: &'a HttpRule,
    },
    /// The server name's bytes go to a backend as they are.
    Passthrough(HostPattern),
    /// No rule of the host matches.
    NoRule(HostPattern),
    /// No listener of the port has the host.
    NoHost,
    /// The listener speaks another protocol.
    OtherProtocol,
}

/// Returns the way of a request at every listener of its port.
pub fn follow<'a>(configuration: &'a Configuration, question: &Question) -> Vec<Hit<'a>> {
    let of_port =
        configuration.listeners.iter().filter(|(key, _)| key.port == question.port && key.transport == Transport::Tcp);
    of_port.map(|(key, listener)| Hit { listener: key, outcome: at_listener(&listener.protocol, question) }).collect()
}

fn at_listener<'a>(protocol: &'a ListenerProtocol, question: &Question) -> Outcome<'a> {
    match (protocol, question.is_tls) {
        (ListenerProtocol::Http(hosts), false) => at_hosts(hosts, question),
        (ListenerProtocol::Tls(names), true) => {
            let Some((pattern, host)) = named(names, &question.host) else { return Outcome::NoHost };
            match &**host {
                TlsHost::Passthrough(_) => Outcome::Passthrough(pattern),
                TlsHost::Terminate { then: TlsUse::Http(hosts), .. } => at_hosts(hosts, question),
                TlsHost::Terminate { then: TlsUse::Tcp(_), .. } => Outcome::OtherProtocol,
            }
        }
        _ => Outcome::OtherProtocol,
    }
}

fn at_hosts<'a>(hosts: &'a Hosts<Arc<HttpHost>>, question: &Question) -> Outcome<'a> {
    let Some((pattern, host)) = named(hosts, &question.host) else { return Outcome::NoHost };
    let request = corten_routing::Request {
        method: &question.method,
        path: &question.path,
        query: question.query.as_deref(),
        headers: &question.headers,
    };
    match host.find(&request) {
        Some(found) => Outcome::Rule { host: pattern, rule: found.rule },
        None => Outcome::NoRule(pattern),
    }
}

/// Returns the entry of a host with its pattern.
fn named<'a, T: Clone>(hosts: &'a Hosts<T>, host: &str) -> Option<(HostPattern, &'a T)> {
    let found = hosts.find(host)?;
    hosts.entries().find(|(_, value)| std::ptr::eq(*value, found))
}

/// Returns a host pattern as objects write it.
pub fn host_name(pattern: &HostPattern) -> String {
    match pattern {
        HostPattern::Exact(name) => name.clone(),
        HostPattern::Wildcard(suffix) | HostPattern::OneLabel(suffix) => format!("*.{suffix}"),
        HostPattern::Any => "*".to_owned(),
    }
}

fn value(value: &StringMatch) -> String {
    match value {
        StringMatch::Exact(text) => format!("={text}"),
        StringMatch::Regex(regex) => format!("~{}", regex.as_str()),
    }
}

/// Returns the match of a rule in words.
pub fn matched(rule: &HttpRule) -> String {
    let mut line = match &rule.path {
        PathMatch::Exact(path) => format!("path is {path}"),
        PathMatch::Prefix(prefix) if prefix.is_empty() => "every path".to_owned(),
        PathMatch::Prefix(prefix) => format!("path below {prefix}"),
        PathMatch::Regex(regex) => format!("path matches {}", regex.as_str()),
    };
    if let Some(method) = &rule.method {
        let _ = write!(line, ", method {method}");
    }
    for header in &rule.headers {
        let _ = write!(line, ", header {}{}", header.name, value(&header.value));
    }
    for parameter in &rule.query {
        let _ = write!(line, ", query {}{}", parameter.name, value(&parameter.value));
    }
    line
}

/// Returns a filter in words. Secrets are not shown.
pub fn filter(filter: &Filter) -> String {
    match filter {
        Filter::RequestHeaders(change) => format!("changes request headers: {}", names(change)),
        Filter::ResponseHeaders(change) => format!("changes response headers: {}", names(change)),
        Filter::Redirect(redirect) => format!("redirects with {} to {}", redirect.status, address(redirect)),
        Filter::Rewrite { hostname, path } => {
            let host = hostname.as_deref().map(|host| format!(" host {host}")).unwrap_or_default();
            let path = path.as_ref().map(|path| format!(" path {}", path_change(path))).unwrap_or_default();
            format!("rewrites{host}{path}")
        }
        Filter::Mirror(mirror) => {
            let share = format!("{}/{}", mirror.numerator, mirror.denominator);
            format!("mirrors {share} to Service {}/{}", mirror.backend.namespace, mirror.backend.service)
        }
        Filter::Cors(cors) => format!("answers cross-origin requests of {}", cors.allow_origins.join(", ")),
        Filter::RateLimit(limit) => {
            let per = if limit.per_client { "a client" } else { "this node" };
            format!(
                "limits {per} to {} requests in {:?}, and {} more at once",
                limit.requests, limit.period, limit.burst
            )
        }
        Filter::Concurrency(limit) => format!("limits a client to {} requests in flight", limit.requests),
        Filter::Addresses(policy) => {
            let list = |networks: &[corten_routing::Network]| {
                networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            format!("allows clients [{}], denies [{}]", list(&policy.allow), list(&policy.deny))
        }
        Filter::BasicAuth(auth) => format!("asks for a password ({} users)", auth.users.len()),
        Filter::ForwardAuth(auth) => {
            format!("asks Service {}/{} at {}", auth.backend.namespace, auth.backend.service, auth.path)
        }
        Filter::Jwt(jwt) => format!("verifies a token of {}", jwt.issuer.as_deref().unwrap_or("any issuer")),
        Filter::BodySize(bytes) => format!("limits bodies to {bytes} bytes"),
        Filter::Compression => "compresses responses".to_owned(),
        Filter::NoAccessLog => "is not logged".to_owned(),
        Filter::HashBy(key) => format!("chooses the endpoint by {key:?}"),
        Filter::ErrorPages(pages) => {
            format!("gets pages of {:?} from Service {}", pages.statuses, pages.backend.service)
        }
        Filter::Respond(response) => format!("answers with {}", response.status),
        Filter::AnyOf(conditions) => {
            let words: Vec<String> = conditions.iter().map(self::filter).collect();
            format!("one of: {}", words.join("; "))
        }
        Filter::Origin(_) => "changes redirects and cookies of the backend".to_owned(),
    }
}

fn names(change: &corten_routing::HeaderChange) -> String {
    let set = change.set.iter().map(|(name, _)| format!("set {name}"));
    let add = change.add.iter().map(|(name, _)| format!("add {name}"));
    let remove = change.remove.iter().map(|name| format!("remove {name}"));
    set.chain(add).chain(remove).collect::<Vec<_>>().join(", ")
}

fn address(redirect: &Redirect) -> String {
    let scheme = redirect.scheme.as_deref().unwrap_or("the same scheme");
    let host = redirect.hostname.as_deref().unwrap_or("the same host");
    let path = redirect.path.as_ref().map_or_else(|| "the same path".to_owned(), path_change);
    format!("{scheme}, {host}, {path}")
}

fn path_change(change: &PathChange) -> String {
    match change {
        PathChange::ReplaceFull(path) | PathChange::ReplaceGroups(path) => path.to_string(),
        PathChange::ReplacePrefix(prefix) => format!("{prefix}…"),
    }
}
