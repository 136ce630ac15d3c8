//! The transport over HTTPS: one HTTP/2 connection for all requests of a client, made when needed and again after it
//! broke; TLS with a client certificate or a bearer token.
//!
//! Certificate and key files are read at every connection, token files every minute, so that rotated credentials are
//! picked up: once the files have changed, requests take a new connection. A server that only speaks HTTP/1.1 gets one
//! connection per request.

use crate::{AnyServer, Body, Error, Transport};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::{CipherSuite, ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The silence after which a connection is pinged.
const PING_AFTER: Duration = Duration::from_secs(30);
/// The time to wait for the answer to a ping before the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// The number of connections in a row that the server may close before a request, until the request fails.
const MOST_CLOSED_CONNECTIONS: usize = 3;
/// The time for which a token file is not read again.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// The time for which the files of a connection's credentials are not compared again.
const FILES_LIFETIME: Duration = Duration::from_secs(5);
/// The limit of received but unread data of one watch and of one connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The cipher suites that a client offers first.
const AES_128: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// PEM data, or the file that holds it.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    async fn read(&self) -> Result<Vec<u8>, Error> {
        match self {
            Pem::Text(text) => Ok(text.clone()),
            Pem::File(path) => {
                tokio::fs::read(path).await.map_err(|e| Error::Config(format!("cannot read {}: {e}", path.display())))
            }
        }
    }
}

impl From<Vec<u8>> for Pem {
    fn from(text: Vec<u8>) -> Pem {
        Pem::Text(text)
    }
}
impl From<&str> for Pem {
    fn from(text: &str) -> Pem {
        Pem::Text(text.as_bytes().to_vec())
    }
}
impl From<String> for Pem {
    fn from(text: String) -> Pem {
        Pem::Text(text.into_bytes())
    }
}

/// Keys must not appear in logs.
impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pem::Text(_) => f.write_str("Text(..)"),
            Pem::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

/// The address of the API server and the client's credentials.
#[derive(Clone, Default)]
pub struct HttpsConfig {
    /// The URL `https://host:port`; `http://` is for local proxies.
    pub server: String,
    /// The CA certificates that may have signed the server's certificate.
    pub ca: Option<Pem>,
    pub client_certificate: Option<Pem>,
    pub client_key: Option<Pem>,
    pub token: Option<String>,
    pub token_file: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host of `server`.
    pub tls_server_name: Option<String>,
    /// Whether any certificate is accepted. Only a user may set this.
    pub insecure_skip_tls_verify: bool,
}

impl HttpsConfig {
    /// Returns the TLS configuration, for callers that make their own connections. Files are read now.
    pub async fn tls(&self) -> Result<ClientConfig, Error> {
        tls_config(self).await
    }
}

/// Reports whether the server has certainly not processed a request: it was never sent, its stream was refused, or it came
/// after the last stream that a stopping server takes.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let from_server = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    let is_refused = |error: &h2::Error| match error.reason() {
        Some(h2::Reason::NO_ERROR) => error.is_go_away(),
        reason => reason == Some(h2::Reason::REFUSED_STREAM) && error.is_reset(),
    };
    error.is_canceled() || from_server.is_some_and(|error| error.is_remote() && is_refused(error))
}

/// The transport behind [`crate::Client::https`].
pub struct Https {
    shared: Arc<Shared>,
}

struct Shared {
    config: HttpsConfig,
    address: String,
    authority: HeaderValue,
    server_name: ServerName<'static>,
    tls: bool,
    connection: Mutex<Option<Shares>>,
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

impl Https {
    pub fn new(config: HttpsConfig) -> Result<Https, Error> {
        let invalid = |why: &str| Error::Config(format!("server {:?}: {why}", config.server));
        let uri: Uri = config.server.parse().map_err(|_| invalid("not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid("the scheme must be https")),
        };
        let host = uri.host().ok_or_else(|| invalid("no host"))?;
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let name = config.tls_server_name.clone().unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
        let server_name = ServerName::try_from(name).map_err(|_| invalid("the host is no server name"))?;
        if tls && config.ca.is_none() && !config.insecure_skip_tls_verify {
            return Err(invalid("no certificate authority"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("no host"))?.as_str();
        let authority = HeaderValue::from_str(authority).map_err(|_| invalid("not a URL"))?;
        let address = format!("{host}:{port}");
        let shared = Shared {
            address,
            authority,
            server_name,
            tls,
            config,
            connection: Mutex::new(None),
            token: Mutex::new(None),
        };
        Ok(Https { shared: Arc::new(shared) })
    }
}

impl Transport for Https {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.send(request).await })
    }
}

/// A connection that all requests share.
struct Shares {
    sender: http2::SendRequest<Full<Bytes>>,
    /// The credentials that were read from files for it.
    files: Vec<Vec<u8>>,
    compared: Instant,
}

enum Connection {
    Http2(http2::SendRequest<Full<Bytes>>),
    Http1(http1::SendRequest<Full<Bytes>>),
}

impl Shared {
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Body>, Error> {
        if let Some(token) = self.authorization().await? {
            request.headers_mut().entry(AUTHORIZATION).or_insert(token);
        }
        let absolute = self.absolute(request.uri())?;
        // A server that stops closes its connections; what it did not process goes out on the next one.
        for _ in 0..MOST_CLOSED_CONNECTIONS {
            let mut request = request.clone().map(Full::new);
            let answer = match self.connection().await? {
                Connection::Http2(mut sender) => {
                    *request.uri_mut() = absolute.clone();
                    sender.send_request(request).await
                }
                Connection::Http1(mut sender) => {
                    request.headers_mut().insert(HOST, self.authority.clone());
                    sender.send_request(request).await
                }
            };
            match answer {
                Ok(response) => return Ok(response.map(body)),
                Err(error) if is_unprocessed(&error) => continue,
                Err(error) => return Err(transport(error)),
            }
        }
        Err(Error::Transport(format!("{} closes every connection", self.address)))
    }

    /// Adds scheme and authority, which HTTP/2 requires in every request.
    fn absolute(&self, uri: &Uri) -> Result<Uri, Error> {
        let path = uri.path_and_query().map(|p| p.as_str()).unwrap_or("/");
        Uri::builder()
            .scheme(if self.tls { "https" } else { "http" })
            .authority(self.authority.as_bytes())
            .path_and_query(path)
            .build()
            .map_err(|e| Error::Config(e.to_string()))
    }

    /// Returns the shared connection, or a new one. Another task that holds the lock is connecting.
    async fn connection(&self) -> Result<Connection, Error> {
        let mut current = self.connection.lock().await;
        if let Some(shared) = current.as_mut().filter(|shared| !shared.sender.is_closed())
            && self.is_current(shared).await
        {
            return Ok(Connection::Http2(shared.sender.clone()));
        }
        // Requests that are under way end on the connection that they began on.
        *current = None;
        let files = self.files().await;
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.connect())
            .await
            .map_err(|_| Error::Transport(format!("cannot connect to {}: timed out", self.address)))??;
        if let Connection::Http2(sender) = &connected {
            *current = Some(Shares { sender: sender.clone(), files, compared: Instant::now() });
        }
        Ok(connected)
    }

    /// Reports whether the files of a connection's credentials are still the same. Files that cannot be read change nothing.
    async fn is_current(&self, shared: &mut Shares) -> bool {
        if shared.files.is_empty() || shared.compared.elapsed() < FILES_LIFETIME {
            return true;
        }
        shared.compared = Instant::now();
        let now = self.files().await;
        now.len() != shared.files.len() || now == shared.files
    }

    /// Reads the files of the credentials.
    async fn files(&self) -> Vec<Vec<u8>> {
        let HttpsConfig { ca, client_certificate, client_key, .. } = &self.config;
        let mut files = Vec::new();
        for pem in [ca, client_certificate, client_key].into_iter().flatten() {
            if let Pem::File(path) = pem
                && let Ok(content) = tokio::fs::read(path).await
            {
                files.push(content);
            }
        }
        files
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let failed = |e: &dyn std::fmt::Display| Error::Transport(format!("cannot connect to {}: {e}", self.address));
        let stream = TcpStream::connect(&self.address).await.map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        if !self.tls {
            return handshake_http1(stream).await;
        }
        let connector = TlsConnector::from(Arc::new(tls_config(&self.config).await?));
        let stream = connector.connect(self.server_name.clone(), stream).await.map_err(|e| failed(&e))?;
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            handshake_http2(stream).await
        } else {
            handshake_http1(stream).await
        }
    }

    /// Returns the `Authorization` header if a token is configured.
    async fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let bearer = |token: &str| {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
                .map_err(|_| Error::Config("the token holds characters that a header cannot".into()))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        };
        let Some(path) = &self.config.token_file else {
            return self.config.token.as_deref().map(bearer).transpose();
        };
        let mut cached = self.token.lock().await;
        if let Some((value, read_at)) = cached.as_ref()
            && read_at.elapsed() < TOKEN_LIFETIME
        {
            return Ok(Some(value.clone()));
        }
        match tokio::fs::read_to_string(path).await {
            Ok(token) => {
                let value = bearer(&token)?;
                *cached = Some((value.clone(), Instant::now()));
                Ok(Some(value))
            }
            // The old token may still be valid.
            Err(_) if cached.is_some() => Ok(cached.as_ref().map(|(value, _)| value.clone())),
            Err(e) => Err(Error::Config(format!("cannot read {}: {e}", path.display()))),
        }
    }
}

async fn handshake_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Result<Connection, Error> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(transport)?;
    drive(connection);
    Ok(Connection::Http2(sender))
}

async fn handshake_http1<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> Result<Connection, Error> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(transport)?;
    drive(connection);
    Ok(Connection::Http1(sender))
}

/// Moves the bytes of a connection. The task ends with the connection: after its last sender and body are dropped.
fn drive(connection: impl Future<Output = Result<(), hyper::Error>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection to the API server ended");
        }
    });
}

fn body(incoming: Incoming) -> Body {
    let chunks = incoming.into_data_stream().map(|chunk| chunk.map_err(transport));
    Body::Stream(chunks.boxed())
}

fn transport(error: hyper::Error) -> Error {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Error::Transport(format!("{error}{cause}"))
}

async fn tls_config(config: &HttpsConfig) -> Result<ClientConfig, Error> {
    let invalid = |what: &str, e: &dyn std::fmt::Display| Error::Config(format!("{what}: {e}"));
    let mut provider = rustls::crypto::ring::default_provider();
    // Go's clients prefer these ciphers on processors with AES instructions: the shorter key costs a third less.
    provider.cipher_suites.sort_by_key(|suite| !AES_128.contains(&suite.suite()));
    let provider = Arc::new(provider);
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| invalid("TLS", &e))?;
    let builder = match &config.ca {
        _ if config.insecure_skip_tls_verify => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer::new(&provider)))
        }
        Some(ca) => builder.with_root_certificates(roots(&ca.read().await?)?),
        None => return Err(Error::Config("no certificate authority".into())),
    };
    let mut tls = match (&config.client_certificate, &config.client_key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(&certificate.read().await?)?;
            let key = PrivateKeyDer::from_pem_slice(&key.read().await?).map_err(|e| invalid("client key", &e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| invalid("client certificate", &e))?
        }
        _ => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(Error::Config("no certificate in PEM text".into())),
        Ok(chain) => Ok(chain),
        Err(e) => Err(Error::Config(format!("certificate: {e}"))),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|e| Error::Config(format!("certificate authority: {e}")))?;
    }
    Ok(roots)
}
