//! Calls of the API server itself to servers in objects: webhooks of admission and of conversion.
//!
//! A Service is resolved here to one of its ready endpoints, so that a call works wherever this process runs, also on a
//! machine without a service proxy. Every call has a deadline and every answer a limit: a server that hangs or floods
//! fails the request, but never exhausts this process's memory.

mod caller;
mod services;
mod trust;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
pub use corten_admission::ClientConfig;
use corten_admission::Server;
use corten_api::{Kind, Storage};
use corten_meta::quote::quote;
use corten_meta::{GroupResource, Status};
use http::{Request, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::Instant;

pub use caller::Caller;
pub use trust::{Identity, bundle_error, client_config, go_message, unverified_config};

use crate::cache::{Caches, ResourceCache};
use crate::config::Config;
use crate::error::Error;
use crate::tasks::Tasks;

/// The time for which an unused connection is pooled.
const IDLE: Duration = Duration::from_secs(90);
/// The maximum number of unused connections to one server.
const MAX_IDLE: usize = 8;
/// The maximum number of servers with pooled connections.
const MAX_SERVERS: usize = 200;

type Sender = SendRequest<Full<Bytes>>;

/// The connections to webhooks, and the resolver of Services.
pub struct Outbound {
    services: Arc<ResourceCache>,
    endpoint_slices: Arc<ResourceCache>,
    /// The host and port of this server itself.
    own: (String, u16),
    /// The PEM bundle that verifies servers without a CA bundle of their own.
    roots: String,
    servers: Mutex<HashMap<ClientConfig, Pooled>>,
    /// The tasks of connections.
    pub tasks: Tasks,
}

/// The pooled state of a server between calls.
struct Pooled {
    tls: Arc<rustls::ClientConfig>,
    idle: Vec<(Sender, Instant)>,
}

impl Outbound {
    pub fn new(config: &Config, caches: &Caches, kinds: &[Arc<Kind>], tasks: Tasks) -> Result<Outbound, Error> {
        let cache = |group: &str, plural: &str| {
            let kind = kinds.iter().find(|kind| kind.group == group && kind.plural == plural);
            let prefix = kind.and_then(|kind| match &kind.storage {
                Storage::Stored { prefix, .. } => Some(prefix),
                Storage::Virtual => None,
            });
            prefix.and_then(|p| caches.of(p)).ok_or_else(|| Error::Config(format!("the kind table has no {plural}")))
        };
        Ok(Outbound {
            services: cache("", "services")?,
            endpoint_slices: cache("discovery.k8s.io", "endpointslices")?,
            own: (config.advertise_address.to_string(), config.port),
            roots: config.trusted_roots.clone(),
            servers: Mutex::default(),
            tasks,
        })
    }

    /// Posts JSON and returns the body of a successful answer, at most `limit` bytes. Errors have the words of Go's
    /// client, because users of webhooks know those.
    pub async fn post(&self, to: &ClientConfig, body: Bytes, timeout: Duration, limit: usize) -> Result<Bytes, String> {
        let url = format!("{}?timeout={}s", to.url(), timeout.as_secs_f64().ceil());
        let called = tokio::time::timeout(timeout, self.exchange(to, &url, body, limit)).await;
        match called {
            Ok(Ok(answer)) => answer,
            Ok(Err(e)) => Err(format!("Post {}: {e}", quote(&url))),
            Err(_) => Err(format!("Post {}: context deadline exceeded", quote(&url))),
        }
    }

    /// Posts JSON; the outer error is of the connection, the inner one of the answer.
    async fn exchange(
        &self,
        to: &ClientConfig,
        url: &str,
        body: Bytes,
        limit: usize,
    ) -> Result<Result<Bytes, String>, String> {
        let path = url.strip_prefix("https://").and_then(|rest| rest.find('/').map(|at| rest[at..].to_owned()));
        let request = || {
            let mut request = Request::post(path.as_deref().unwrap_or("/"))
                .header(header::HOST, to.authority())
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::ACCEPT, "application/json, */*")
                .header(header::USER_AGENT, "kube-apiserver-admission");
            if let Some(parent) = corten_spans::traceparent() {
                request = request.header("traceparent", parent);
            }
            request.body(Full::new(body.clone())).map_err(|e| e.to_string())
        };
        // The server may have closed a pooled connection; then a new one is tried, once.
        let mut sender = match self.take(to) {
            Some(sender) => sender,
            None => self.connect(to).await?,
        };
        let response = match sender.send_request(request()?).await {
            Ok(response) => response,
            Err(e) if e.is_canceled() || e.is_closed() => {
                sender = self.connect(to).await?;
                sender.send_request(request()?).await.map_err(|e| lost(&e))?
            }
            Err(e) => return Err(lost(&e)),
        };
        let code = response.status();
        let body = match Limited::new(response.into_body(), limit).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<LengthLimitError>() => return Ok(Err(format!("the answer is longer than {limit} bytes"))),
            Err(e) => return Err(e.to_string()),
        };
        self.keep(to, sender);
        if code.is_success() {
            return Ok(Ok(body));
        }
        let message = String::from_utf8_lossy(&body[..body.len().min(2048)]).into_owned();
        let nothing = GroupResource { group: String::new(), resource: String::new() };
        Ok(Err(Status::generic(code.as_u16(), "POST", &nothing, "", message.trim()).message))
    }

    fn take(&self, to: &ClientConfig) -> Option<Sender> {
        let mut servers = self.servers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let pooled = servers.get_mut(to)?;
        while let Some((sender, since)) = pooled.idle.pop() {
            if !sender.is_closed() && since.elapsed() < IDLE {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, to: &ClientConfig, sender: Sender) {
        let mut servers = self.servers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(pooled) = servers.get_mut(to).filter(|pooled| pooled.idle.len() < MAX_IDLE) {
            pooled.idle.push((sender, Instant::now()));
        }
    }

    /// Returns the TLS settings of a server, made once.
    fn tls(&self, to: &ClientConfig) -> Result<Arc<rustls::ClientConfig>, String> {
        let mut servers = self.servers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(pooled) = servers.get(to) {
            return Ok(Arc::clone(&pooled.tls));
        }
        if servers.len() >= MAX_SERVERS {
            servers.clear();
        }
        let roots = if to.ca_bundle.is_empty() { &self.roots } else { &to.ca_bundle };
        let tls = Arc::new(client_config(roots, None).map_err(|e| e.to_string())?);
        servers.insert(to.clone(), Pooled { tls: Arc::clone(&tls), idle: Vec::new() });
        Ok(tls)
    }

    async fn connect(&self, to: &ClientConfig) -> Result<Sender, String> {
        let tls = self.tls(to)?;
        let (host, port) = match &to.server {
            Server::Url { host, port } => (host.clone(), *port),
            Server::Service { namespace, name, port } => {
                self.resolve(namespace, name, *port).map_err(|status| status.message)?
            }
        };
        let stream = dial(&host, port).await?;
        let name = ServerName::try_from(to.server_name()).map_err(|e| e.to_string())?;
        let stream =
            tokio_rustls::TlsConnector::from(tls).connect(name, stream).await.map_err(|e| trust::go_message(&e))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        // The task ends when the sender is dropped or the webhook closes the connection, at the latest with this server.
        self.tasks.spawn_until_drained(async move {
            if let Err(e) = connection.await {
                tracing::debug!(error = %e, "a connection to a webhook ended");
            }
        });
        Ok(sender)
    }
}

/// Opens a TCP connection; errors are Go's.
pub async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, port)).await.map_err(|e| {
        let why = match e.kind() {
            std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
            std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
            _ => e.to_string(),
        };
        format!("dial tcp {host}:{port}: {why}")
    })?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

fn lost(e: &hyper::Error) -> String {
    if e.is_incomplete_message() { "EOF".to_owned() } else { e.to_string() }
}
