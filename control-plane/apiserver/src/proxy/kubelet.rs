//! The client of kubelets and other backends: connections over TLS or plain TCP.
//!
//! Invariant: a kubelet gets a request only after it proved to be its node's; no other server gets a request or a
//! client's byte under this server's own certificate.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::destination::Destinations;
use super::kubelet_identity::KubeletAuthorities;
use super::locate::{Backend, Via};
use crate::config::{Config, KubeletClient};
use crate::error::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The words of TLS for a certificate of another name.
const NOT_FOR_NAME: &str = "not valid for name";

/// A connection of either kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The clients of kubelets and of other backends.
pub struct Kubelets {
    destinations: Destinations,
    kubelet: ArcSwapOption<Client>,
    unverified: Arc<rustls::ClientConfig>,
}

/// This server's certificate for kubelets, and the authorities of kubelets.
struct Client {
    tls: Arc<rustls::ClientConfig>,
    authorities: KubeletAuthorities,
}

impl Client {
    fn new(config: &KubeletClient) -> Result<Client, Error> {
        Ok(Client { tls: Arc::new(client_config(config)?), authorities: KubeletAuthorities::new(config)? })
    }
}

impl Kubelets {
    pub fn new(config: &Config) -> Result<Kubelets, Error> {
        let client = config.kubelet.as_ref().map(Client::new).transpose()?;
        Ok(Kubelets {
            destinations: Destinations::new(config),
            kubelet: ArcSwapOption::from(client.map(Arc::new)),
            unverified: Arc::new(crate::outbound::unverified_config(None)?),
        })
    }

    /// Replaces the certificate for kubelets.
    pub fn renew(&self, config: &KubeletClient) -> Result<(), Error> {
        self.kubelet.store(Some(Arc::new(Client::new(config)?)));
        Ok(())
    }

    /// Connects to a backend; a kubelet must prove that it is the node's. The error is in Go's words.
    pub async fn connect(&self, backend: &Backend) -> Result<Box<dyn Stream>, String> {
        match &backend.via {
            Via::Plain => Ok(Box::new(self.dial(backend).await?)),
            Via::Tls => Ok(Box::new(self.handshake(Arc::clone(&self.unverified), backend, &backend.host).await?)),
            Via::Kubelet { node } => {
                let client = self.kubelet.load_full();
                let client = client.ok_or_else(|| "this server has no kubelet client certificate".to_owned())?;
                let tls = || Arc::clone(&client.tls);
                let stream = match self.handshake(tls(), backend, &backend.host).await {
                    // The node has another address than when it joined; the name that it joined with is its own.
                    Err(why) if why.contains(NOT_FOR_NAME) => self.handshake(tls(), backend, node).await?,
                    stream => stream?,
                };
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                let shown = shown.ok_or_else(|| "tls: no certificate was shown".to_owned())?;
                client.authorities.check(shown, node).map_err(|why| format!("tls: {why}"))?;
                Ok(Box::new(stream))
            }
        }
    }

    async fn handshake(
        &self,
        tls: Arc<rustls::ClientConfig>,
        backend: &Backend,
        name: &str,
    ) -> Result<TlsStream<TcpStream>, String> {
        let stream = self.dial(backend).await?;
        let name = ServerName::try_from(name.to_owned()).map_err(|e| e.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(tls);
        tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name, stream))
            .await
            .map_err(|_| "net/http: TLS handshake timeout".to_owned())?
            .map_err(|e| format!("tls: {e}"))
    }

    async fn dial(&self, backend: &Backend) -> Result<TcpStream, String> {
        let host = backend.host.as_str();
        let port = backend.port;
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let failed = |why: &str| format!("dial tcp {address}: {why}");
        let connecting = async {
            let addresses = self.destinations.resolve(host, port).await.map_err(|why| failed(&why))?;
            TcpStream::connect(addresses.as_slice()).await.map_err(|e| failed(&in_go_words(&e)))
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| failed("i/o timeout"))??;
        let ends = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
        let (local, peer) = ends.map_err(|e| failed(&in_go_words(&e)))?;
        if self.destinations.is_own(local, peer) {
            return Err(failed("address not allowed"));
        }
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// Returns the error of a connection in Go's words.
fn in_go_words(error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        ErrorKind::ConnectionReset => "connect: connection reset by peer".to_owned(),
        ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
        _ => error.to_string(),
    }
}

fn client_config(config: &KubeletClient) -> Result<rustls::ClientConfig, Error> {
    let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
    let mut roots = rustls::RootCertStore::empty();
    let retired = config.retired.as_ref().map(|retired| retired.ca.as_str()).unwrap_or_default();
    for bundle in [config.ca.as_str(), retired] {
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.map_err(|e| tls(&e))?).map_err(|e| tls(&e))?;
        }
    }
    let chain = CertificateDer::pem_slice_iter(config.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| tls(&e))?;
    let key = PrivateKeyDer::from_pem_slice(config.key.as_bytes()).map_err(|e| tls(&e))?;
    let mut client = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| tls(&e))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|e| tls(&e))?;
    // Upgrades exist in HTTP/1.1 only.
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(client)
}
