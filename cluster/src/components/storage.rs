//! The node's own storage driver, `storage.corten.dev`: a plugin that the kubelet finds by its socket like any other; and
//! the controller loops that create, expand, snapshot and delete its volumes for the claims of this node.
//!
//! It runs in the node's process. A driver that fails does not end the node: pods with other volumes go on, and it is
//! started again.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use corten_client::{Client, Error, ListOptions};
use corten_controllers::NodeComponent;
use corten_snapshots::VolumeSnapshotClass;
use corten_snapshots::names::DEFAULT_CLASS;
use corten_storage_control::{
    Filling, Image, Increment, Local, Part, PeerIdentity, Peers, Receiving, ReplicaData, VolumeData,
};
use corten_storage_driver::{Config, Fence, Held, Holder, NAME, Role, Volumes};
use tokio_util::sync::CancellationToken;

use super::node::kubelet_root;
use crate::config::Node;
use crate::directories::Directories;
use crate::join::certificate;
use crate::tasks::Tasks;

/// The pause before a failed driver is started again.
const RETRY: Duration = Duration::from_secs(10);
/// The time between two looks for software that was installed on the node.
const SOFTWARE_POLL: Duration = Duration::from_secs(60);

/// The port at which a node serves the increments of its volumes to the nodes that have copies.
pub const REPLICA_PORT: u16 = 10254;

/// Starts the driver of a node and its loops.
pub fn start(node: &Node, client: Client, tasks: &mut Tasks) {
    let root = kubelet_root(node);
    let config = Config {
        node_name: node.name.clone(),
        pool: pool(&node.directories),
        socket: socket(&root),
        registration: Some(root.join("plugins_registry").join(format!("{NAME}-reg.sock"))),
        overcommit: node.storage.storage_overcommit.unwrap_or(1.0),
        volumes: Volumes::default(),
        fence: Some(Arc::new(LiveFence(client.clone()))),
    };
    let options = corten_storage_control::Options {
        node: Some(node.name.clone()),
        identity: format!("{}_corten", node.name),
        data: Some(Arc::new(Data(config.volumes.clone()))),
        replicas: Some((Arc::new(Data(config.volumes.clone())), peers(node))),
        roots: crate::files::trusted_roots(),
        ..corten_storage_control::Options::default()
    };
    let shutdown = tasks.shutdown();
    let class_client = client.clone();
    let socket = config.socket.clone();
    tasks.spawn(
        "storage controllers",
        async move { corten_storage_control::run(&socket, client, options, shutdown).await },
    );
    tasks.spawn("snapshot class", snapshot_class(pool(&node.directories), class_client, tasks.shutdown()));
    tasks.spawn("storage driver", drive(config, tasks.shutdown()));
}

/// Returns the way of a node to others: its storage component has a certificate of its own.
fn peers(node: &Node) -> Peers {
    let identity = PeerIdentity {
        certificate: certificate::component_path(&node.directories, NodeComponent::Storage),
        authority: node.directories.authority(),
        group: NodeComponent::Storage.group(),
    };
    Peers { identity, address: node.address, port: REPLICA_PORT }
}

/// Asks the API server which node holds a volume that has a copy.
struct LiveFence(Client);

impl Fence for LiveFence {
    fn holder<'a>(&'a self, name: &'a str) -> Held<'a> {
        Box::pin(async move {
            let holding = corten_storage_control::holder(&self.0, name).await?;
            Ok(Holder { node: holding.node, epoch: holding.epoch })
        })
    }
}

/// The data of the driver's volumes, for backups and for copies on other nodes.
struct Data(Volumes);

/// Returns the sentence of an error.
fn message(error: corten_storage_driver::Error) -> String {
    error.to_string()
}

impl ReplicaData for Data {
    fn part(&self, volume: &str) -> Result<Option<Part>, String> {
        let replica = self.0.replica(volume).map_err(message)?;
        Ok(replica.map(|replica| Part {
            is_primary: replica.role == Role::Primary,
            epoch: replica.epoch,
            generation: replica.generation,
        }))
    }

    fn all(&self) -> Result<Vec<Local>, String> {
        let all = self.0.replicas().map_err(message)?;
        Ok(all.into_iter().map(|(handle, name)| Local { handle, name }).collect())
    }

    fn increment(&self, volume: &str, base: Option<&File>) -> Result<Option<Increment>, String> {
        let Some(increment) = self.0.increment(volume, base).map_err(message)? else { return Ok(None) };
        let image = increment.image;
        let guard = Box::new(image.guard);
        Ok(Some(Increment { file: image.file, bytes: image.bytes, record: increment.record, guard }))
    }

    fn changed(&self, base: &File, current: &File, bytes: u64) -> Result<Option<BTreeSet<u64>>, String> {
        corten_storage_driver::changed_chunks(base, current, bytes).map_err(message)
    }

    fn receive(&self, record: &str, epoch: u64, generation: &str, changed: u64) -> Result<Receiving, String> {
        let received = self.0.receive(record, epoch, generation, changed).map_err(message)?;
        let file = received.file.try_clone().map_err(|error| error.to_string())?;
        let bytes = received.bytes;
        Ok(Receiving { file, bytes, commit: Box::new(move || received.commit().map_err(message)) })
    }

    fn promote(&self, volume: &str, epoch: u64) -> Result<(), String> {
        self.0.promote(volume, epoch).map_err(message)
    }

    fn fence(&self, volume: &str) -> Result<bool, String> {
        self.0.fence(volume).map_err(message)
    }

    fn demote(&self, volume: &str, epoch: u64) -> Result<(), String> {
        self.0.demote(volume, epoch, corten_meta::time::now()).map_err(message)
    }

    fn remove_copy(&self, volume: &str) -> Result<(), String> {
        self.0.remove_copy(volume).map_err(message)
    }

    fn forget(&self, volume: &str) -> Result<(), String> {
        self.0.forget(volume).map_err(message)
    }
}

impl VolumeData for Data {
    fn open(&self, volume: &str) -> Result<Image, String> {
        let image = self.0.open(volume).map_err(|error| error.to_string())?;
        Ok(Image {
            file: image.file,
            bytes: image.bytes,
            block: image.block,
            file_system: image.file_system.map(str::to_owned),
            guard: Box::new(image.guard),
        })
    }

    fn fill(&self, volume: &str) -> Result<Option<Filling>, String> {
        let Some(filling) = self.0.fill(volume).map_err(|error| error.to_string())? else { return Ok(None) };
        let file = filling.file.try_clone().map_err(|error| error.to_string())?;
        let commit = move |file_system: Option<&str>, bytes: u64| {
            filling.commit(file_system, bytes).map_err(|error| error.to_string())
        };
        Ok(Some(Filling { file, commit: Box::new(commit) }))
    }
}

/// Creates the default VolumeSnapshotClass of the driver, as soon as this node's pool can take snapshots and the kind is
/// served. A cluster with a class of the driver keeps it as it is.
async fn snapshot_class(pool: PathBuf, client: Client, shutdown: CancellationToken) -> Result<()> {
    loop {
        let root = pool.clone();
        let can = tokio::task::spawn_blocking(move || corten_storage_driver::takes_snapshots(&root)).await?;
        match can {
            true => match create_snapshot_class(&client).await {
                Ok(()) => break,
                Err(error) => tracing::debug!(%error, "no VolumeSnapshotClass yet"),
            },
            false => tracing::debug!("the storage pool takes no snapshots"),
        }
        let pause = if can { RETRY } else { SOFTWARE_POLL };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
    // A task of the node runs as long as the node.
    shutdown.cancelled().await;
    Ok(())
}

async fn create_snapshot_class(client: &Client) -> Result<(), Error> {
    let classes = client.list::<VolumeSnapshotClass>("", &ListOptions::default()).await?;
    if classes.items.iter().any(|class| class.driver == NAME) {
        return Ok(());
    }
    let mut class = VolumeSnapshotClass {
        driver: NAME.to_owned(),
        deletion_policy: "Delete".to_owned(),
        ..VolumeSnapshotClass::default()
    };
    class.metadata.name = Some("standard".to_owned());
    class.metadata.annotations = Some([(DEFAULT_CLASS.to_owned(), "true".to_owned())].into());
    match client.create(&class).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Returns the socket of the driver below the kubelet's directory.
fn socket(kubelet_root: &Path) -> PathBuf {
    kubelet_root.join("plugins").join(NAME).join("csi.sock")
}

fn pool(directories: &Directories) -> PathBuf {
    directories.data.join("storage")
}

/// Runs the driver until the shutdown.
async fn drive(config: Config, shutdown: CancellationToken) -> Result<()> {
    while let Err(error) = corten_storage_driver::run(config.clone(), shutdown.clone()).await {
        tracing::error!(%error, "the storage driver failed; it is started again");
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
    Ok(())
}

/// Unmounts the volumes of a node whose containers are gone, and its storage pool.
pub fn cleanup(directories: &Directories) -> Result<()> {
    Ok(corten_storage_driver::detach(&pool(directories))?)
}
