//! The API server under test, and connections to it.
//!
//! Each connection is its own TCP and TLS connection, as that of a separate client, and uses the HTTP version of the
//! flag. Nothing is retried: a failed request fails the run.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use corten_client::{HttpsConfig, Kubeconfig, Pem};
use futures::FutureExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::bench_cli::{BenchApi, HttpVersion};

/// The HTTP/2 window of one stream and one connection; the client must not be the bottleneck.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// The size of the read buffer of a connection.
const READ_BUFFER: usize = 16 << 10;

/// The server, and the credentials of the requests.
pub struct Target {
    address: String,
    authority: String,
    server_name: ServerName<'static>,
    tls: TlsConnector,
    authorization: Option<HeaderValue>,
    version: HttpVersion,
    /// The tasks of the connections, which end with the run.
    connections: Mutex<JoinSet<()>>,
}

impl Target {
    pub async fn new(flags: &BenchApi) -> Result<Target> {
        let config = https_config(flags)?;
        let uri: Uri = config.server.parse().with_context(|| format!("--server {:?} is not a URL", config.server))?;
        ensure!(uri.scheme_str() == Some("https"), "--server {:?}: only https is measured", config.server);
        let host = uri.host().context("--server has no host")?.trim_matches(['[', ']']).to_owned();
        let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let mut tls = config.tls().await?;
        tls.alpn_protocols = match flags.http {
            HttpVersion::Http1 => vec![b"http/1.1".to_vec()],
            HttpVersion::Http2 => vec![b"h2".to_vec()],
        };
        let token = config.token.as_deref().map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        Ok(Target {
            address: format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(443)),
            authority: uri.authority().context("--server has no host")?.to_string(),
            server_name: ServerName::try_from(name).context("--server has no usable host name")?,
            tls: TlsConnector::from(Arc::new(tls)),
            authorization: token.transpose().context("--token")?,
            version: flags.http,
            connections: Mutex::default(),
        })
    }

    pub async fn connect(self: &Arc<Self>) -> Result<Connection> {
        let failed = || format!("cannot connect to {}", self.address);
        let stream = TcpStream::connect(&self.address).await.with_context(failed)?;
        stream.set_nodelay(true)?;
        // TLS reads 4 KiB at a time; the buffer reads everything that has arrived.
        let stream = BufReader::with_capacity(READ_BUFFER, stream);
        let stream = self.tls.connect(self.server_name.clone(), stream).await.with_context(failed)?;
        let sender = match self.version {
            HttpVersion::Http1 => {
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
                self.drive(connection);
                Sender::Http1(sender)
            }
            HttpVersion::Http2 => {
                ensure!(stream.get_ref().1.alpn_protocol() == Some(b"h2"), "{} does not speak HTTP/2", self.address);
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
                let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
                self.drive(connection);
                Sender::Http2(sender)
            }
        };
        Ok(Connection { target: Arc::clone(self), sender })
    }

    /// Moves the bytes of a connection. An error of it is one of its requests.
    fn drive(&self, connection: impl Future<Output = Result<(), hyper::Error>> + Send + 'static) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.spawn(connection.map(drop));
    }

    /// Opens connections for `count` workers.
    pub async fn connections(self: &Arc<Self>, count: usize) -> Result<Vec<Connection>> {
        futures::future::try_join_all((0..count).map(|_| self.connect())).await
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder()
            .method(method)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("corten-bench/", env!("CARGO_PKG_VERSION")));
        request = match self.version {
            HttpVersion::Http1 => request.uri(path).header(HOST, &self.authority),
            HttpVersion::Http2 => request.uri(format!("https://{}{path}", self.authority)),
        };
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.authorization {
            request = request.header(AUTHORIZATION, token.clone());
        }
        Ok(request.body(Full::new(body))?)
    }
}

/// Reads a kubeconfig, or the flags alone.
fn https_config(flags: &BenchApi) -> Result<HttpsConfig> {
    let mut config = match (&flags.kubeconfig, &flags.server) {
        (Some(file), _) => Kubeconfig::load(file)?.https_config(None)?,
        (None, Some(_)) => HttpsConfig::default(),
        (None, None) => bail!("either --kubeconfig or --server is needed"),
    };
    if let Some(server) = &flags.server {
        config.server.clone_from(server);
    }
    if let Some(token) = &flags.token {
        config.token = Some(crate::secrets::one(token).context("--token")?);
        (config.client_certificate, config.client_key) = (None, None);
    }
    if let Some(file) = &flags.certificate_authority {
        config.ca = Some(Pem::File(file.clone()));
    }
    if config.ca.is_none() && !config.insecure_skip_tls_verify {
        eprintln!("the server's certificate is not verified: there is no --certificate-authority");
        config.insecure_skip_tls_verify = true;
    }
    Ok(config)
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// One connection, for one request at a time (HTTP/2 streams that stay open, such as watches, do not count).
pub struct Connection {
    target: Arc<Target>,
    sender: Sender,
}

impl Connection {
    /// Sends a request; the caller reads the body of the answer.
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let request = self.target.request(method, path, body)?;
        Ok(match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        })
    }

    /// Sends a request that must succeed; returns the number of bytes of the answer.
    pub async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<usize> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let mut body = response.into_body();
        let mut read = 0;
        let mut refusal = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else { continue };
            read += data.len();
            if !status.is_success() {
                refusal.extend_from_slice(&data);
            }
        }
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&refusal));
        Ok(read)
    }

    /// Reads a text; it is empty if the server refuses the request.
    pub async fn text(&mut self, path: &str) -> Result<String> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        let is_there = response.status().is_success();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(if is_there { String::from_utf8_lossy(&bytes).into_owned() } else { String::new() })
    }

    /// Sends a request and reads the answer, with any status.
    pub async fn json(&mut self, method: Method, path: &str, body: &Value) -> Result<(StatusCode, Value)> {
        let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let response = self.send(method, path, bytes).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }
}
