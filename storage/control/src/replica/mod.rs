//! Volumes with a copy on another node: the primary serves increments ([`serve`]), the standby gets them ([`pull`]).
//!
//! The controller of the control plane decides which node is which, and in which epoch, and writes it into the spec of the
//! VolumeReplica. Here is all that touches data. Each node writes its own part of the status.
//!
//! *Invariant: a node that reads of a newer epoch in which it is not the primary ends the I/O of its pods on the volume
//! before anything else.*

mod peer;
mod pull;
mod serve;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume};
use corten_client::{Change, Client};
use corten_meta::Key;
use corten_meta::time::{now, rfc3339};
use corten_snapshots::{REPLICAS_ATTRIBUTE, StandbyStatus, VolumeReplica};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};

pub use peer::PeerIdentity;

use crate::worker::{Loop, Next, Watch};
use crate::world::World;

/// The copies that a node brings up to date at once.
const AT_ONCE: usize = 4;
/// The pause before a failed increment is tried again, and before a fenced volume is looked at again.
const RETRY: Duration = Duration::from_secs(3);
/// The time in which the API server must say which node holds a volume.
const FENCE_PATIENCE: Duration = Duration::from_secs(10);
/// The key under which a node looks for copies that no VolumeReplica knows.
const SWEEP: &str = "";

/// The way to other nodes, for volumes with copies.
#[derive(Clone, Debug)]
pub struct Peers {
    pub identity: PeerIdentity,
    /// The node's own address, at which its peers reach it.
    pub address: IpAddr,
    /// The port; another one is taken if it is in use.
    pub port: u16,
}

/// This node's part in a volume with a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub is_primary: bool,
    pub epoch: u64,
    /// The increment that a copy ends with; empty if it has none.
    pub generation: String,
}

/// A volume with a copy, by its handle and the name of its VolumeReplica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    pub handle: String,
    pub name: String,
}

/// The content of a primary at one moment.
pub struct Increment {
    pub file: File,
    pub bytes: u64,
    /// The driver's record of the volume.
    pub record: String,
    /// Keeps the content as it is.
    pub guard: Box<dyn Send + Sync>,
}

/// An increment that a copy is getting. Without the commit, the copy stays as it is.
pub struct Receiving {
    pub file: File,
    pub bytes: u64,
    pub commit: Box<dyn FnOnce() -> Result<(), String> + Send>,
}

/// The parts of a driver that volumes with copies need. The calls may block.
pub trait ReplicaData: Send + Sync {
    /// Returns this node's part in a volume; none if it has none.
    fn part(&self, volume: &str) -> Result<Option<Part>, String>;
    /// Returns all volumes with copies that this node has a part in.
    fn all(&self) -> Result<Vec<Local>, String>;
    /// Opens the content of a primary as it is now; none if it is that of `base` still.
    fn increment(&self, volume: &str, base: Option<&File>) -> Result<Option<Increment>, String>;
    /// Returns the chunks in which two contents may differ; none if that is not known.
    fn changed(&self, base: &File, current: &File, bytes: u64) -> Result<Option<BTreeSet<u64>>, String>;
    /// Begins an increment of a copy, which is made if it is missing.
    fn receive(&self, record: &str, epoch: u64, generation: &str, changed: u64) -> Result<Receiving, String>;
    /// Makes a copy the primary of an epoch.
    fn promote(&self, volume: &str, epoch: u64) -> Result<(), String>;
    /// Ends the I/O of a volume; returns whether pods still have it.
    fn fence(&self, volume: &str) -> Result<bool, String>;
    /// Makes a former primary, or a copy of an older epoch, the copy of an epoch.
    fn demote(&self, volume: &str, epoch: u64) -> Result<(), String>;
    /// Removes a copy. The content of a former primary that diverged stays.
    fn remove_copy(&self, volume: &str) -> Result<(), String>;
    /// Removes everything of a deleted volume that is not a primary.
    fn forget(&self, volume: &str) -> Result<(), String>;
}

/// The node that holds a volume, as the cluster has it now.
pub struct Holding {
    pub node: String,
    pub epoch: u64,
}

/// Asks the API server, and no cache, which node holds a volume.
pub async fn holder(client: &Client, name: &str) -> Result<Holding, String> {
    let asked = tokio::time::timeout(FENCE_PATIENCE, client.get::<VolumeReplica>("", name)).await;
    let replica = match asked {
        Ok(Ok(replica)) => replica,
        Ok(Err(error)) => return Err(format!("VolumeReplica {name}: {error}")),
        Err(_) => return Err("the API server does not answer".to_owned()),
    };
    Ok(Holding { node: replica.spec.primary_node, epoch: replica.spec.epoch })
}

/// Reports whether a volume of the nodes' own driver has a copy on another node.
pub fn is_replicated(volume: &PersistentVolume) -> bool {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.filter(|csi| csi.driver == corten_snapshots::BACKUP_DRIVER)
        .and_then(|csi| csi.volume_attributes.as_ref()?.get(REPLICAS_ATTRIBUTE))
        .is_some_and(|replicas| replicas == "2")
}

/// The next time at which a copy gets an increment.
struct Due {
    epoch: u64,
    at: Instant,
}

pub struct Replicas {
    world: Arc<World>,
    data: Arc<dyn ReplicaData>,
    node: String,
    peers: Peers,
    permits: Semaphore,
    due: Mutex<HashMap<Key, Due>>,
    /// The server of this node's increments, which begins with its first primary.
    server: OnceCell<serve::Server>,
}

impl Loop for Replicas {
    fn name(&self) -> &'static str {
        "volume-replicas"
    }

    fn watches(&self) -> Vec<Watch> {
        let node = self.node.clone();
        let sweep = move |change: &Change| -> Vec<Key> {
            (change.key.name == node).then(|| Key::new("", SWEEP)).into_iter().collect()
        };
        vec![
            Watch::own(self.world.cache::<VolumeReplica>()),
            Watch { cache: self.world.cache::<Node>(), keys: Box::new(sweep) },
        ]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        async { self.world.shutdown.run_until_cancelled(self.sync(key)).await.unwrap_or(Next::Done) }.boxed()
    }
}

impl Replicas {
    pub fn new(world: Arc<World>, data: Arc<dyn ReplicaData>, node: String, peers: Peers) -> Replicas {
        let permits = Semaphore::new(AT_ONCE);
        Replicas { world, data, node, peers, permits, due: Mutex::default(), server: OnceCell::new() }
    }

    async fn sync(&self, key: &Key) -> Next {
        let replica: Option<VolumeReplica> = self.world.get("", &key.name);
        let Some(replica) = replica else { return self.sweep().await };
        let handle = replica.spec.volume_handle.clone();
        let part = match self.blocking(move |data| data.part(&handle)).await {
            Ok(part) => part,
            Err(_) => return Next::After(RETRY),
        };
        let done = match replica.spec.primary_node == self.node {
            true => self.lead(&replica, part).await.map(|()| Next::Done),
            false => self.follow(key, &replica, part).await,
        };
        match done {
            Ok(next) => next,
            Err(message) => self.fail(&replica, message).await,
        }
    }

    /// Does the primary's part: promotes its copy if it was the standby, and serves increments.
    async fn lead(&self, replica: &VolumeReplica, part: Option<Part>) -> Result<(), String> {
        let handle = replica.spec.volume_handle.clone();
        let epoch = replica.spec.epoch;
        match part {
            None => return Err("the volume is not on this node".to_owned()),
            Some(part) if part.is_primary && part.epoch == epoch => {}
            Some(_) => {
                self.blocking(move |data| data.promote(&handle, epoch)).await?;
                let message = format!("node {} uses its copy from now on, in epoch {epoch}", self.node);
                self.world.normal(replica, "Promoted", message);
            }
        }
        let started = serve::Server::start(&self.peers, self.world.clone(), self.data.clone(), &self.node);
        let address = self.server.get_or_try_init(|| started).await?.address.to_string();
        let is_known = replica.primary().is_some_and(|report| report.address == address && report.message.is_empty());
        if is_known {
            return Ok(());
        }
        let report = json!({"nodeName": self.node, "epoch": epoch, "address": address, "message": ""});
        self.report(replica, "primary", report).await
    }

    /// Does the part of a node that is not the primary: fences what it may not use, and gets increments if it is the standby.
    async fn follow(&self, key: &Key, replica: &VolumeReplica, part: Option<Part>) -> Result<Next, String> {
        let handle = replica.spec.volume_handle.clone();
        let epoch = replica.spec.epoch;
        if part.as_ref().is_some_and(|part| part.epoch > epoch) {
            return Err(format!("this node knows a newer epoch than {epoch}"));
        }
        if part.as_ref().is_some_and(|part| part.is_primary) {
            let fenced = handle.clone();
            if self.blocking(move |data| data.fence(&fenced)).await? {
                return Ok(Next::After(RETRY));
            }
        }
        if part.as_ref().is_some_and(|part| part.is_primary || part.epoch < epoch) {
            let demoted = handle.clone();
            self.blocking(move |data| data.demote(&demoted, epoch)).await?;
        }
        if replica.spec.standby_node != self.node {
            if part.is_some() {
                self.blocking(move |data| data.remove_copy(&handle)).await?;
            }
            return Ok(Next::Done);
        }
        self.copy(key, replica).await
    }

    /// Gets the next increment if it is due.
    async fn copy(&self, key: &Key, replica: &VolumeReplica) -> Result<Next, String> {
        let epoch = replica.spec.epoch;
        let due = self.due().get(key).filter(|due| due.epoch == epoch).map(|due| due.at);
        let early = due.and_then(|at| at.checked_duration_since(Instant::now())).filter(|early| !early.is_zero());
        if let Some(early) = early {
            return Ok(Next::After(early));
        }
        let Some(primary) = replica.primary().filter(|report| !report.address.is_empty()) else {
            return Err("the primary does not serve increments yet".to_owned());
        };
        let Ok(_permit) = self.permits.acquire().await else { return Ok(Next::Done) };
        // An increment is of a moment that comes after this one.
        let taken = now();
        let sent = pull::pull(&self.peers.identity, &self.data, replica, &primary.address).await?;
        let earlier = replica.standby().map_or(0, |report| report.sent_bytes);
        let report = json!({
            "nodeName": self.node, "epoch": epoch, "syncedTime": rfc3339(taken), "message": "",
            "sentBytes": if sent > 0 { sent } else { earlier },
        });
        self.report(replica, "standby", report).await?;
        let interval = Duration::from_secs(replica.spec.interval_seconds.max(1));
        self.due().insert(key.clone(), Due { epoch, at: Instant::now() + interval });
        Ok(Next::After(interval))
    }

    fn due(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a failure in this node's part of the status; the time of the copy stays.
    async fn fail(&self, replica: &VolumeReplica, message: String) -> Next {
        let message: String = message.chars().take(1000).collect();
        tracing::info!(volume = replica.name(), message, "the copy of a volume is not up to date");
        let epoch = replica.spec.epoch;
        let written = match () {
            () if replica.spec.primary_node == self.node => {
                let report = json!({"nodeName": self.node, "epoch": epoch, "message": message});
                let known = replica.primary().map(|report| report.message.clone());
                if known == Some(message) { Ok(()) } else { self.report(replica, "primary", report).await }
            }
            () if replica.spec.standby_node == self.node => {
                let known: StandbyStatus = replica.standby().cloned().unwrap_or_default();
                let report = json!({
                    "nodeName": self.node, "epoch": epoch, "syncedTime": known.synced_time, "message": message,
                });
                if known.message == message { Ok(()) } else { self.report(replica, "standby", report).await }
            }
            () => Ok(()),
        };
        if let Err(error) = written {
            tracing::debug!(error, "cannot report on a copy");
        }
        Next::After(RETRY)
    }

    async fn report(&self, replica: &VolumeReplica, part: &str, report: serde_json::Value) -> Result<(), String> {
        self.world.patch_status(replica, json!({part: report})).await.map_err(|error| error.to_string())
    }

    /// Removes the copies of volumes that do not exist any more.
    async fn sweep(&self) -> Next {
        let Ok(all) = self.blocking(|data| data.all()).await else { return Next::After(RETRY) };
        self.due().retain(|key, _| self.world.get::<VolumeReplica>("", &key.name).is_some());
        if let Some(server) = self.server.get() {
            server.bases.retain(|volume| all.iter().any(|local| local.handle == volume));
        }
        for local in all {
            if self.world.get::<VolumeReplica>("", &local.name).is_some() {
                continue;
            }
            // The cache may not have it yet.
            match self.world.client.find::<VolumeReplica>("", &local.name).await {
                Ok(None) => {}
                Ok(Some(_)) => continue,
                Err(_) => return Next::After(RETRY),
            }
            let handle = local.handle.clone();
            let removed = self.blocking(move |data| match data.part(&handle)? {
                Some(part) if part.is_primary => Ok(()),
                _ => data.forget(&handle),
            });
            if let Err(error) = removed.await {
                tracing::warn!(volume = local.handle, error, "the copy of a deleted volume is not removed");
                return Next::After(RETRY);
            }
        }
        Next::Done
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn ReplicaData) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        blocking(&self.data, work).await
    }
}

/// Calls the driver on a thread that may block.
async fn blocking<T: Send + 'static>(
    data: &Arc<dyn ReplicaData>,
    work: impl FnOnce(&dyn ReplicaData) -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let data = data.clone();
    tokio::task::spawn_blocking(move || work(data.as_ref())).await.map_err(|error| error.to_string())?
}
