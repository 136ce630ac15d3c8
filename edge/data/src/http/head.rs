//! Heads of requests and responses: hosts, headers of one connection, and forwarding headers.

use std::borrow::Cow;
use std::net::IpAddr;

use corten_routing::Network;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderName, TE, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};

use super::Exchange;
use crate::client::ConnectionInfo;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// The most addresses of a forwarding header that are looked at.
const MAX_HOPS: usize = 32;

/// The host of a request as the client wrote it, shared with the request's head.
#[derive(Debug)]
pub(super) enum Host {
    Header(HeaderValue),
    Authority(Authority),
    /// HTTP/1.0 has no host.
    None,
}

impl Host {
    /// Returns the host of a request. One that is missing or given twice is an error.
    pub(super) fn of(request: &Parts) -> Result<Host, StatusCode> {
        if let Some(authority) = request.uri.authority() {
            return Ok(Host::Authority(authority.clone()));
        }
        let mut values = request.headers.get_all(HOST).iter();
        match (values.next(), values.next()) {
            (Some(host), None) => Ok(Host::Header(host.clone())),
            (None, _) if request.version < Version::HTTP_11 => Ok(Host::None),
            _ => Err(StatusCode::BAD_REQUEST),
        }
    }

    /// Returns the name in lower case and without its port.
    pub(super) fn name(&self) -> Result<Cow<'_, str>, StatusCode> {
        let authority = match self {
            Host::Header(value) => value.to_str().map_err(|_| StatusCode::BAD_REQUEST)?,
            Host::Authority(authority) => authority.as_str(),
            Host::None => "",
        };
        let name = without_port(authority).ok_or(StatusCode::BAD_REQUEST)?;
        if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Ok(Cow::Owned(name.to_ascii_lowercase()));
        }
        Ok(Cow::Borrowed(name))
    }
}

/// Returns a host without its port and without the dot of an absolute name.
fn without_port(authority: &str) -> Option<&str> {
    if authority.contains(['@', '/', '?', '#', ' ', '\t', '\\']) {
        return None;
    }
    let name = match authority.rfind(']') {
        Some(end) => authority.get(..=end)?,
        None => authority.split(':').next()?,
    };
    Some(name.strip_suffix('.').unwrap_or(name))
}

/// Refuses requests whose length two servers could read differently, and those that only a forward proxy serves.
pub(super) fn check_framing(request: &Parts) -> Result<(), StatusCode> {
    let headers = &request.headers;
    if request.method == Method::CONNECT {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if codings.next().is_some() || headers.contains_key(CONTENT_LENGTH) {
            return Err(StatusCode::BAD_REQUEST);
        }
        // A body in another coding would arrive decoded under a name that says otherwise.
        if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err(StatusCode::NOT_IMPLEMENTED);
        }
    }
    if headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(())
}

/// Reports whether a client wants to change protocols.
pub(super) fn is_upgrade(request: &Parts) -> bool {
    request.version == Version::HTTP_11
        && request.headers.contains_key(UPGRADE)
        && request.headers.get_all(CONNECTION).iter().any(|value| has_token(value, "upgrade"))
}

fn has_token(value: &HeaderValue, token: &str) -> bool {
    value.to_str().is_ok_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(token)))
}

/// Removes the headers that concern one connection alone.
pub(super) fn remove_connection_headers(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let listed: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
            .collect();
        headers.remove(CONNECTION);
        for name in listed {
            // A client must not choose to hide these from the backend.
            if name != HOST && name != CONTENT_LENGTH {
                headers.remove(name);
            }
        }
    }
    headers.remove(TRANSFER_ENCODING);
    headers.remove(KEEP_ALIVE);
    headers.remove(PROXY_CONNECTION);
    headers.remove(UPGRADE);
}

/// Makes the head of a client's request the head of ours.
pub(super) fn prepare(parts: &mut Parts, exchange: &Exchange<'_>, is_trusted: bool) {
    let headers = &mut parts.headers;
    let upgrade = exchange.upgrade.as_ref().and_then(|_| headers.get(UPGRADE).cloned());
    let takes_trailers = headers.get_all(TE).iter().any(|value| has_token(value, "trailers"));
    remove_connection_headers(headers);
    headers.remove(EXPECT);
    headers.remove(TE);
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    // The authority of the target wins over the header, and HTTP/2 has only that.
    if let Some(authority) = parts.uri.authority()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(HOST, host);
    }
    parts.version = Version::HTTP_11;
    forward_headers(headers, exchange.connection, is_trusted);
}

/// Writes the forwarding headers. Those of a client that is no trusted proxy are replaced.
fn forward_headers(headers: &mut HeaderMap, connection: &ConnectionInfo, is_trusted: bool) {
    let address = connection.forwarded_for.clone();
    if !is_trusted {
        headers.insert(FORWARDED_FOR, address);
        headers.insert(FORWARDED_PROTO, connection.scheme_value());
        headers.insert(FORWARDED_PORT, connection.port_value.clone());
        match headers.get(HOST).cloned() {
            Some(host) => headers.insert(FORWARDED_HOST, host),
            None => headers.remove(FORWARDED_HOST),
        };
        headers.remove(FORWARDED);
        return;
    }
    headers.append(FORWARDED_FOR, address);
    headers.entry(FORWARDED_PROTO).or_insert_with(|| connection.scheme_value());
    headers.entry(FORWARDED_PORT).or_insert_with(|| connection.port_value.clone());
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(FORWARDED_HOST).or_insert(host);
    }
    if headers.contains_key(FORWARDED) {
        let element = match connection.client.ip().to_canonical() {
            IpAddr::V4(address) => format!("for={address}"),
            IpAddr::V6(address) => format!("for=\"[{address}]\""),
        };
        if let Ok(element) = HeaderValue::from_str(&element) {
            headers.append(FORWARDED, element);
        }
    }
}

/// Returns the client's address: the last one of the forwarding header that is no trusted proxy.
pub(super) fn client(
    connection: &ConnectionInfo,
    is_trusted: bool,
    headers: &HeaderMap,
    trusted: &[Network],
) -> IpAddr {
    let mut client = connection.client.ip().to_canonical();
    if !is_trusted {
        return client;
    }
    let values: Vec<&str> = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
    let hops = values.iter().rev().flat_map(|value| value.rsplit(',')).take(MAX_HOPS);
    for hop in hops {
        let Ok(address) = hop.trim().parse::<IpAddr>() else {
            return client;
        };
        client = address.to_canonical();
        if !trusted.iter().any(|network| network.contains(client)) {
            return client;
        }
    }
    client
}

/// Returns the scheme that the client used: the connection's, or the one that a trusted proxy names.
pub(super) fn scheme(connection: &ConnectionInfo, is_trusted: bool, headers: &HeaderMap) -> &'static str {
    match headers.get(FORWARDED_PROTO).filter(|_| is_trusted).map(HeaderValue::as_bytes) {
        Some(b"https") => "https",
        Some(b"http") => "http",
        _ => connection.scheme(),
    }
}

/// Returns a path with a query.
pub(super) fn with_query(path: &str, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

/// Adds headers to a response; only Vary may be there twice.
pub(super) fn merge(headers: &mut HeaderMap, added: HeaderMap) {
    let mut last = None;
    for (name, value) in added {
        if let Some(name) = name.or_else(|| last.clone()) {
            if name == VARY {
                headers.append(name.clone(), value);
            } else {
                headers.insert(name.clone(), value);
            }
            last = Some(name);
        }
    }
}

pub(super) fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_lose_port_and_last_dot() {
        for (authority, expected) in [
            ("example.com", Some("example.com")),
            ("example.com:8080", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("[2001:db8::1]:80", Some("[2001:db8::1]")),
            ("user@example.com", None),
            ("a/b", None),
            ("", Some("")),
        ] {
            assert_eq!(without_port(authority), expected, "{authority}");
        }
    }

    #[test]
    fn headers_of_the_connection_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-private, host"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("host", "example.com"),
            ("x-other", "2"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        remove_connection_headers(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "x-other"]);
    }
}
