//! Serves the driver on its sockets, and trims its volumes once a day.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corten_plugins::csi::controller_server::ControllerServer;
use corten_plugins::csi::group_controller_server::GroupControllerServer;
use corten_plugins::csi::identity_server::IdentityServer;
use corten_plugins::csi::node_server::NodeServer;
use corten_plugins::registration::registration_server::{Registration, RegistrationServer};
use corten_plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response};
use tracing::warn;

use crate::data::Volumes;
use crate::error::{During, Error, Result};
use crate::identity::NAME;
use crate::record::remove_file;
use crate::service::{Answer, Driver};
use crate::storage::Storage;

/// The time between two looks for pods whose I/O must be limited.
const LIMIT_INTERVAL: Duration = Duration::from_secs(5);
const TRIM_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// The calls of one connection that run at a time.
const MOST_CALLS: usize = 64;

/// The settings of the driver.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// The directory of the pool and of all records.
    pub pool: PathBuf,
    /// The socket of the CSI services.
    pub socket: PathBuf,
    /// The socket of the registration, in the directory that the kubelet watches; none without a kubelet.
    pub registration: Option<PathBuf>,
    /// How much more than there is may be promised to volumes; 1 promises nothing twice.
    pub overcommit: f64,
    /// The handle by which this process reaches the data of volumes while the driver runs.
    pub volumes: Volumes,
}

/// Runs the driver until the shutdown.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<()> {
    if !(1.0..=100.0).contains(&config.overcommit) {
        return Err(Error::Invalid("the ratio of over-commitment is between 1 and 100".to_owned()));
    }
    let root = config.pool.clone();
    let overcommit = config.overcommit;
    let opened = tokio::task::spawn_blocking(move || Storage::open(&root, overcommit)).await;
    let storage = opened.map_err(|error| Error::Internal(format!("the storage cannot be opened: {error}")))??;
    let storage = Arc::new(storage);
    config.volumes.set(Some(storage.clone()));
    let driver = Driver { storage, node_name: config.node_name.as_str().into() };
    let listener = listen(&config.socket)?;
    let registrar = match &config.registration {
        Some(path) => Some((listen(path)?, Registrar { endpoint: config.socket.display().to_string() })),
        None => None,
    };
    let serving = Server::builder()
        .concurrency_limit_per_connection(MOST_CALLS)
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(GroupControllerServer::new(driver.clone()))
        .add_service(NodeServer::new(driver.clone()))
        .serve_with_incoming_shutdown(listener, shutdown.clone().cancelled_owned());
    let served = tokio::try_join!(
        async { serving.await.map_err(|error| failed(&error)) },
        register(registrar, shutdown.clone()),
        limit(driver.clone(), shutdown.clone()),
        trim(driver, shutdown),
    );
    config.volumes.set(None);
    for path in [Some(&config.socket), config.registration.as_ref()].into_iter().flatten() {
        remove_file(path)?;
    }
    served.map(drop)
}

fn failed(error: &tonic::transport::Error) -> Error {
    Error::Internal(format!("the driver's socket failed: {error}"))
}

/// Listens on a unix socket that only root may open.
fn listen(path: &Path) -> Result<UnixListenerStream> {
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

/// The registration of the driver with the kubelet.
struct Registrar {
    endpoint: String,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        let status = request.into_inner();
        if !status.plugin_registered {
            warn!(error = %status.error, "storage driver not registered");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

async fn register(registrar: Option<(UnixListenerStream, Registrar)>, shutdown: CancellationToken) -> Result<()> {
    let Some((listener, registrar)) = registrar else { return Ok(()) };
    let server = Server::builder().add_service(RegistrationServer::new(registrar));
    let served = server.serve_with_incoming_shutdown(listener, shutdown.cancelled_owned()).await;
    served.map_err(|error| failed(&error))
}

/// Enforces the limits of volumes for pods that come and go.
async fn limit(driver: Driver, shutdown: CancellationToken) -> Result<()> {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(LIMIT_INTERVAL) => {}
        }
        if let Err(error) = driver.call(|storage| storage.enforce_limits()).await {
            warn!(%error, "the I/O of volumes is not limited");
        }
    }
}

/// Trims all volumes once a day. The first time is a day after the start, so that a restart costs nothing.
async fn trim(driver: Driver, shutdown: CancellationToken) -> Result<()> {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(TRIM_INTERVAL) => {}
        }
        if let Err(error) = driver.call(|storage| storage.trim_all()).await {
            warn!(%error, "volumes not trimmed");
        }
    }
}
