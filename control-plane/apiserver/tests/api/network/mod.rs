//! The API server of `server`, served over TLS on a port of this machine, and raw clients of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::WantsClientCert;
use rustls::{ClientConfig, ConfigBuilder};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::server::TestServer;

/// The time limit of all steps; only a hang takes this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server that listens; it stops when this is dropped.
pub struct Listening {
    pub server: TestServer,
    pub address: SocketAddr,
    ca: String,
    admin: (String, String),
    shutdown: CancellationToken,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn issue(issuer: &Issuer<'_, KeyPair>, name: &str, group: &str, names: Vec<String>) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

impl Listening {
    pub async fn start() -> Listening {
        Listening::with(crate::server::config()).await
    }

    /// Starts a server with other settings.
    pub async fn with(config: corten_apiserver::Config) -> Listening {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::from_ca_cert_pem(&ca, key).unwrap();
        let (certificate, key) = issue(&issuer, "kube-apiserver", "", vec!["127.0.0.1".to_owned()]);
        let admin = issue(&issuer, "admin", "system:masters", Vec::new());
        let tls = corten_apiserver::tls_config(&certificate, &key, &ca).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let trusting = corten_apiserver::Config { client_ca: ca.clone(), ..config };
        let server = TestServer::with(trusting).await;
        let shutdown = CancellationToken::new();
        let serving = Arc::clone(&server.server);
        tokio::spawn(serving.serve(listener, Arc::new(ArcSwap::from_pointee(tls)), shutdown.clone()));
        Listening { server, address, ca, admin, shutdown }
    }

    /// Begins to stop the server.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }

    /// Opens a TLS connection as an administrator, with this protocol.
    pub async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        let chain = vec![CertificateDer::from_pem_slice(self.admin.0.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.admin.1.as_bytes()).unwrap();
        self.connect_as(protocol, |config| config.with_client_auth_cert(chain, key).unwrap()).await
    }

    /// Opens a TLS connection without a client certificate, with this protocol.
    pub async fn connect_unknown(&self, protocol: &str) -> TlsStream<TcpStream> {
        self.connect_as(protocol, |config| config.with_no_client_auth()).await
    }

    async fn connect_as(
        &self,
        protocol: &str,
        identify: impl FnOnce(ConfigBuilder<ClientConfig, WantsClientCert>) -> ClientConfig,
    ) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = identify(builder.unwrap().with_root_certificates(roots));
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap()
    }

    /// Opens an HTTP/2 connection as an administrator.
    pub async fn http2(&self) -> http2::SendRequest<Full<Bytes>> {
        let stream = self.connect("h2").await;
        let (sender, connection) =
            http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub fn request(&self, method: &str, path: &str, body: Bytes) -> http::Request<Full<Bytes>> {
        let uri = format!("https://{}{path}", self.address);
        let request = http::Request::builder().method(method).uri(uri).header("content-type", "application/json");
        request.body(Full::new(body)).unwrap()
    }
}

/// Reads until `enough` or the end.
pub async fn read_until(stream: &mut TlsStream<TcpStream>, enough: impl Fn(&str) -> bool) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 16 * 1024];
    let reading = async {
        while !enough(&String::from_utf8_lossy(&text)) {
            match stream.read(&mut piece).await {
                Ok(0) | Err(_) => break,
                Ok(read) => text.extend_from_slice(&piece[..read]),
            }
        }
    };
    // The time may be paused and then stands still here: the test runner finds a hang.
    reading.await;
    String::from_utf8_lossy(&text).into_owned()
}
