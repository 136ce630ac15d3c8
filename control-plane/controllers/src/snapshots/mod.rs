//! Volume snapshots: binds VolumeSnapshots and VolumeSnapshotContents, and makes the contents that storage drivers act
//! on; the same for groups of volumes.
//!
//! The part of a storage driver, upstream's external-snapshotter sidecar or our own loops, sees only contents: it takes
//! and deletes snapshots, and writes the status of contents. This controller does the rest, for all drivers. Finalizers
//! and annotations are upstream's.
//!
//! The kinds are custom resources. The controllers begin when the API server serves them.

mod content;
mod group;
mod group_members;
mod snapshot;
mod sources;
mod status;

pub use sources::node_of;
pub use status::{finalizers, has_finalizer};

use std::sync::Arc;
use std::time::Duration;

use corten_client::{Caches, Client, Error, Metrics, Resource, WorkQueue};
use corten_meta::{Key, Value};
use tokio_util::sync::CancellationToken;

use crate::runtime::{self, Clients, Decide};

/// The service account of the controllers.
pub const ACCOUNT: &str = "snapshot-controller";
/// The pause before a failed installation is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// Returns the controllers with the names of their queues.
pub fn controllers() -> Vec<(&'static str, Arc<dyn Decide>)> {
    vec![
        ("snapshot_controller_snapshot", Arc::new(snapshot::SnapshotController)),
        ("snapshot_controller_content", Arc::new(content::ContentController)),
        ("snapshot_controller_group_snapshot", Arc::new(group::GroupSnapshotController)),
        ("snapshot_controller_group_content", Arc::new(content::GroupContentController)),
    ]
}

/// Installs the kinds, and runs the controllers until shutdown.
pub async fn run(caches: &Caches, clients: &Clients, metrics: &Metrics, shutdown: CancellationToken) {
    let definitions = corten_snapshots::definitions();
    if !installed(&clients(ACCOUNT), &definitions, &shutdown).await {
        return;
    }
    let queued =
        |(name, controller)| -> (WorkQueue<Key>, Arc<dyn Decide>) { (WorkQueue::named(metrics, name), controller) };
    runtime::run(controllers().into_iter().map(queued).collect(), caches, clients, metrics, shutdown).await;
}

/// Installs the kinds and waits until they are served, trying until it succeeds; false at shutdown.
pub async fn installed(client: &Client, definitions: &[Value], shutdown: &CancellationToken) -> bool {
    let mut pause = RETRY;
    loop {
        match install(client, definitions).await {
            Ok(()) => return true,
            Err(error) => tracing::info!(%error, "the kinds of a controller cannot be installed yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_RETRY),
            () = shutdown.cancelled() => return false,
        }
    }
}

async fn install(client: &Client, definitions: &[Value]) -> Result<(), Error> {
    corten_crds::install(client, definitions, corten_crds::provides).await?;
    for definition in definitions {
        let spec = &definition["spec"];
        let stored = spec["versions"].as_array().into_iter().flatten().find(|version| version["storage"] == true);
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = word(stored.map_or(&Value::Null, |version| &version["name"]));
        let resource = Resource::new(&word(&spec["group"]), &version, &word(&spec["names"]["plural"]), false);
        client.get_raw(&format!("{}?limit=1", resource.path(""))).await?;
    }
    Ok(())
}
