//! The client of a server in this server's configuration, such as an audit webhook: one POST per connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_meta::quote::quote;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio_util::task::AbortOnDropHandle;

use super::trust::{Identity, client_config};
use super::{dial, trust};
use crate::config::RemoteServer;
use crate::error::Error;

/// The maximum size of an answer.
const MAX_ANSWER: usize = 1024 * 1024;

/// The number of attempts after transient errors, and the pauses in between: the first, and their growth.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;

/// The error of a call, and whether a retry may succeed.
struct Failed {
    why: String,
    transient: bool,
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed { why, transient: false }
    }
}

/// The client of a configured server.
pub struct Caller {
    uri: http::Uri,
    tls: Option<Arc<rustls::ClientConfig>>,
    token: Option<String>,
}

impl Caller {
    pub fn new(server: &RemoteServer) -> Result<Caller, Error> {
        let wrong = |e: &dyn std::fmt::Display| Error::Config(format!("{}: {e}", server.url));
        let uri: http::Uri = server.url.parse().map_err(|e| wrong(&e))?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => {
                let identity = server.identity.as_ref();
                let identity = identity.map(|i| Identity { certificate: &i.certificate, key: &i.key });
                Some(Arc::new(client_config(&server.ca, identity.as_ref())?))
            }
            _ => return Err(wrong(&"it is neither http nor https")),
        };
        Ok(Caller { uri, tls, token: server.token.clone() })
    }

    /// Posts JSON and returns the body of a successful answer.
    pub async fn post(&self, body: Bytes, timeout: Duration) -> Result<Bytes, String> {
        self.try_post(body, timeout).await.map_err(|failed| failed.why)
    }

    /// Posts JSON to a server that decides, and retries after transient errors and 429, with growing pauses. It does
    /// not retry if the server cannot be reached or times out: the request that needs the decision has waited enough.
    pub async fn ask(&self, body: Bytes, timeout: Duration) -> Result<Bytes, String> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match self.try_post(body.clone(), timeout).await {
                Err(failed) if failed.transient => {}
                answered => return answered.map_err(|failed| failed.why),
            }
            tokio::time::sleep(pause.mul_f64(1.0 + JITTER * jitter())).await;
            pause = pause.mul_f64(GROWTH);
        }
        self.post(body, timeout).await
    }

    async fn try_post(&self, body: Bytes, timeout: Duration) -> Result<Bytes, Failed> {
        let posted = tokio::time::timeout(timeout, self.exchange(Method::POST, body)).await;
        posted
            .unwrap_or_else(|_| Err(format!("Post {}: context deadline exceeded", quote(&self.uri.to_string())).into()))
    }

    /// Sends a GET and returns the body of a successful answer.
    pub async fn get(&self, timeout: Duration) -> Result<Bytes, String> {
        let got = tokio::time::timeout(timeout, self.exchange(Method::GET, Bytes::new())).await;
        let got = got.map(|got| got.map_err(|failed| failed.why));
        got.unwrap_or_else(|_| Err(format!("Get {}: context deadline exceeded", quote(&self.uri.to_string()))))
    }

    async fn exchange(&self, method: Method, body: Bytes) -> Result<Bytes, Failed> {
        let host = self.uri.host().unwrap_or_default();
        let port = self.uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let path = self.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let authority = self.uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|e| e.to_string())?;
        let stream = dial(host, port).await?;
        let Answering { response, _connection } = match &self.tls {
            None => send(stream, request).await?,
            Some(tls) => {
                let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name).map_err(|e| e.to_string())?;
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls));
                send(connector.connect(name, stream).await.map_err(|e| trust::go_message(&e))?, request).await?
            }
        };
        let code = response.status();
        let transient =
            matches!(code.as_u16(), 429 | 500 | 504) || response.headers().contains_key(header::RETRY_AFTER);
        let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|e| e.to_string())?;
        match code.is_success() {
            true => Ok(answer.to_bytes()),
            false => Err(Failed { why: format!("{} answered {code}", self.uri), transient }),
        }
    }
}

/// A response whose body is still to be read.
struct Answering {
    response: http::Response<hyper::body::Incoming>,
    /// Moves the bytes of the body; dropping it closes the connection.
    _connection: AbortOnDropHandle<()>,
}

async fn send(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Answering, Failed> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let driving = tokio::spawn(async move {
        if let Err(e) = connection.await {
            tracing::debug!(error = %e, "a connection to a configured server ended");
        }
    });
    let connection = AbortOnDropHandle::new(driving);
    // A connection that closes during a call means that the server restarts, and not that it answered.
    let response = sender.send_request(request).await;
    let response = response.map_err(|e| Failed { why: e.to_string(), transient: !e.is_timeout() })?;
    Ok(Answering { response, _connection: connection })
}

/// Returns a random number between 0 and 1, so that clients that failed together do not retry together.
fn jitter() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::hash::RandomState::new().build_hasher().finish();
    random as f64 / u64::MAX as f64
}
