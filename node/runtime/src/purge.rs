//! The removal of everything that the runtime made on a node, for `corten down --purge`.
//!
//! Works without a daemon, from the records on disk, and may be repeated.

use std::sync::Arc;

use crate::daemon::Daemon;
use crate::network::PodNetwork;
use crate::sandbox::namespaces;
use crate::{Config, Error};

/// Kills every container of this runtime, disconnects every sandbox, and removes all files. The daemon must not be
/// running.
pub async fn purge(config: &Config, network: Arc<dyn PodNetwork>) -> Result<(), Error> {
    let daemon = Daemon::load(config, network).await?;
    for sandbox in daemon.all_sandboxes() {
        if let Err(error) = daemon.remove_sandbox(&sandbox.id).await {
            // Its files are removed below; the network's own purge removes its network resources.
            tracing::warn!(sandbox = sandbox.id, %error, "a sandbox could not be removed in order");
        }
    }
    for container in daemon.all_containers() {
        daemon.remove_container(&container.id).await?;
    }
    release_pins(&daemon)?;
    for root in [daemon.paths.run(), daemon.paths.state()] {
        match corten_files::remove_tree(root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove", root)(error));
            }
            _ => {}
        }
    }
    let _ = std::fs::remove_file(&config.socket);
    Ok(())
}

/// Releases the namespace pins of sandboxes whose records are lost.
fn release_pins(daemon: &Daemon) -> Result<(), Error> {
    let folder = daemon.paths.run_sandboxes();
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(()) };
    for entry in entries.flatten() {
        namespaces::release(&entry.path())?;
    }
    Ok(())
}
