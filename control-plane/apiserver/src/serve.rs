//! The network edge: accept, TLS, HTTP/1 and HTTP/2, upgrades, compression, graceful shutdown.
//!
//! The identity that a connection proves (a verified client certificate) is read here and nowhere else.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use corten_listen::{Gate, HANDSHAKE_TIMEOUT, Limits, Slot};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authentication::expiry_of_certificate;
use crate::body::{Body, HttpBody, LIST_CHUNK, Unread};
use crate::compression::{self, accepts_gzip};
use crate::drain;
use crate::error::Error;
use crate::peer::Peer;
use crate::request::has_whole_escapes;
use crate::request_line::FirstLine;
use crate::server::{CLOSE_TIMEOUT, Server};
use crate::write_timeout::WriteTimeout;

/// The limits of open connections. Pods have many connections, and each authenticates with its first request.
const LIMITS: Limits = Limits { connections: 65_536, unauthenticated: 2_048 };
/// The time after which a connection closes whose client does not read the response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The bytes that a request may send before it is read: more than nearly every object has.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The biggest head of an HTTP/2 request.
const MAX_HEAD: u32 = 256 * 1024;
/// The most headers of an HTTP/1 request: an impersonated user of many groups has a header for each group.
const MAX_HEADERS: usize = 1000;
/// The biggest head of an HTTP/1 request.
const MAX_HEAD_HTTP1: usize = 408 * 1024;
/// The most bytes that one HTTP/2 stream may have waiting to be sent.
const SEND_BUFFER: usize = 256 * 1024;

/// The response to a client that sends plain HTTP.
const PLAIN_ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// The serving certificates.
pub trait Certificates: Send + Sync {
    /// Returns the configuration for a connection to this address of the machine. Called for every connection.
    fn tls(&self, local: Option<IpAddr>) -> Arc<rustls::ServerConfig>;
}

/// One configuration for all connections, until it is swapped.
impl Certificates for ArcSwap<rustls::ServerConfig> {
    fn tls(&self, _: Option<IpAddr>) -> Arc<rustls::ServerConfig> {
        self.load_full()
    }
}

impl Server {
    /// Serves the API on `listener` until `shutdown`. The future is boxed so that the whole pipeline is compiled in this
    /// package, for speed, and not where it is awaited.
    pub fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        certificates: Arc<dyn Certificates>,
        shutdown: CancellationToken,
    ) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(self.accept(listener, certificates, shutdown))
    }

    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        certificates: Arc<dyn Certificates>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let connections = TaskTracker::new();
        let gate = Gate::new(LIMITS);
        let drain = CancellationToken::new();
        let stopped = async {
            shutdown.cancelled().await;
            self.announce_shutdown().await;
            self.drain.run().await;
        };
        tokio::pin!(stopped);
        loop {
            let (stream, slot) = tokio::select! {
                () = &mut stopped => break,
                accepted = gate.accept(&listener) => accepted,
            };
            let local = stream.local_addr().ok().map(|address| address.ip().to_canonical());
            let acceptor = tokio_rustls::TlsAcceptor::from(certificates.tls(local));
            connections.spawn(Arc::clone(&self).connection(stream, slot, acceptor, drain.clone()));
        }
        drain.cancel();
        // New connections are refused at once; their clients find another server, or this one after its restart.
        drop(listener);
        // Watches would hold their connections open for ever.
        self.shut_down();
        connections.close();
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.wait()).await;
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.ended()).await;
        Ok(())
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        slot: Slot,
        acceptor: tokio_rustls::TlsAcceptor,
        drain: CancellationToken,
    ) {
        // A dual-stack socket reports IPv4 addresses as IPv4-mapped IPv6 addresses; no other component writes them so.
        let address = stream.peer_addr().ok().map(|peer| SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        let _ = stream.set_nodelay(true);
        let plain = tokio::select! {
            () = slot.closed() => return,
            plain = tokio::time::timeout(HANDSHAKE_TIMEOUT, begins_with_http(&stream)) => plain,
        };
        if plain != Ok(false) {
            self.core.metrics.tls_handshake_errors.fetch_add(1, Ordering::Relaxed);
            // Unread bytes would reset the connection and lose the response.
            if plain.is_ok() && stream.try_read(&mut [0; 4096]).is_ok() {
                let _ = stream.try_write(PLAIN_ANSWER);
            }
            return;
        }
        let stream = WriteTimeout::new(stream, WRITE_TIMEOUT);
        let handshake = tokio::select! {
            () = slot.closed() => return,
            handshake = corten_listen::handshake(&acceptor, stream) => handshake,
        };
        let Ok(stream) = handshake else {
            self.core.metrics.tls_handshake_errors.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let chain: Vec<_> = chain.into_iter().map(|certificate| certificate.into_owned()).collect();
        let identity = self.client_certificates.identify(&chain);
        let expires = chain.first().and_then(|certificate| expiry_of_certificate(certificate));
        let slot = Arc::new(slot);
        let is_proven = identity.is_proven();
        if is_proven {
            slot.authenticated();
        }
        let peer = Arc::new(Peer { identity, address, expires, slot: Some(Arc::clone(&slot)) });
        let server = Arc::clone(&self);
        let leave = CancellationToken::new();
        let left = leave.clone();
        let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let server = Arc::clone(&server);
            let peer = Arc::clone(&peer);
            let leave = leave.clone();
            async move {
                let method = request.method().clone();
                let response = server.respond_while_serving(request, &peer, &leave).await;
                Ok::<_, Infallible>(corten_listen::head::answer(&method, response, Body::empty().into_http()))
            }
        });
        let mut builder = corten_listen::http();
        builder.http1().max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_HTTP1);
        // Header names are case-insensitive, but scripts search for them as upstream writes them.
        builder.http1().title_case_headers(true);
        builder.http2().max_header_list_size(MAX_HEAD);
        builder.http2().initial_stream_window_size(STREAM_WINDOW).max_send_buf_size(SEND_BUFFER);
        builder.http2().initial_connection_window_size(STREAM_WINDOW * 16);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(FirstLine::new(stream)), service);
        tokio::pin!(connection);
        let is_leaving = async {
            tokio::select! {
                () = drain.cancelled() => {}
                () = left.cancelled() => {}
            }
        };
        let distrusted = self.client_certificates.distrusted(chain);
        tokio::pin!(distrusted);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = slot.closed() => return,
            () = distrusted.as_mut(), if is_proven => return,
            () = is_leaving => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = connection => {}
            () = slot.closed() => {}
            () = distrusted, if is_proven => {}
        }
    }

    /// Responds to a request; refuses it if the server drains. From the announcement of the shutdown on, each request
    /// closes its connection, by `Connection: close` or GOAWAY, so that the next one finds another server.
    async fn respond_while_serving(
        &self,
        request: http::Request<Incoming>,
        peer: &Peer,
        leave: &CancellationToken,
    ) -> http::Response<HttpBody> {
        let is_http1 = request.version() <= Version::HTTP_11;
        let under_way = self.drain.enter(request.uri().path(), request.headers());
        let mut response = match &under_way {
            Some(_) => self.respond(request, peer).await,
            None => drain::late().map(Body::into_http),
        };
        if self.core.stopping.is_cancelled() {
            leave.cancel();
            if is_http1 {
                let close = HeaderValue::from_static("close");
                response.headers_mut().entry(header::CONNECTION).or_insert(close);
            }
        }
        response
    }

    async fn respond(&self, request: http::Request<Incoming>, peer: &Peer) -> http::Response<HttpBody> {
        if let Some(slot) = &peer.slot {
            slot.request_arrived();
        }
        if let Some((status, why)) = early_response(&request) {
            let mut response = http::Response::new(Body::Full(why.into()).into_http());
            *response.status_mut() = status;
            if status != StatusCode::OK {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            if !why.is_empty() {
                let plain = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, plain);
            }
            return response;
        }
        let gzip = accepts_gzip(request.headers());
        let is_http2 = request.version() > Version::HTTP_11;
        let waits_for_continue = request.headers().contains_key(header::EXPECT);
        let (head, body) = request.into_parts();
        let (body, unread) = Unread::lend(body);
        let reply = self.handle(http::Request::from_parts(head, body), peer).await;
        let (mut parts, body) = reply.into_parts();
        // On HTTP/1 the next request comes after the whole body. A client that waits for 100-continue need not send it.
        let is_reusable = match unread {
            Some(unread) if waits_for_continue => is_http2 || unread.take().is_none(),
            Some(unread) => is_http2 || unread.finish().await,
            None => true,
        };
        if !is_reusable {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        let body = if gzip && !parts.headers.contains_key(header::CONTENT_ENCODING) {
            compress(&mut parts.headers, body)
        } else {
            body
        };
        if parts.status == StatusCode::PAYLOAD_TOO_LARGE {
            // Go has an older reason phrase for it.
            parts.extensions.insert(hyper::ext::ReasonPhrase::from_static(b"Request Entity Too Large"));
        }
        http::Response::from_parts(parts, self.drain.bound(body).into_http())
    }
}

/// Returns the response to a request that is refused before any handler sees it, in the words of Go's server.
fn early_response<B>(request: &http::Request<B>) -> Option<(StatusCode, &'static str)> {
    if request.version() > Version::HTTP_11 {
        return None;
    }
    let headers = request.headers();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    let another = hosts.next();
    let has_path = request.uri().path_and_query().is_some() || request.method() == Method::CONNECT;
    if !has_path || !has_whole_escapes(request.uri().path()) || another.is_some() {
        return Some((StatusCode::BAD_REQUEST, "400 Bad Request"));
    }
    if request.version() == Version::HTTP_11 && host.is_none() {
        return Some((StatusCode::BAD_REQUEST, "400 Bad Request: missing required Host header"));
    }
    if !host.is_none_or(|host| host.as_bytes().iter().all(|&byte| is_of_host(byte))) {
        return Some((StatusCode::BAD_REQUEST, "400 Bad Request: malformed Host header"));
    }
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !encodings.next().is_none_or(is_chunked) || encodings.next().is_some() {
        return Some((StatusCode::NOT_IMPLEMENTED, "Unsupported transfer encoding"));
    }
    // `OPTIONS *` only asks whether the server is alive.
    if request.method() == Method::OPTIONS && request.uri().path() == "*" {
        return Some((StatusCode::OK, ""));
    }
    let expected = headers.get(header::EXPECT)?;
    let is_known = expected.as_bytes().eq_ignore_ascii_case(b"100-continue") || expected.is_empty();
    (!is_known).then_some((StatusCode::EXPECTATION_FAILED, ""))
}

/// Returns whether a Host header may have this byte.
fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

/// Returns whether a connection begins with an HTTP request instead of a TLS handshake.
async fn begins_with_http(stream: &TcpStream) -> bool {
    let mut first = [0; 5];
    let is_full = stream.peek(&mut first).await.is_ok_and(|length| length == first.len());
    is_full && [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"].contains(&&first)
}

/// Compresses a response that is big enough.
fn compress(headers: &mut HeaderMap, body: Body) -> Body {
    let compressed = match body {
        Body::Full(bytes) if bytes.len() >= compression::THRESHOLD => Body::Full(compression::gzip(&bytes).into()),
        Body::List(list) if list.size() >= compression::THRESHOLD => {
            let pieces = compression::gzip_pieces(list.chunks(LIST_CHUNK));
            Body::Stream(futures::stream::iter(pieces.map(Ok)).boxed())
        }
        small => return small,
    };
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    compressed
}

/// Returns the ciphers, AES-128 first, as in Go: it is strong enough and the cheapest, and most of the cost of sending
/// a list is its encryption.
fn provider() -> rustls::crypto::CryptoProvider {
    use rustls::CipherSuite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS13_AES_128_GCM_SHA256,
    };
    const FIRST: [rustls::CipherSuite; 3] =
        [TLS13_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !FIRST.contains(&suite.suite()));
    provider
}

/// Makes a TLS configuration for the API: TLS 1.2 or later, HTTP/2 and HTTP/1.1, client certificates of `client_ca`
/// optional.
pub fn tls_config(certificate_pem: &str, key_pem: &str, client_ca_pem: &str) -> Result<rustls::ServerConfig, Error> {
    let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificate_pem.as_bytes()).collect::<Result<_, _>>().map_err(|e| tls(&e))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| tls(&e))?;
    let provider = Arc::new(provider());
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(client_ca_pem.as_bytes()) {
        roots.add(certificate.map_err(|e| tls(&e))?).map_err(|e| tls(&e))?;
    }
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| tls(&e))?;
    let builder = if roots.is_empty() {
        builder.with_no_client_auth()
    } else {
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|e| tls(&e))?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| tls(&e))?;
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_requests_are_answered_before_they_are_read() {
        let bad = Some(StatusCode::BAD_REQUEST);
        let fine = None;
        for (method, path, headers, expected) in [
            ("GET", "/a%2Fb", &[("host", "[::1]:6443")][..], fine),
            ("GET", "/a%zz", &[("host", "a")], bad),
            ("GET", "/a%2", &[("host", "a")], bad),
            ("GET", "/a?b=%zz", &[("host", "a")], fine),
            ("GET", "/", &[], bad),
            ("GET", "/", &[("host", "")], fine),
            ("GET", "/", &[("host", "a b")], bad),
            ("GET", "/", &[("host", "a"), ("host", "a")], bad),
            ("GET", "*", &[("host", "a")], fine),
            ("OPTIONS", "*", &[("host", "a")], Some(StatusCode::OK)),
            ("POST", "/", &[("host", "a"), ("transfer-encoding", "Chunked")], fine),
            ("POST", "/", &[("host", "a"), ("transfer-encoding", "gzip, chunked")], Some(StatusCode::NOT_IMPLEMENTED)),
            ("POST", "/", &[("host", "a"), ("expect", "100-Continue")], fine),
            ("POST", "/", &[("host", "a"), ("expect", "more")], Some(StatusCode::EXPECTATION_FAILED)),
        ] {
            let mut request = http::Request::builder().method(method).uri(path);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let status = early_response(&request.body(()).unwrap()).map(|(status, _)| status);
            assert_eq!(status, expected, "{method} {path} {headers:?}");
        }
    }
}
