//! Session persistence: a cookie or header names the endpoint of a session.
//!
//! The name is a digest of the endpoint's address, so every node understands the sessions of all others, and clients do
//! not learn addresses. A session whose endpoint is gone, or that is too old, begins anew.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use corten_routing::{SessionKind, SessionPersistence};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// A session that a request named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) endpoint: u64,
    /// The time of the session's first response, in Unix seconds.
    begun: u64,
    used: u64,
}

/// Returns the digest of an endpoint's address.
pub(crate) fn digest(address: SocketAddr) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, address.to_string().as_bytes());
    digest.as_ref().iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the session of a request if it has not expired.
pub(crate) fn find(policy: &SessionPersistence, headers: &HeaderMap) -> Option<Session> {
    find_at(policy, headers, now())
}

fn find_at(policy: &SessionPersistence, headers: &HeaderMap, now: u64) -> Option<Session> {
    let session = match policy.kind {
        SessionKind::Header => parse(headers.get(&*policy.name)?.to_str().ok()?)?,
        SessionKind::Cookie => headers.get_all(header::COOKIE).iter().find_map(|cookies| {
            let mut pairs = cookies.to_str().ok()?.split(';').filter_map(|pair| pair.trim().split_once('='));
            pairs.find_map(|(name, value)| parse(value).filter(|_| *name == *policy.name))
        })?,
    };
    let is_expired = |since: u64, limit: Option<std::time::Duration>| {
        limit.is_some_and(|limit| now.saturating_sub(since) > limit.as_secs())
    };
    let expired = is_expired(session.begun, policy.absolute_timeout) || is_expired(session.used, policy.idle_timeout);
    (!expired).then_some(session)
}

fn parse(value: &str) -> Option<Session> {
    let mut parts = value.splitn(3, '.');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    Some(Session { endpoint: number()?, begun: number()?, used: number()? })
}

/// Writes the session of a response: of a new one, or of one whose idle time begins anew.
pub(crate) fn write(
    policy: &SessionPersistence,
    found: Option<Session>,
    endpoint: SocketAddr,
    headers: &mut HeaderMap,
) {
    let now = now();
    let endpoint = digest(endpoint);
    let begun = match found {
        Some(session) if session.endpoint == endpoint => {
            if policy.idle_timeout.is_none() {
                return;
            }
            session.begun
        }
        _ => now,
    };
    let value = format!("{endpoint:x}.{begun:x}.{now:x}");
    let (name, value) = match policy.kind {
        SessionKind::Header => (HeaderName::from_bytes(policy.name.as_bytes()).ok(), value),
        SessionKind::Cookie => {
            let same_site = policy.cookie.same_site.as_str();
            let mut cookie = format!("{}={value}; Path={}; HttpOnly; SameSite={same_site}", policy.name, policy.path);
            if policy.cookie.secure {
                cookie.push_str("; Secure");
            }
            if let Some(domain) = &policy.cookie.domain {
                cookie.push_str(&format!("; Domain={domain}"));
            }
            if let Some(limit) = policy.absolute_timeout.filter(|_| policy.permanent) {
                let left = limit.as_secs().saturating_sub(now.saturating_sub(begun));
                cookie.push_str(&format!("; Max-Age={left}"));
            }
            (Some(header::SET_COOKIE), cookie)
        }
    };
    if let Some(name) = name
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        headers.append(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn policy(kind: SessionKind) -> SessionPersistence {
        SessionPersistence {
            kind,
            name: "session".into(),
            absolute_timeout: Some(Duration::from_secs(100)),
            idle_timeout: Some(Duration::from_secs(10)),
            path: "/".into(),
            permanent: true,
            cookie: Default::default(),
        }
    }

    #[test]
    fn a_session_is_read_as_it_was_written() {
        let endpoint: SocketAddr = "192.0.2.1:80".parse().unwrap();
        for kind in [SessionKind::Header, SessionKind::Cookie] {
            let policy = policy(kind);
            let mut response = HeaderMap::new();
            write(&policy, None, endpoint, &mut response);
            let mut request = HeaderMap::new();
            match kind {
                SessionKind::Header => request.insert("session", response["session"].clone()),
                SessionKind::Cookie => {
                    let cookie = response[header::SET_COOKIE].to_str().unwrap();
                    assert!(cookie.contains("; Max-Age=100"), "{cookie}");
                    let pair = cookie.split(';').next().unwrap();
                    request.insert(header::COOKIE, format!("a=b; {pair}; c=d").parse().unwrap())
                }
            };
            let session = find(&policy, &request).unwrap();
            assert_eq!(session.endpoint, digest(endpoint));
            assert_eq!(find_at(&policy, &request, session.used + 11), None, "idle for too long");
        }
    }

    #[test]
    fn foreign_values_are_no_sessions() {
        for value in ["", "x", "1.2", "1.2.x", "-1.2.3"] {
            assert_eq!(parse(value), None, "{value}");
        }
    }
}
