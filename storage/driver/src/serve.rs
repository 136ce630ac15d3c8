//! Serves the driver on its sockets, and trims its volumes once a day.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corten_plugins::csi::controller_server::ControllerServer;
use corten_plugins::csi::group_controller_server::GroupControllerServer;
use corten_plugins::csi::identity_server::IdentityServer;
use corten_plugins::csi::node_server::NodeServer;
use corten_plugins::csi::snapshot_metadata_server::SnapshotMetadataServer;
use corten_storage_plugin::error::{Error, Result};
use corten_storage_plugin::sockets::{MOST_CALLS, Registration, failed, listen};
use corten_storage_plugin::targets::remove_file;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tracing::warn;

use crate::data::Volumes;
use crate::identity::NAME;
use crate::roles::Fence;
use crate::service::Driver;
use crate::storage::Storage;

/// The time between two looks for pods whose I/O must be limited.
const LIMIT_INTERVAL: Duration = Duration::from_secs(5);
const TRIM_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// The settings of the driver.
#[derive(Clone)]
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
    /// Knows which node holds a volume that has a copy; without it no such volume is used.
    pub fence: Option<Arc<dyn Fence>>,
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
    let driver = Driver { storage, node_name: config.node_name.as_str().into(), fence: config.fence.clone() };
    let listener = listen(&config.socket)?;
    let registration = Registration::open(NAME, &config.socket, config.registration.as_deref())?;
    let serving = Server::builder()
        .concurrency_limit_per_connection(MOST_CALLS)
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(ControllerServer::new(driver.clone()))
        .add_service(GroupControllerServer::new(driver.clone()))
        .add_service(SnapshotMetadataServer::new(driver.clone()))
        .add_service(NodeServer::new(driver.clone()))
        .serve_with_incoming_shutdown(listener, shutdown.clone().cancelled_owned());
    let served = tokio::try_join!(
        async { serving.await.map_err(|error| failed(&error)) },
        registration.serve(shutdown.clone()),
        limit(driver.clone(), shutdown.clone()),
        trim(driver, shutdown),
    );
    config.volumes.set(None);
    for path in [Some(&config.socket), config.registration.as_ref()].into_iter().flatten() {
        remove_file(path)?;
    }
    served.map(drop)
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
