//! Makes connections to endpoints: TCP, the header of the PROXY protocol, TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::Endpoint;
use super::settings::{BackendTls, Settings};
use crate::proxy_protocol;
use crate::stream::Stream;

/// The longest time for TCP and for TLS, each. A request goes to another endpoint afterwards.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("the endpoint cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    #[error("TLS with the endpoint failed: {0}")]
    Tls(#[source] io::Error),
    #[error("the backend's TLS policy is invalid")]
    InvalidTls,
    #[error("HTTP with the endpoint failed: {0}")]
    Http(#[from] hyper::Error),
}

/// Connects to an endpoint and records whether that worked.
pub(crate) async fn connect_stream(
    endpoint: &Arc<Endpoint>,
    settings: &Settings,
    client: Client,
) -> Result<Stream, ConnectError> {
    if matches!(settings.tls, BackendTls::Invalid) {
        return Err(ConnectError::InvalidTls);
    }
    match open(endpoint.address, settings, client).await {
        Ok(stream) => {
            endpoint.succeeded();
            Ok(stream)
        }
        Err(error) => {
            endpoint.failed();
            Err(error)
        }
    }
}

async fn open(address: SocketAddr, settings: &Settings, client: Client) -> Result<Stream, ConnectError> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let mut tcp = connecting.map_err(|_| late()).and_then(|connected| connected).map_err(ConnectError::Unreachable)?;
    tcp.set_nodelay(true).map_err(ConnectError::Unreachable)?;
    if let Some(version) = settings.proxy_protocol {
        let header = proxy_protocol::header(version, client.source, client.destination);
        tcp.write_all(&header).await.map_err(ConnectError::Unreachable)?;
    }
    match &settings.tls {
        BackendTls::Plain => Ok(Stream::Tcp(tcp)),
        BackendTls::Tls { config, name } => {
            let handshake = TlsConnector::from(Arc::clone(config)).connect(name.clone(), tcp);
            let finished = timeout(CONNECT_TIMEOUT, handshake).await;
            let tls = finished.map_err(|_| late()).and_then(|tls| tls).map_err(ConnectError::Tls)?;
            Ok(Stream::ToServer(Box::new(tls)))
        }
        BackendTls::Invalid => Err(ConnectError::InvalidTls),
    }
}
