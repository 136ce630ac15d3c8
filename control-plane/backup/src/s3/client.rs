//! HTTP/1.1 to S3: one connection a request, with deadlines.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::sign::{self, Unsigned};
use super::{Config, xml};
use crate::Error;

/// The time within which a connection is made.
const CONNECT: Duration = Duration::from_secs(20);
/// The time within which the head of an answer comes, after all of the request was sent.
const ANSWER: Duration = Duration::from_secs(300);
/// The time within which the next part of an answer comes.
const PART: Duration = Duration::from_secs(60);
/// The most bytes of a document.
const MOST_DOCUMENT: usize = 16 << 20;
const SERVICE: &str = "s3";

/// The connection settings of a bucket.
pub struct Client {
    config: Config,
    host: String,
    port: u16,
    /// The value of the header `host`.
    authority: String,
    tls: Option<Arc<ClientConfig>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Client({:?})", self.config)
    }
}

/// A request of a bucket.
pub struct Request<'a> {
    pub method: Method,
    /// The key of an object; empty for the bucket itself.
    pub key: &'a str,
    pub query: &'a [(&'a str, &'a str)],
    pub body: Bytes,
}

/// A request that failed.
pub struct Failure {
    pub reason: String,
    /// Whether another attempt may succeed.
    pub is_transient: bool,
}

/// A successful answer.
pub struct Answer {
    head: http::response::Parts,
    body: Incoming,
}

impl Client {
    pub fn new(config: Config) -> Result<Client, Error> {
        let invalid = |what: &str| Error::Target(format!("the S3 endpoint {:?} {what}", config.endpoint));
        let uri: Uri = config.endpoint.parse().map_err(|_| invalid("is no URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid("begins with neither https:// nor http://")),
        };
        let host = uri.host().ok_or_else(|| invalid("names no host"))?.to_owned();
        if !matches!(uri.path(), "" | "/") {
            return Err(invalid("has a path"));
        }
        let authority = uri.authority().map(ToString::to_string).unwrap_or_else(|| host.clone());
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = if is_tls { Some(tls(&config.roots)?) } else { None };
        let host = host.trim_matches(['[', ']']).to_owned();
        Ok(Client { config, host, port, authority, tls })
    }

    /// Sends a request once.
    pub async fn send(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        let where_to = format!("S3 at {}", self.config.endpoint);
        let transient = |reason: String| Failure { reason: format!("{where_to}: {reason}"), is_transient: true };
        let permanent = |reason: String| Failure { reason: format!("{where_to}: {reason}"), is_transient: false };
        let signed = self.signed(request).map_err(|error| permanent(error.to_string()))?;
        let connected = tokio::time::timeout(CONNECT, self.connect());
        let stream = connected.await.map_err(|_| transient("it does not answer".to_owned()))?;
        let stream = stream.map_err(|error| transient(error.to_string()))?;
        let connection = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connection.map_err(|error| transient(error.to_string()))?;
        // The task ends with the connection, which ends with the answer.
        tokio::spawn(connection);
        let answered = tokio::time::timeout(ANSWER, sender.send_request(signed)).await;
        let answered = answered.map_err(|_| transient("it does not answer".to_owned()))?;
        let (head, body) = answered.map_err(|error| transient(error.to_string()))?.into_parts();
        let status = head.status;
        let answer = Answer { head, body };
        if status.is_success() {
            return Ok(answer);
        }
        let document = answer.text().await.unwrap_or_default();
        let code = xml::element(&document, "Code").unwrap_or_else(|| status.to_string());
        let message = xml::element(&document, "Message").unwrap_or_default();
        let key = request.key;
        let reason = format!("{} {}/{key}: {code}: {message}", request.method, self.config.bucket);
        let reason = reason.trim_end_matches([' ', ':']).to_owned();
        let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Err(if status.is_server_error() || is_busy { transient(reason) } else { permanent(reason) })
    }

    fn signed(&self, request: &Request<'_>) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let config = &self.config;
        let mut path = format!("/{}", sign::encode(&config.bucket, false));
        if !request.key.is_empty() {
            path.push('/');
            path.push_str(&sign::encode(request.key, true));
        }
        let query = sign::canonical_query(request.query);
        let body_hash = sign::sha256(&request.body);
        let unsigned = Unsigned {
            method: request.method.as_str(),
            host: &self.authority,
            path: &path,
            query: request.query,
            body_hash: &body_hash,
            region: &config.region,
            service: SERVICE,
            time: jiff::Timestamp::now(),
        };
        let signed = sign::sign(&unsigned, &config.credentials);
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let mut built = http::Request::builder().method(&request.method).uri(target).header("host", &self.authority);
        for (name, value) in signed.headers {
            built = built.header(name, value);
        }
        built.body(Full::new(request.body.clone()))
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = ServerName::try_from(self.host.clone()).map_err(std::io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(tls.clone()).connect(name, tcp).await?;
        Ok(Box::new(stream))
    }
}

/// A connection, over TLS or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn tls(roots: &str) -> Result<Arc<ClientConfig>, Error> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(roots.as_bytes()).flatten() {
        // A bundle of a distribution may hold certificates that are no CAs for TLS.
        let _ = store.add(certificate);
    }
    if store.is_empty() {
        return Err(Error::Target("this machine has no CA bundle to verify S3 by".to_owned()));
    }
    Ok(Arc::new(ClientConfig::builder().with_root_certificates(store).with_no_client_auth()))
}

impl Answer {
    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// Returns the next part of the body; none at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(PART, self.body.frame()).await;
            let frame = frame.map_err(|_| Error::Target("S3 stopped in the middle of an answer".to_owned()))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| Error::Target(format!("an answer of S3 ended too early: {error}")))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Returns the whole body as a document.
    pub async fn text(mut self) -> Result<String, Error> {
        let mut bytes = Vec::new();
        while let Some(part) = self.next().await? {
            bytes.extend_from_slice(&part);
            if bytes.len() > MOST_DOCUMENT {
                return Err(Error::Target(format!("an answer of S3 has more than {MOST_DOCUMENT} bytes")));
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
