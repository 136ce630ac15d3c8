//! Connections to the members of etcd: TCP, TLS with a client certificate, or a unix socket.
//!
//! A channel dials at its first call and again after every disconnect. The error of the last dial is kept, because the
//! gRPC library reports it as "transport error" alone.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::config::Tls;
use crate::Error;

/// The time of one dial. A member that does not answer is passed over soon; the start waits longer, by dialling again.
const DIAL: Duration = Duration::from_secs(3);
/// The interval of HTTP/2 pings on a connection, and the time for their answers; upstream's.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The error of the last dial of a member.
#[derive(Clone, Debug, Default)]
pub(super) struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, error: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

/// The TLS configuration of the next connections, which all members share. It may be replaced at any time: a renewed
/// certificate is used by the next dial, and connections that are open stay.
#[derive(Clone, Default)]
pub(super) struct SharedTls(Arc<RwLock<Option<Arc<rustls::ClientConfig>>>>);

impl SharedTls {
    /// Makes the configuration of these PEM strings; without them only plain endpoints can be dialled.
    pub fn new(files: Option<&Tls>) -> Result<SharedTls, Error> {
        let shared = SharedTls::default();
        if let Some(files) = files {
            shared.set(files)?;
        }
        Ok(shared)
    }

    /// Replaces the configuration. Invalid PEM strings leave it as it was.
    pub fn set(&self, files: &Tls) -> Result<(), Error> {
        let config = tls(files)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
        Ok(())
    }

    fn get(&self) -> Option<Arc<rustls::ClientConfig>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The TLS of one member's connections.
#[derive(Clone)]
struct MemberTls {
    configuration: SharedTls,
    server_name: ServerName<'static>,
}

/// The address of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Makes the connections of one member.
#[derive(Clone)]
struct Dialer {
    address: Address,
    tls: Option<MemberTls>,
    last: LastError,
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

impl Dialer {
    async fn dial(self) -> io::Result<TokioIo<Box<dyn Socket>>> {
        let dialled = self.connect().await;
        self.last.set(dialled.as_ref().err().map(ToString::to_string));
        dialled.map(TokioIo::new)
    }

    async fn connect(&self) -> io::Result<Box<dyn Socket>> {
        let (host, port) = match &self.address {
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => (host.as_str(), *port),
        };
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let configuration = tls.configuration.get().ok_or_else(|| io::Error::other("there is no TLS configuration"))?;
        Ok(Box::new(TlsConnector::from(configuration).connect(tls.server_name.clone(), socket).await?))
    }
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Box<dyn Socket>>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        self.clone().dial().boxed()
    }
}

/// Makes the channel of the member at `url`.
pub(super) fn channel(url: &str, tls: &SharedTls) -> Result<(Channel, LastError), Error> {
    let invalid = |why: &str| Error::Unsuitable { reason: format!("the etcd endpoint {url} is invalid: {why}").into() };
    let (address, is_tls) = parse(url).map_err(|why| invalid(&why))?;
    let tls = match (&address, is_tls, tls.get()) {
        (Address::Tcp { host, .. }, true, Some(_)) => {
            let name = ServerName::try_from(host.clone()).map_err(|_| invalid("its host is no name and no address"))?;
            Some(MemberTls { configuration: tls.clone(), server_name: name })
        }
        (_, true, _) => return Err(invalid("https needs the CA of the members (--etcd-cafile)")),
        _ => None,
    };
    let last = LastError::default();
    let dialer = Dialer { address, tls, last: last.clone() };
    // The dialer knows the address; the endpoint only needs an authority.
    let channel = Endpoint::from_static("http://etcd")
        .connect_timeout(DIAL)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .http2_adaptive_window(true)
        .connect_with_connector_lazy(dialer);
    Ok((channel, last))
}

/// Returns the address of a URL, and whether it is one of TLS.
fn parse(url: &str) -> Result<(Address, bool), String> {
    if let Some(path) = url.strip_prefix("unix://") {
        return Ok((Address::Unix(path.into()), false));
    }
    let uri: Uri = url.parse().map_err(|_| "it is no URL".to_owned())?;
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err("its scheme is not https, http or unix".to_owned()),
    };
    let host = uri.host().ok_or("it has no host")?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(2379);
    Ok((Address::Tcp { host, port }, is_tls))
}

/// Makes the configuration of TLS connections.
fn tls(tls: &Tls) -> Result<Arc<rustls::ClientConfig>, Error> {
    let invalid =
        |why: String| Error::Unsuitable { reason: format!("the TLS files of etcd are invalid: {why}").into() };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(tls.ca.as_bytes()) {
        let certificate = certificate.map_err(|e| invalid(format!("the CA bundle: {e}")))?;
        roots.add(certificate).map_err(|e| invalid(format!("the CA bundle: {e}")))?;
    }
    if roots.is_empty() {
        return Err(invalid("the CA bundle has no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| invalid(e.to_string()))?
        .with_root_certificates(roots);
    let mut config = if tls.certificate.is_empty() {
        builder.with_no_client_auth()
    } else {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(tls.certificate.as_bytes()).collect();
        let chain = chain.map_err(|e| invalid(format!("the client certificate: {e}")))?;
        let key = PrivateKeyDer::from_pem_slice(tls.key.as_bytes()).map_err(|e| invalid(format!("the key: {e}")))?;
        builder.with_client_auth_cert(chain, key).map_err(|e| invalid(e.to_string()))?
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_host_and_a_port() {
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        for (url, expected) in [
            ("https://10.0.0.1:2379", Ok((tcp("10.0.0.1", 2379), true))),
            ("http://etcd", Ok((tcp("etcd", 2379), false))),
            ("https://[fd00::1]:1234", Ok((tcp("fd00::1", 1234), true))),
            ("unix:///run/etcd.sock", Ok((Address::Unix("/run/etcd.sock".into()), false))),
            ("ftp://x", Err(())),
            ("not a url", Err(())),
        ] {
            assert_eq!(parse(url).map_err(|_| ()), expected, "{url}");
        }
    }
}
