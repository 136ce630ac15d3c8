//! The sockets of a driver: that of its services, and that by which the kubelet finds it.

use std::io;
use std::path::Path;
use std::task::{Context, Poll};

use corten_plugins::registration::registration_server::{Registration as RegistrationService, RegistrationServer};
use corten_plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::error::{During, Error, Result};
use crate::targets::remove_file;

/// The most calls of one connection that run at a time.
pub const MOST_CALLS: usize = 64;
/// The bytes that a connection inside this process holds in each direction.
const PIPE: usize = 64 << 10;

/// Listens on a unix socket that only root may open.
pub fn listen(path: &Path) -> Result<UnixListenerStream> {
    use std::os::unix::fs::PermissionsExt;
    let action = || format!("listen on {}", path.display());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).during(action)?;
    }
    remove_file(path)?;
    let listener = UnixListener::bind(path).during(action)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).during(action)?;
    Ok(UnixListenerStream::new(listener))
}

/// Returns the error of a socket that failed.
pub fn failed(error: &tonic::transport::Error) -> Error {
    Error::Internal(format!("the driver's socket failed: {error}"))
}

/// Connections inside this process: a channel, and the server's side of it.
pub struct InProcess {
    pub channel: Channel,
    pub incoming: ReceiverStream<io::Result<DuplexStream>>,
}

impl InProcess {
    /// Returns a channel that connects at its first call.
    pub fn new() -> InProcess {
        let (server, accepted) = mpsc::channel(1);
        let endpoint = Endpoint::from_static("http://in-process");
        InProcess {
            channel: endpoint.connect_with_connector_lazy(Connector { server }),
            incoming: ReceiverStream::new(accepted),
        }
    }
}

/// Connects by handing one side of a pipe to the server.
#[derive(Clone)]
struct Connector {
    server: mpsc::Sender<io::Result<DuplexStream>>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<DuplexStream>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let server = self.server.clone();
        Box::pin(async move {
            let (near, far) = tokio::io::duplex(PIPE);
            server.send(Ok(far)).await.map_err(io::Error::other)?;
            Ok(TokioIo::new(near))
        })
    }
}

impl Default for InProcess {
    fn default() -> InProcess {
        InProcess::new()
    }
}

/// The registration of a driver with the kubelet.
pub struct Registration {
    registrar: Registrar,
    /// The socket in the directory that the kubelet watches; none without a kubelet.
    listener: Option<UnixListenerStream>,
}

impl Registration {
    /// Listens on the socket of the registration, if there is a kubelet.
    pub fn open(name: &str, socket: &Path, registration: Option<&Path>) -> Result<Registration> {
        let registrar = Registrar { name: name.to_owned(), endpoint: socket.display().to_string() };
        Ok(Registration { registrar, listener: registration.map(listen).transpose()? })
    }

    /// Answers the kubelet until the shutdown.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<()> {
        let Some(listener) = self.listener else { return Ok(()) };
        let server = Server::builder().add_service(RegistrationServer::new(self.registrar));
        let served = server.serve_with_incoming_shutdown(listener, shutdown.cancelled_owned()).await;
        served.map_err(|error| failed(&error))
    }
}

struct Registrar {
    name: String,
    endpoint: String,
}

#[tonic::async_trait]
impl RegistrationService for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.name.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if !status.plugin_registered {
            warn!(driver = self.name, error = %status.error, "storage driver not registered");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
