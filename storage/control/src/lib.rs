//! The controller loops of one storage driver: upstream's sidecars external-provisioner, external-attacher,
//! external-resizer and external-snapshotter in one library, for any CSI driver with a socket.
//!
//! [`run`] asks the driver for its capabilities and runs the loops that they call for: [`provision`] and [`reclaim`],
//! [`attach`], [`resize`] and [`modify`], [`snapshot`] and [`group_snapshot`], [`capacity`]. Each loop decides by pure
//! functions, and calls the driver in one place. A driver in this process gives its [`VolumeData`], and its volumes are
//! backed up and restored ([`backup`]), and have copies on other nodes ([`replica`]).
//!
//! Invariants: every call of the driver has a deadline. A call whose outcome is not known is repeated with the same
//! arguments until it is, so that nothing is left behind on the storage system. Messages of the driver are shortened
//! before users see them.

mod attach;
mod backup;
mod capacity;
mod detached;
mod driver;
pub mod fuzz;
mod group_snapshot;
mod modify;
mod provision;
mod reclaim;
mod replica;
mod resize;
mod secrets;
mod snapshot;
#[cfg(test)]
mod tests;
mod topology;
mod worker;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Client, LeaderConfig, LeaderElector};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use driver::Driver;
use worker::Loop;
use world::World;

pub use backup::{Filling, Image, VolumeData};
pub use replica::{Holding, Increment, Local, Part, PeerIdentity, Peers, Receiving, ReplicaData, holder};

/// The pause before a driver that does not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Socket(#[from] corten_plugins::Error),
}

/// The settings of the loops.
#[derive(Clone)]
pub struct Options {
    /// The node of a driver whose volumes lie on its node: the loops of each node care for the volumes of that node, and
    /// need no leader. None for a driver that serves the whole cluster from one place.
    pub node: Option<String>,
    /// The identity of this process in the election of a leader.
    pub identity: String,
    /// The namespace of Leases and CSIStorageCapacities.
    pub namespace: String,
    /// The deadline of one call of the driver.
    pub timeout: Duration,
    /// The number of objects that a loop handles at once.
    pub workers: usize,
    /// The time between two questions for the driver's free capacity.
    pub capacity_poll: Duration,
    /// The file system of volumes whose class names none.
    pub default_fs_type: String,
    /// Whether the driver learns the names of claims, volumes and snapshots by parameters, as by `--extra-create-metadata`
    /// of upstream's sidecars.
    pub extra_create_metadata: bool,
    /// The data of the driver's volumes, by which they are backed up and restored; none of a driver elsewhere.
    pub data: Option<Arc<dyn VolumeData>>,
    /// The driver's part in volumes that have a copy on another node, and the way to that; none of a driver elsewhere.
    pub replicas: Option<(Arc<dyn ReplicaData>, Peers)>,
    /// The CAs that repositories of volume backups are verified by, in PEM.
    pub roots: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            node: None,
            identity: String::new(),
            namespace: "kube-system".to_owned(),
            timeout: Duration::from_secs(60),
            workers: 10,
            capacity_poll: Duration::from_secs(60),
            default_fs_type: String::new(),
            extra_create_metadata: false,
            data: None,
            replicas: None,
            roots: String::new(),
        }
    }
}

/// Runs the loops of the driver that listens on `socket` until shutdown. Waits for the driver if it is not there yet.
pub async fn run(socket: &Path, client: Client, options: Options, shutdown: CancellationToken) -> Result<(), Error> {
    let channel = corten_plugins::connect_lazy(socket)?;
    run_on(channel, client, options, shutdown).await;
    Ok(())
}

/// Runs the loops of the driver behind a channel until shutdown. Waits for the driver if it is not there yet.
pub async fn run_on(channel: Channel, client: Client, options: Options, shutdown: CancellationToken) {
    let Some(driver) = connected(channel, &options, &shutdown).await else { return };
    tracing::info!(driver = driver.name, node = options.node, "the loops of the storage driver begin");
    let driver = Arc::new(driver);
    let options = Arc::new(options);
    if options.node.is_some() {
        lead(driver, client, options, shutdown).await;
        return;
    }
    while !shutdown.is_cancelled() {
        let name = format!("external-storage-{}", driver.name.replace(['/', '_'], "-").to_lowercase());
        let lease = LeaderConfig::new(&options.namespace, name, &options.identity);
        let elector = LeaderElector::new(client.clone(), lease);
        let leading = |token| lead(driver.clone(), client.clone(), options.clone(), token);
        elector.run(shutdown.clone(), leading).await;
    }
}

/// Asks the driver for its name and capabilities until it answers; none at shutdown.
async fn connected(channel: Channel, options: &Options, shutdown: &CancellationToken) -> Option<Driver> {
    loop {
        match Driver::open(channel.clone(), options.timeout).await {
            Ok(driver) => return Some(driver),
            Err(error) => tracing::info!(%error, "the storage driver does not answer yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = shutdown.cancelled() => return None,
        }
    }
}

/// Runs the loops that the capabilities of the driver call for.
async fn lead(driver: Arc<Driver>, client: Client, options: Arc<Options>, shutdown: CancellationToken) {
    let world = Arc::new(World::open(driver, client, options, &shutdown));
    let mut tasks = JoinSet::new();
    for one in loops(&world) {
        tasks.spawn(worker::run(one, world.clone(), shutdown.clone()));
    }
    if world.driver.has_capacity() {
        tasks.spawn(capacity::run(world.clone(), shutdown.clone()));
    }
    shutdown.cancelled().await;
    while tasks.join_next().await.is_some() {}
}

fn loops(world: &Arc<World>) -> Vec<Arc<dyn Loop>> {
    let driver = &world.driver;
    let mut loops: Vec<Arc<dyn Loop>> = Vec::new();
    if driver.creates_volumes() {
        loops.push(Arc::new(provision::Provisioner::new(world.clone())));
        loops.push(Arc::new(reclaim::Reclaimer::new(world.clone())));
    }
    // A volume of one node is not attached; without the loop its attachment would wait for ever.
    loops.push(Arc::new(attach::Attacher::new(world.clone())));
    if driver.publishes_volumes() {
        loops.push(Arc::new(detached::Detached::new(world.clone())));
    }
    if driver.expands_volumes() {
        loops.push(Arc::new(resize::Resizer::new(world.clone())));
    }
    if driver.modifies_volumes() {
        loops.push(Arc::new(modify::Modifier::new(world.clone())));
    }
    if driver.takes_snapshots() {
        loops.push(Arc::new(snapshot::Snapshotter::new(world.clone())));
    }
    if driver.takes_group_snapshots() {
        loops.push(Arc::new(group_snapshot::GroupSnapshotter::new(world.clone())));
    }
    if let (Some(data), Some(node)) = (&world.options.data, &world.options.node) {
        loops.push(Arc::new(backup::Backups::new(world.clone(), data.clone(), node.clone())));
        loops.push(Arc::new(backup::Repositories::new(world.clone(), node.clone())));
    }
    if let (Some((data, peers)), Some(node)) = (&world.options.replicas, &world.options.node) {
        let replicas = replica::Replicas::new(world.clone(), data.clone(), node.clone(), peers.clone());
        loops.push(Arc::new(replicas));
    }
    loops
}
