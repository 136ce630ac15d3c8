//! The console on a loopback address: its files, and everything else passed on to the API server as it is.
//!
//! A browser on this machine so reaches any cluster of a kubeconfig, without a warning about its certificate. The
//! gateway adds no credential: a process that finds its port can do as much as without it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_client::HttpsConfig;
use corten_listen::{Gate, Limits};
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::codes::Codes;
use crate::pages::{PREFIX, Pages};
use crate::questions::{self, Explainer, Question};

const LIMITS: Limits = Limits::anonymous(256);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The path that exchanges a code for a token.
const SESSION: &str = "/console/session";
const LARGEST_CODE: usize = 4096;

/// Headers of one connection, which are not passed on.
const HOP_BY_HOP: [HeaderName; 5] =
    [header::CONNECTION, header::TE, header::TRAILER, header::TRANSFER_ENCODING, header::UPGRADE];

/// The error of a gateway that cannot reach the API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the address of the API server, {0:?}, is not a URL")]
    Address(String),
    #[error("the kubeconfig cannot be used: {0}")]
    Config(#[from] corten_client::Error),
    #[error("the API server at {address} cannot be reached: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("the connection to the API server failed: {0}")]
    Http(#[from] hyper::Error),
}

type Reply = Response<BoxBody<Bytes, hyper::Error>>;

/// The gateway to one API server.
pub struct Gateway {
    pages: Pages,
    codes: Codes,
    explainer: Arc<dyn Explainer>,
    address: String,
    authority: HeaderValue,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Connections and relays, which end with the gateway.
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Gateway {
    /// Makes a gateway to the API server of `config`, whose credentials it does not take.
    pub async fn new(
        config: &HttpsConfig,
        explainer: Arc<dyn Explainer>,
        shutdown: CancellationToken,
    ) -> Result<Gateway, Error> {
        let invalid = || Error::Address(config.server.clone());
        let uri: Uri = config.server.parse().map_err(|_| invalid())?;
        let host = uri.host().ok_or_else(invalid)?;
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let authority = uri.authority().ok_or_else(invalid)?.as_str();
        let anonymous =
            HttpsConfig { client_certificate: None, client_key: None, token: None, token_file: None, ..config.clone() };
        let tls = match is_tls {
            false => None,
            true => {
                let mut settings = anonymous.tls().await?;
                settings.alpn_protocols = vec![b"http/1.1".to_vec()];
                let name = config.tls_server_name.clone().unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
                let name = ServerName::try_from(name).map_err(|_| invalid())?;
                Some((TlsConnector::from(Arc::new(settings)), name))
            }
        };
        Ok(Gateway {
            pages: Pages::default(),
            codes: Codes::default(),
            explainer,
            address: format!("{host}:{port}"),
            authority: HeaderValue::from_str(authority).map_err(|_| invalid())?,
            tls,
            tasks: TaskTracker::new(),
            shutdown,
        })
    }

    /// Returns a code that the page exchanges for `token`, once; `None` if the system has no randomness.
    pub fn code(&self, token: String) -> Option<String> {
        self.codes.issue(token, Instant::now())
    }

    /// Serves on a loopback listener until shutdown.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let Ok(address) = listener.local_addr() else { return };
        let gate = Gate::new(LIMITS);
        loop {
            let (stream, slot) = tokio::select! {
                accepted = gate.accept(&listener) => accepted,
                () = self.shutdown.cancelled() => break,
            };
            let gateway = Arc::clone(&self);
            let shutdown = self.shutdown.clone();
            self.tasks.spawn(async move {
                let service = hyper::service::service_fn(|request: Request<Incoming>| {
                    slot.request_arrived();
                    let gateway = Arc::clone(&gateway);
                    async move { Ok::<_, std::convert::Infallible>(gateway.answer(request, address.port()).await) }
                });
                let builder = corten_listen::http1();
                let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
                tokio::select! {
                    // A browser that closes a connection is no event.
                    _ = connection => {}
                    () = slot.closed() => {}
                    () = shutdown.cancelled() => {}
                }
            });
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn answer(&self, request: Request<Incoming>, port: u16) -> Reply {
        // A page of another site may name this address by a host of its own; its requests have that host.
        if !is_loopback(&request, port) {
            return plain(StatusCode::FORBIDDEN, "this address answers to 127.0.0.1 and localhost only");
        }
        let path = request.uri().path();
        if path == "/" {
            return whole(redirect());
        }
        if path == SESSION {
            return self.session(request).await;
        }
        if let Some(question) = Question::of(path, request.uri().query().unwrap_or_default()) {
            return self.explain(&request, question).await;
        }
        if path.starts_with(PREFIX) || path == PREFIX.trim_end_matches('/') {
            return whole(self.pages.answer(request.method(), path, request.headers()));
        }
        match self.pass(request).await {
            Ok(reply) => reply,
            Err(error) => plain(StatusCode::BAD_GATEWAY, &error.to_string()),
        }
    }

    /// Exchanges a code for its token.
    async fn session(&self, request: Request<Incoming>) -> Reply {
        if request.method() != Method::POST {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "POST a code");
        }
        let body = Limited::new(request.into_body(), LARGEST_CODE).collect().await;
        let document: Value = match body {
            Ok(body) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
            Err(_) => return plain(StatusCode::BAD_REQUEST, "the code cannot be read"),
        };
        let code = document["code"].as_str().unwrap_or_default();
        match self.codes.redeem(code, Instant::now()) {
            Some(token) => {
                let mut answer = Response::new(Bytes::from(json!({ "token": token }).to_string()));
                answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                whole(answer)
            }
            None => plain(StatusCode::FORBIDDEN, "the code was used before, or is too old"),
        }
    }

    /// Answers a question with the rights of the request's token.
    async fn explain(&self, request: &Request<Incoming>, question: Question) -> Reply {
        let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = header.and_then(|value| value.strip_prefix("Bearer ")) else {
            return plain(StatusCode::UNAUTHORIZED, "a token is missing");
        };
        whole(questions::response(self.explainer.answer(token.to_owned(), question).await))
    }

    /// Passes a request on over a connection of its own, and the answer back; WebSockets too.
    async fn pass(&self, mut request: Request<Incoming>) -> Result<Reply, Error> {
        let upgrade = upgrade_of(&request);
        let from_browser = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        let stream = stream.map_err(|_| self.unreachable("it took too long"))??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                _ = connection.with_upgrades() => {}
                () = shutdown.cancelled() => {}
            }
        });
        self.rewrite(&mut request, upgrade.as_ref());
        let mut answer = sender.send_request(request).await?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(browser) = from_browser
        {
            let server = hyper::upgrade::on(&mut answer);
            let shutdown = self.shutdown.clone();
            self.tasks.spawn(async move {
                let Ok((browser, server)) = tokio::try_join!(browser, server) else { return };
                tokio::select! {
                    // The stream itself says how a terminal ended.
                    _ = corten_listen::relay(TokioIo::new(browser), TokioIo::new(server)) => {}
                    () = shutdown.cancelled() => {}
                }
            });
        }
        Ok(answer.map(BodyExt::boxed))
    }

    /// Makes a browser's request one to the API server. Its origin is this gateway, which the API server need not know.
    fn rewrite(&self, request: &mut Request<Incoming>, upgrade: Option<&HeaderValue>) {
        let headers = request.headers_mut();
        for name in &HOP_BY_HOP {
            headers.remove(name);
        }
        headers.remove(header::ORIGIN);
        headers.remove(header::REFERER);
        headers.remove(header::COOKIE);
        headers.insert(header::HOST, self.authority.clone());
        if let Some(protocol) = upgrade {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, protocol.clone());
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>, Error> {
        let stream = TcpStream::connect(&self.address).await.map_err(|error| self.unreachable(&error.to_string()))?;
        match &self.tls {
            None => Ok(Box::new(stream)),
            Some((connector, name)) => {
                let secured = connector.connect(name.clone(), stream).await;
                Ok(Box::new(secured.map_err(|error| self.unreachable(&error.to_string()))?))
            }
        }
    }

    fn unreachable(&self, reason: &str) -> Error {
        Error::Unreachable { address: self.address.clone(), reason: reason.to_owned() }
    }
}

/// A connection with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Reports whether a request names this machine's own loopback address.
fn is_loopback<B>(request: &Request<B>, port: u16) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    ["127.0.0.1", "localhost"].iter().any(|name| host == Some(&format!("{name}:{port}")))
}

/// Returns the protocol that a request asks to change to.
fn upgrade_of<B>(request: &Request<B>) -> Option<HeaderValue> {
    let protocol = request.headers().get(header::UPGRADE)?;
    protocol.as_bytes().eq_ignore_ascii_case(b"websocket").then(|| protocol.clone())
}

fn whole(response: Response<Bytes>) -> Reply {
    response.map(|body| Full::new(body).map_err(|never| match never {}).boxed())
}

fn plain(code: StatusCode, message: &str) -> Reply {
    whole(questions::refusal(code, message))
}

fn redirect() -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(PREFIX));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_answered() {
        for (host, is_answered) in [
            ("127.0.0.1:8001", true),
            ("localhost:8001", true),
            ("localhost", false),
            ("127.0.0.1:8002", false),
            ("evil.example:8001", false),
        ] {
            let request = Request::builder().header(header::HOST, host).body(()).unwrap();
            assert_eq!(is_loopback(&request, 8001), is_answered, "{host}");
        }
        assert!(!is_loopback(&Request::new(()), 8001), "no host");
    }

    #[test]
    fn only_websockets_change_the_protocol() {
        for (protocol, is_passed) in [("websocket", true), ("WebSocket", true), ("SPDY/3.1", false), ("h2c", false)] {
            let request = Request::builder().header(header::UPGRADE, protocol).body(()).unwrap();
            assert_eq!(upgrade_of(&request).is_some(), is_passed, "{protocol}");
        }
    }
}
