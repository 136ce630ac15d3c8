//! Connections to members: TCP and TLS with a client certificate, under gRPC.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use crate::Error;

/// The longest time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The authority of members, and a certificate that they accept, in PEM.
#[derive(Clone)]
pub struct Credentials {
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

impl Credentials {
    /// Returns the TLS settings of a client of members.
    pub(crate) fn tls(&self) -> Result<Arc<ClientConfig>, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Credentials(error.to_string());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authority.as_bytes()) {
            let certificate = certificate.map_err(|error| failed(&error))?;
            roots.add(certificate).map_err(|error| failed(&error))?;
        }
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let chain = chain.map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| failed(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Connects to the member at a URL `https://host:port`.
pub async fn connect(url: &str, tls: &Arc<ClientConfig>) -> Result<Channel, String> {
    let origin: http::Uri = url.parse().map_err(|_| format!("{url} is not a URL"))?;
    let authority = origin.authority().ok_or_else(|| format!("{url} names no host"))?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(|_| format!("{url} names no host"))?;
    let address = authority.as_str().to_owned();
    // TLS is the connector's, so that for the channel the connection is a plain one.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    let endpoint = endpoint.origin(origin).connect_timeout(CONNECT_TIMEOUT).timeout(REQUEST_TIMEOUT);
    let connector = Connector { address, name, tls: TlsConnector::from(Arc::clone(tls)) };
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| format!("{url}: {}", innermost(&error)))
}

/// Returns the message of an error's last cause, which names the reason.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Makes the connections of one channel.
struct Connector {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl tonic::codegen::Service<http::Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let address = self.address.clone();
        let name = self.name.clone();
        let tls = self.tls.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(tls.connect(name, stream).await?))
        })
    }
}
