//! URLs of annotations: a Service of the cluster, or the host of the request itself.
//!
//! The edge sends requests to Services only: a URL that leads out of the cluster is refused.

use crate::policy_spec::BackendSpec;

/// The server of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// `$host`: the host that the client asked for.
    RequestHost,
    Service,
    Other,
}

/// A URL in its parts.
#[derive(Clone, Debug)]
pub struct Url {
    pub scheme: String,
    pub host: String,
    pub port: Option<u16>,
    /// Path and query; empty if the URL has none.
    pub path: String,
}

/// Parses a URL of HTTP.
pub fn parse(text: &str) -> Option<Url> {
    let (scheme, rest) = text.split_once("://")?;
    if !matches!(scheme, "http" | "https" | "$scheme") {
        return None;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end)?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (authority, None),
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_$".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_host) {
        return None;
    }
    Some(Url { scheme: scheme.to_owned(), host: host.to_owned(), port, path: path.to_owned() })
}

impl Url {
    /// Returns the Service that the host names, as `NAME.NAMESPACE.svc` with or without the cluster's domain.
    pub fn service(&self, namespace: &str) -> Option<BackendSpec> {
        let mut labels = self.host.split('.');
        let name = labels.next()?;
        let of = labels.next()?;
        if labels.next() != Some("svc") || !super::value::is_host(name) || !super::value::is_host(of) {
            return None;
        }
        let port = self.port.unwrap_or(if self.scheme == "https" { 443 } else { 80 });
        let namespace = Some(of.to_owned()).filter(|other| other != namespace);
        Some(BackendSpec { name: name.to_owned(), namespace, port })
    }

    pub fn server(&self, namespace: &str) -> Server {
        match self.host.as_str() {
            "$host" | "$http_host" => Server::RequestHost,
            _ if self.service(namespace).is_some() => Server::Service,
            _ => Server::Other,
        }
    }
}

/// Returns a URL or path with nginx's variables replaced by those of the proxy; None if it has others.
pub fn with_placeholders(text: &str) -> Option<String> {
    // A brace would be a placeholder of its own.
    if text.contains(['{', '}']) {
        return None;
    }
    let known = [
        ("$escaped_request_uri", "{path}"),
        ("$request_uri", "{path}"),
        ("$http_host", "{host}"),
        ("$host", "{host}"),
        ("$scheme", "{scheme}"),
        ("$pass_access_scheme", "{scheme}"),
    ];
    let replaced = known.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    (!replaced.contains('$')).then_some(replaced)
}
