//! The client side towards kubelets and other backends: connections over TLS or plain TCP.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::config::KubeletClient;
use crate::error::Error;
use crate::proxy::locate::Via;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection of either kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How to reach kubelets and what else is proxied.
pub struct Kubelets {
    kubelet: ArcSwapOption<rustls::ClientConfig>,
    unverified: Arc<rustls::ClientConfig>,
}

impl Kubelets {
    pub fn new(config: Option<&KubeletClient>) -> Result<Kubelets, Error> {
        Ok(Kubelets {
            kubelet: ArcSwapOption::from(config.map(client_config).transpose()?.map(Arc::new)),
            unverified: Arc::new(crate::outbound::unverified_config(None)?),
        })
    }

    /// Shows kubelets this certificate from now on.
    pub fn renew(&self, config: &KubeletClient) -> Result<(), Error> {
        self.kubelet.store(Some(Arc::new(client_config(config)?)));
        Ok(())
    }

    /// Connects to a backend; a kubelet must prove that it is the host. Why it cannot be reached is told in Go's words.
    pub async fn connect(&self, via: Via, host: &str, port: u16) -> Result<Box<dyn Stream>, String> {
        let tls = match via {
            Via::Plain => return Ok(Box::new(dial(host, port).await?)),
            Via::Tls => Arc::clone(&self.unverified),
            Via::Kubelet => {
                self.kubelet.load_full().ok_or_else(|| "this server has no kubelet client certificate".to_owned())?
            }
        };
        let stream = dial(host, port).await?;
        let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(tls);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connector.connect(name, stream))
            .await
            .map_err(|_| "net/http: TLS handshake timeout".to_owned())?
            .map_err(|e| format!("tls: {e}"))?;
        Ok(Box::new(stream))
    }
}

async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let failed = |why: &str| format!("dial tcp {address}: {why}");
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)))
        .await
        .map_err(|_| failed("i/o timeout"))?
        .map_err(|e| failed(&in_go_words(&e)))?;
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Why a connection could not be made.
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
    for certificate in CertificateDer::pem_slice_iter(config.ca.as_bytes()) {
        roots.add(certificate.map_err(|e| tls(&e))?).map_err(|e| tls(&e))?;
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
