//! The node's own storage driver, `storage.corten.dev`: a plugin that the kubelet finds by its socket like any other; and
//! the controller loops that create, expand, snapshot and delete its volumes for the claims of this node.
//!
//! It runs in the node's process. A driver that fails does not end the node: pods with other volumes go on, and it is
//! started again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use corten_client::Client;
use corten_storage_driver::{Config, NAME};
use tokio_util::sync::CancellationToken;

use super::node::kubelet_root;
use crate::config::Node;
use crate::directories::Directories;
use crate::tasks::Tasks;

/// The pause before a failed driver is started again.
const RETRY: Duration = Duration::from_secs(10);

/// Starts the driver of a node and its loops.
pub fn start(node: &Node, client: Client, tasks: &mut Tasks) {
    let root = kubelet_root(node);
    let config = Config {
        node_name: node.name.clone(),
        pool: pool(&node.directories),
        socket: socket(&root),
        registration: Some(root.join("plugins_registry").join(format!("{NAME}-reg.sock"))),
        overcommit: node.storage.storage_overcommit.unwrap_or(1.0),
    };
    let options = corten_storage_control::Options {
        node: Some(node.name.clone()),
        identity: format!("{}_corten", node.name),
        ..corten_storage_control::Options::default()
    };
    let shutdown = tasks.shutdown();
    let socket = config.socket.clone();
    tasks.spawn(
        "storage controllers",
        async move { corten_storage_control::run(&socket, client, options, shutdown).await },
    );
    tasks.spawn("storage driver", drive(config, tasks.shutdown()));
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
