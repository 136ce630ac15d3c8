//! A client of one repository of one registry, by the OCI distribution protocol.
//!
//! The registry is not trusted: everything it sends is read up to a limit and for a limited time, and is compared with
//! the requested digest. Credentials go to the registry itself and to the token server that it names over TLS; they
//! never follow a redirect to another host. An answer of another host never becomes part of an error message: a
//! redirect must not turn a pull into a way to read services that the node can reach.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RANGE, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url, redirect};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::challenge::Challenge;
use super::config::{Descriptor, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use super::digest::{Digest, shortened};
use super::pull::PullAuth;
use super::reference::Reference;
use crate::Error;

const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";
/// The host that serves Docker Hub.
const DOCKER_HUB: &str = "registry-1.docker.io";
/// The most bytes of a token server's answer, and of a registry's explanation of an error.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
const MAX_REDIRECTS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that a registry may send nothing, unless its settings have another.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The time for a whole document, as a multiple of the stall timeout.
const DOCUMENT_TIMEOUTS: u32 = 4;
/// The lowest rate of a blob, in bytes per second.
const LEAST_RATE: u64 = 1024;

/// The settings of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryConfig {
    /// The registry's host, with its port, as in references.
    pub host: String,
    /// Other hosts that are tried before the registry itself, in this order. Entries of their own hold their settings
    /// and credentials; the registry's credentials are never sent to them.
    pub mirrors: Vec<String>,
    /// Use HTTP without TLS.
    pub plain_http: bool,
    /// Do not verify the registry's certificate.
    pub insecure_skip_verify: bool,
    /// A certificate authority, PEM, in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// User and password for requests that have no credentials of their own.
    pub basic_auth: Option<(String, String)>,
    /// The time without data after which a download is resumed, or given up; a minute by default.
    pub stall_timeout: Option<Duration>,
}

/// The reason why a request failed.
pub(super) enum Failure {
    /// The connection failed: the same request may succeed later.
    Connection(String),
    /// The registry refused: it would refuse again.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

pub(super) struct Registry {
    http: reqwest::Client,
    /// Whether requests go without TLS.
    plain_http: AtomicBool,
    /// Whether the registry is on this machine and has no settings: it is asked without TLS if it does not speak TLS.
    may_be_plain: bool,
    host: String,
    repository: String,
    credentials: PullAuth,
    /// The header of the requests that follow an answered challenge.
    authorization: Mutex<Option<HeaderValue>>,
    /// The image, for messages.
    shown: String,
    pub stall_timeout: Duration,
}

/// The content of a blob: from its start, or from the requested offset.
pub(super) enum Content {
    Whole(Response),
    Rest(Response),
}

impl Registry {
    pub fn new(settings: RegistryConfig, image: &Reference, host: &str, auth: PullAuth) -> Result<Self, Error> {
        let stall_timeout = settings.stall_timeout.unwrap_or(STALL_TIMEOUT);
        let shown = image.to_string();
        let http = client(&settings, stall_timeout)
            .map_err(|error| Error::Pull { reference: shown.clone(), message: causes(&error) })?;
        let credentials = match (auth, settings.basic_auth) {
            (PullAuth::Anonymous, Some((user, password))) => PullAuth::Basic(user, password),
            (auth, _) => auth,
        };
        let authorization = match &credentials {
            PullAuth::Token(token) => Some(bearer(token).ok_or_else(|| Error::Invalid("malformed token".into()))?),
            _ => None,
        };
        Ok(Self {
            http,
            plain_http: settings.plain_http.into(),
            may_be_plain: settings.host.is_empty() && is_loopback(host),
            host: host.to_owned(),
            repository: image.repository.clone(),
            credentials,
            authorization: Mutex::new(authorization),
            shown,
            stall_timeout,
        })
    }

    /// Returns `registry/repository` of the requested host.
    pub fn source(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    pub fn refuse(&self, message: impl AsRef<str>) -> Error {
        Error::Pull { reference: self.shown.clone(), message: shortened(message.as_ref()) }
    }

    /// Returns the manifest or index of a tag or of a digest, and its digest.
    pub async fn manifest(&self, name: &str, wanted: Option<&Digest>) -> Result<(Vec<u8>, Digest), Error> {
        let bytes = self.document(&format!("manifests/{name}"), MAX_MANIFEST_BYTES).await?;
        let digest = Digest::of(&bytes);
        if wanted.is_some_and(|wanted| *wanted != digest) {
            return Err(self.refuse(format!("the manifest {name} has the digest {digest}")));
        }
        Ok((bytes, digest))
    }

    /// Returns the configuration that a manifest names.
    pub async fn config(&self, blob: &Descriptor) -> Result<Vec<u8>, Error> {
        let bytes = self.document(&format!("blobs/{}", blob.digest), MAX_CONFIG_BYTES).await?;
        if Digest::of(&bytes) != blob.digest {
            return Err(self.refuse(format!("blob {} has another content than its digest says", blob.digest)));
        }
        Ok(bytes)
    }

    /// Requests a blob, from an offset on.
    pub async fn blob(&self, digest: &Digest, offset: u64) -> Result<Content, Failure> {
        let range = (offset > 0).then(|| format!("bytes={offset}-"));
        let response = self.get(&format!("blobs/{digest}"), range.as_deref()).await?;
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        Ok(if partial && offset > 0 { Content::Rest(response) } else { Content::Whole(response) })
    }

    /// Returns a whole document, within its limits of size and time.
    async fn document(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let document = async {
            let response = self.get(path, None).await?;
            self.body(response, limit).await
        };
        let time = self.stall_timeout * DOCUMENT_TIMEOUTS;
        match tokio::time::timeout(time, document).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(Failure::Refused(error))) => Err(error),
            Ok(Err(Failure::Connection(message))) => Err(self.refuse(message)),
            Err(_) => Err(self.refuse(format!("{} did not send {path} whole within {time:?}", self.host))),
        }
    }

    async fn body(&self, mut response: Response, limit: u64) -> Result<Vec<u8>, Failure> {
        let too_long = || self.refuse(format!("{} sent more than {limit} bytes of a document", self.host));
        if response.content_length().is_some_and(|length| length > limit) {
            return Err(too_long().into());
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.connection_failure(&error))? {
            if bytes.len() as u64 + chunk.len() as u64 > limit {
                return Err(too_long().into());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// Sends a request; answers a challenge once, also when a token has expired.
    async fn get(&self, path: &str, range: Option<&str>) -> Result<Response, Failure> {
        let response = self.send(path, range).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return self.accepted(response).await;
        }
        let header = response.headers().get(WWW_AUTHENTICATE).and_then(|header| header.to_str().ok());
        let challenge = header.and_then(Challenge::parse);
        let authorization = match challenge {
            // A challenge of another host is not answered.
            _ if !self.is_own(response.url()) => None,
            Some(Challenge::Basic) => self.basic(),
            Some(Challenge::Bearer { realm, service }) => Some(self.token(&realm, service.as_deref()).await?),
            None => None,
        };
        let Some(authorization) = authorization else { return Err(self.unauthorized()) };
        *self.authorization.lock().await = Some(authorization);
        let response = self.send(path, range).await?;
        self.accepted(response).await
    }

    async fn send(&self, path: &str, range: Option<&str>) -> Result<Response, Failure> {
        let sent = self.send_by(self.scheme(), path, range).await;
        if !self.may_be_plain || self.is_plain() || !matches!(sent, Err(Failure::Connection(_))) {
            return sent;
        }
        let response = self.send_by("http", path, range).await?;
        self.plain_http.store(true, Ordering::Relaxed);
        Ok(response)
    }

    fn is_plain(&self) -> bool {
        self.plain_http.load(Ordering::Relaxed)
    }

    fn scheme(&self) -> &'static str {
        if self.is_plain() { "http" } else { "https" }
    }

    async fn send_by(&self, scheme: &str, path: &str, range: Option<&str>) -> Result<Response, Failure> {
        let host = if self.host == "docker.io" { DOCKER_HUB } else { &self.host };
        let mut request = self.http.get(format!("{scheme}://{host}/v2/{}/{path}", self.repository));
        request = request.header(ACCEPT, MANIFEST_TYPES);
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        if let Some(authorization) = self.authorization.lock().await.clone() {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.send().await.map_err(|error| self.connection_failure(&error))
    }

    /// Reports whether a response came from the registry itself, and not from the target of a redirect.
    fn is_own(&self, url: &Url) -> bool {
        let host = if self.host == "docker.io" { DOCKER_HUB } else { &self.host };
        Url::parse(&format!("{}://{host}/", self.scheme())).is_ok_and(|own| own.origin() == url.origin())
    }

    async fn accepted(&self, response: Response) -> Result<Response, Failure> {
        let status = response.status();
        if status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT {
            return Ok(response);
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(self.unauthorized());
        }
        let explained = match self.is_own(response.url()) {
            true => explanation(&self.body(response, MAX_ANSWER_BYTES).await.unwrap_or_default()),
            false => None,
        };
        let suffix = explained.map(|explained| format!(": {explained}")).unwrap_or_default();
        Err(self.refuse(format!("{} answered {status}{suffix}", self.host)).into())
    }

    fn unauthorized(&self) -> Failure {
        self.refuse(format!("{} asks for other credentials", self.host)).into()
    }

    fn basic(&self) -> Option<HeaderValue> {
        let PullAuth::Basic(user, password) = &self.credentials else { return None };
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        sensitive(&format!("Basic {encoded}"))
    }

    /// Requests a token of the token server that the registry named.
    async fn token(&self, realm: &str, service: Option<&str>) -> Result<HeaderValue, Failure> {
        let scope = format!("repository:{}:pull", self.repository);
        let mut url = self.token_server(realm)?;
        url.query_pairs_mut().append_pair("scope", &scope).extend_pairs(service.map(|service| ("service", service)));
        let mut request = self.http.get(url);
        if let Some(basic) = self.basic() {
            request = request.header(AUTHORIZATION, basic);
        }
        let response = request.send().await.map_err(|error| self.connection_failure(&error))?;
        if response.status() != StatusCode::OK {
            let message = format!("the token server of {} answered {}", self.host, response.status());
            return Err(self.refuse(message).into());
        }
        let bytes = self.body(response, MAX_ANSWER_BYTES).await?;
        let malformed = || self.refuse(format!("the token server of {} gave no token", self.host));
        let granted: Granted = serde_json::from_slice(&bytes).map_err(|_| malformed())?;
        let token = granted.token.or(granted.access_token).and_then(|token| bearer(&token));
        Ok(token.ok_or_else(malformed)?)
    }

    /// Returns the URL of a token server. A registry over TLS cannot make the client send credentials unencrypted.
    fn token_server(&self, realm: &str) -> Result<Url, Error> {
        let refuse = || self.refuse(format!("{} names a token server that cannot be used: {realm:?}", self.host));
        let url = Url::parse(realm).map_err(|_| refuse())?;
        let allowed = url.scheme() == "https" || (self.is_plain() && url.scheme() == "http");
        let bare = url.username().is_empty() && url.password().is_none();
        if allowed && bare { Ok(url) } else { Err(refuse()) }
    }

    /// Makes the error of a failed connection, with its cause, which the library's message leaves out.
    pub fn connection_failure(&self, error: &reqwest::Error) -> Failure {
        if error.is_redirect() {
            return self.refuse(causes(error)).into();
        }
        if error.is_timeout() && !error.is_connect() {
            return Failure::Connection(format!("{} sent nothing for {:?}", self.host, self.stall_timeout));
        }
        Failure::Connection(causes(error))
    }
}

/// Reports whether a host, with or without a port, is this machine by its name.
fn is_loopback(host: &str) -> bool {
    let Ok(url) = Url::parse(&format!("http://{host}/")) else { return false };
    let name = url.host_str().unwrap_or_default();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The answer of a token server.
#[derive(Deserialize)]
struct Granted {
    token: Option<String>,
    access_token: Option<String>,
}

/// A registry's explanation of an error.
#[derive(Deserialize)]
struct Explanation {
    errors: Vec<Explained>,
}

#[derive(Deserialize)]
struct Explained {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

pub(crate) fn explanation(body: &[u8]) -> Option<String> {
    let explanation: Explanation = serde_json::from_slice(body).ok()?;
    let first = explanation.errors.into_iter().next()?;
    Some(format!("{} {}", first.code, first.message).trim().to_owned())
}

fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {token}"))
}

fn sensitive(header: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(header).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn client(settings: &RegistryConfig, stall_timeout: Duration) -> reqwest::Result<reqwest::Client> {
    // The client takes the process' provider; a second installation is refused, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authorities = settings.ca_pem.as_deref().map(reqwest::Certificate::from_pem_bundle).transpose()?;
    reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(settings.insecure_skip_verify)
        .tls_certs_merge(authorities.unwrap_or_default())
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(stall_timeout)
        .redirect(redirects())
        .referer(false)
        .user_agent(concat!("corten/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Follows a few redirects, and none from TLS to plain HTTP. The client drops credentials where the host changes.
fn redirects() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let is_plain = attempt.previous().last().is_some_and(|url| url.scheme() == "http");
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error("too many redirects");
        }
        match attempt.url().scheme() {
            "https" => attempt.follow(),
            "http" if is_plain => attempt.follow(),
            scheme => {
                let refused = format!("the registry redirects to {scheme}, which is not allowed");
                attempt.error(refused)
            }
        }
    })
}

/// Joins an error with its causes, each once.
fn causes(error: &reqwest::Error) -> String {
    let error: &(dyn std::error::Error + 'static) = error;
    let mut messages: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string) {
        if !messages.iter().any(|message| message.contains(&cause)) {
            messages.push(cause);
        }
    }
    messages.join(": ")
}

/// The rate of a blob: a registry that sends too slowly would hold a pull for ever without ever being silent.
pub(super) struct Pace {
    window: Duration,
    began: Instant,
    bytes: u64,
}

impl Pace {
    pub fn new(window: Duration, now: Instant) -> Self {
        Self { window, began: now, bytes: 0 }
    }

    /// Counts received bytes. Returns false when the last window had less than the lowest rate.
    pub fn is_kept(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes += bytes as u64;
        let passed = now.saturating_duration_since(self.began);
        if passed < self.window {
            return true;
        }
        let kept = self.bytes >= LEAST_RATE.saturating_mul(passed.as_secs());
        *self = Self::new(self.window, now);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(plain_http: bool) -> Registry {
        let image = Reference::parse("host.io/team/app:1").expect("a reference");
        let settings = RegistryConfig { plain_http, ..RegistryConfig::default() };
        Registry::new(settings, &image, "host.io", PullAuth::Anonymous).expect("a client")
    }

    #[test]
    fn a_registry_over_tls_cannot_make_the_client_send_credentials_unencrypted() {
        for realm in
            ["http://host.io/token", "file:///etc/shadow", "ftp://host.io", "host.io", "https://u:p@host.io/", ""]
        {
            assert!(registry(false).token_server(realm).is_err(), "{realm}");
        }
        assert!(registry(false).token_server("https://auth.host.io/token").is_ok());
        assert!(registry(true).token_server("http://host.io/token").is_ok());
    }

    #[test]
    fn this_machine_is_known_by_its_name() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.8.0.1", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["host.io", "localhost.host.io:5000", "10.0.0.1:5000", "[fd00::1]", "127.0.0.1.host.io", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_slow_registry_makes_no_progress() {
        let start = Instant::now();
        let minute = Duration::from_secs(60);
        let mut pace = Pace::new(minute, start);
        assert!(pace.is_kept(1, start + Duration::from_secs(59)), "a window has not passed");
        assert!(!pace.is_kept(1, start + minute));
        let mut pace = Pace::new(minute, start);
        assert!(pace.is_kept(100 << 10, start + minute));
        assert!(!pace.is_kept(1, start + 2 * minute), "each window counts alone");
    }

    #[test]
    fn explanations_are_read_leniently() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{"x":1}}]}"#;
        assert_eq!(explanation(body).as_deref(), Some("MANIFEST_UNKNOWN manifest unknown"));
        for body in [&b""[..], b"{}", b"{\"errors\":[]}", b"<html>", b"\xff"] {
            assert_eq!(explanation(body), None);
        }
    }

    #[test]
    fn a_token_that_is_no_header_is_refused() {
        assert!(bearer("abc.def").is_some());
        assert!(bearer("abc\r\nX: y").is_none());
    }
}
