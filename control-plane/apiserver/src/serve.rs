//! The network edge: accept, TLS, HTTP/1 and HTTP/2, upgrades, compression, orderly shutdown.
//!
//! What a connection proves about its peer (a verified client certificate) is read here and nowhere else.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::authentication::Peer;
use crate::body::{Body, HttpBody, RequestBody};
use crate::error::Error;
use crate::server::Server;

/// Answers at least this big are compressed for clients that accept it.
const GZIP_THRESHOLD: usize = 128 * 1024;
/// How long a client may take for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take for the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a quiet HTTP/2 connection is asked whether it is still there.
const PING_PERIOD: Duration = Duration::from_secs(60);
/// How long connections may finish what they are doing at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Serves the API on `listener` until `shutdown`. The TLS configuration may be swapped while it runs.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        tls: Arc<ArcSwap<rustls::ServerConfig>>,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let connections = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let acceptor = tokio_rustls::TlsAcceptor::from(tls.load_full());
                    connections.spawn(Arc::clone(&self).connection(stream, acceptor, shutdown.clone()));
                }
                Err(e) => {
                    // Out of file descriptors, most likely: closing connections will free some.
                    tracing::warn!(error = %e, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // Watches would hold their connections open for ever.
        self.shut_down();
        connections.close();
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await;
        Ok(())
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        acceptor: tokio_rustls::TlsAcceptor,
        shutdown: CancellationToken,
    ) {
        let address = stream.peer_addr().ok();
        let _ = stream.set_nodelay(true);
        let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await else { return };
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let identity = self.client_certificates.identify(chain);
        let peer = Peer { identity, address };
        let server = Arc::clone(&self);
        let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let (server, peer) = (Arc::clone(&server), peer.clone());
            async move { Ok::<_, Infallible>(server.respond(request, peer).await) }
        });
        let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        // Pings find out about clients that are gone without a word, which would hold their watches for ever.
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_PERIOD);
        builder.http2().max_concurrent_streams(250).initial_stream_window_size(256 * 1024);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => {}
            () = shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }

    async fn respond(&self, request: http::Request<Incoming>, peer: Peer) -> http::Response<HttpBody> {
        let gzip = accepts_gzip(request.headers());
        let reply = self.handle(request.map(RequestBody::Incoming), peer).await;
        let (mut parts, body) = reply.into_parts();
        let body = match body {
            Body::Full(bytes)
                if gzip && bytes.len() >= GZIP_THRESHOLD && !parts.headers.contains_key(header::CONTENT_ENCODING) =>
            {
                parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                parts.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
                Body::Full(self::gzip(&bytes).into())
            }
            body => body,
        };
        http::Response::from_parts(parts, body.into_http())
    }
}

/// Whether the client takes gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let value = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(',').any(|e| e.trim().split(';').next() == Some("gzip"))
}

/// Compresses quickly rather than well.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(bytes.len() / 6), flate2::Compression::new(1));
    // Writing into a vector cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// The opposite of `gzip`, for what was compressed here.
pub fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let _ = flate2::read::GzDecoder::new(bytes).read_to_end(&mut out);
    out
}

/// A TLS configuration for the API: TLS 1.2 or later, HTTP/2 and HTTP/1.1, client certificates of `client_ca`
/// welcome and not required.
pub fn tls_config(certificate_pem: &str, key_pem: &str, client_ca_pem: &str) -> Result<rustls::ServerConfig, Error> {
    let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificate_pem.as_bytes()).collect::<Result<_, _>>().map_err(|e| tls(&e))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|e| tls(&e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
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
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
