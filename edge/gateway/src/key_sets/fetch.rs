//! Fetches a key set over HTTPS.
//!
//! Users of namespaces choose the URL, so the way is narrow: no plain HTTP, no redirect to another origin, no address of
//! the machine itself, one deadline and one size, and no part of an answer but its status reaches the user.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use corten_outbound::https::{Answer, Endpoint};
use http::uri::{Scheme, Uri};
use http::{Request, StatusCode, header};
use http_body_util::Full;

use super::schedule::max_age;
use crate::resolve::{KeySource, MAX_KEYS, is_key_set};

/// The time limit of a fetch with all of its redirects.
const DEADLINE: Duration = Duration::from_secs(10);
/// The most redirects of a fetch.
const MAX_REDIRECTS: usize = 3;
/// The port of URLs without one.
const HTTPS_PORT: u16 = 443;

/// The settings of fetches.
#[derive(Clone, Copy, Debug)]
pub struct Fetching {
    /// Returns the CAs that the machine trusts, in PEM.
    pub roots: fn() -> String,
    /// Reports whether connections to an address are allowed.
    pub is_allowed: fn(IpAddr) -> bool,
}

/// The keys that were fetched.
#[derive(Debug)]
pub struct Fetched {
    pub keys: String,
    /// The time for which the server lets clients keep them.
    pub max_age: Option<Duration>,
}

/// Reports whether an address is another machine's. Services that trust their own machine listen on the others.
pub fn is_elsewhere(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

impl Fetching {
    /// Fetches the keys of a source. The error is a sentence without a subject.
    pub async fn fetch(&self, source: &KeySource) -> Result<Fetched, String> {
        let fetched = tokio::time::timeout(DEADLINE, self.follow(source)).await;
        fetched.unwrap_or_else(|_| Err(format!("it does not answer within {} seconds", DEADLINE.as_secs())))
    }

    /// Sends the request, and follows redirects of the same origin.
    async fn follow(&self, source: &KeySource) -> Result<Fetched, String> {
        let first: Uri = source.uri.parse().map_err(|_| "it is no URL".to_owned())?;
        let origin = Origin::of(&first)?;
        let roots = source.authorities.clone().unwrap_or_else(self.roots);
        let mut uri = first;
        for _ in 0..=MAX_REDIRECTS {
            let answer = self.get(&origin, &uri, &roots).await?;
            match answer.head.status {
                StatusCode::OK => return read(answer).await,
                status if status.is_redirection() => {
                    uri = redirected(&origin, answer.header(header::LOCATION.as_str()))?;
                }
                status => return Err(format!("it answers with status {}", status.as_u16())),
            }
        }
        Err("it redirects too often".to_owned())
    }

    async fn get(&self, origin: &Origin, uri: &Uri, roots: &str) -> Result<Answer, String> {
        let mut last = "its host has no address".to_owned();
        for address in self.addresses(origin).await? {
            let endpoint = Endpoint::new(&origin.url(), roots)?.at(address.ip().to_string(), address.port());
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let request = Request::get(path)
                .header(header::HOST, endpoint.authority())
                .header(header::ACCEPT, "application/jwk-set+json, application/json")
                .body(Full::<Bytes>::default())
                .map_err(|_| "it is no URL".to_owned())?;
            match endpoint.send(request, DEADLINE).await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the addresses of a host. They are connected to as they are, so that no second lookup finds others.
    async fn addresses(&self, origin: &Origin) -> Result<Vec<SocketAddr>, String> {
        let found = tokio::net::lookup_host((origin.host.as_str(), origin.port)).await;
        let found: Vec<SocketAddr> = found.map_err(|_| "its host is not known".to_owned())?.collect();
        match found.iter().find(|address| !(self.is_allowed)(address.ip())) {
            Some(refused) => Err(format!("{} is an address of the machine itself", refused.ip())),
            None => Ok(found),
        }
    }
}

/// The host and port of a URL.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    /// In lower case, without brackets.
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Result<Origin, String> {
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Err("it does not begin with https://".to_owned());
        }
        let authority = uri.authority().ok_or_else(|| "it names no host".to_owned())?;
        if authority.as_str().contains('@') {
            return Err("it names a user".to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        Ok(Origin { host, port: authority.port_u16().unwrap_or(HTTPS_PORT) })
    }

    fn url(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            HTTPS_PORT => format!("https://{host}"),
            port => format!("https://{host}:{port}"),
        }
    }
}

/// Returns the next URL of a redirect, which stays at its origin.
fn redirected(origin: &Origin, location: Option<&str>) -> Result<Uri, String> {
    let location = location.ok_or_else(|| "it redirects to nowhere".to_owned())?;
    let uri: Uri = location.parse().map_err(|_| "it redirects to no URL".to_owned())?;
    let is_path = uri.authority().is_none() && location.starts_with('/') && !location.starts_with("//");
    let is_same = Origin::of(&uri).is_ok_and(|other| other == *origin);
    match is_path || is_same {
        true => Ok(uri),
        false => Err("it redirects to another host".to_owned()),
    }
}

async fn read(answer: Answer) -> Result<Fetched, String> {
    let max_age = answer.header(header::CACHE_CONTROL.as_str()).and_then(max_age);
    let keys = answer.text(MAX_KEYS).await?;
    match is_key_set(keys.as_bytes()) {
        true => Ok(Fetched { keys, max_age }),
        false => Err("its answer is no JSON Web Key Set".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_stays_at_its_origin() {
        let origin = Origin::of(&Uri::from_static("https://id.example/keys")).unwrap();
        let next = |location: &str| redirected(&origin, Some(location)).map(|uri| uri.path().to_owned());
        assert_eq!(next("/v2/keys").as_deref(), Ok("/v2/keys"));
        assert_eq!(next("https://ID.example:443/v2").as_deref(), Ok("/v2"));
        for location in [
            "https://id.example:8443/v2",
            "https://other.example/v2",
            "http://id.example/v2",
            "//other.example/v2",
            "https://user@id.example/v2",
            "v2",
            "",
        ] {
            assert!(next(location).is_err(), "{location:?}");
        }
        assert!(redirected(&origin, None).is_err());
    }

    #[test]
    fn urls_are_https_without_a_user() {
        let error = |url: &'static str| Origin::of(&Uri::from_static(url)).err();
        assert_eq!(error("https://[fd00::1]:8443/a"), None);
        assert_eq!(error("http://id.example/").as_deref(), Some("it does not begin with https://"));
        assert_eq!(error("/keys").as_deref(), Some("it does not begin with https://"));
        assert_eq!(error("https://a:b@id.example/").as_deref(), Some("it names a user"));
    }

    #[test]
    fn addresses_of_the_machine_itself_are_refused() {
        for (address, expected) in [
            ("192.0.2.1", true),
            ("10.96.0.10", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(is_elsewhere(address.parse().unwrap()), expected, "{address}");
        }
    }
}
