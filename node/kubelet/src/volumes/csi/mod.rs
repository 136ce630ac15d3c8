//! Volumes of CSI drivers: the registered drivers (`driver`, reported by `node_info`), mounting a volume for a pod
//! (`set_up`), unmounting it (`tear_down`), and its record on disk (`record`).
//!
//! Invariant: calls for one volume never overlap, whichever pods use it; a volume is unstaged only if no pod of the
//! node has a record of it; a pod's record is removed only after the driver has unpublished the volume, and the record
//! beside a staged volume only after the driver has unstaged it.

mod allocatable;
mod capability;
mod driver;
mod node_info;
mod record;
mod set_up;
mod tear_down;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::storage::v1::CSIDriver;
use corten_client::{Cache, Client};
use corten_meta::Key;
use tokio::sync::watch;

pub use allocatable::keep_allocatable;
pub use capability::Source;
pub use node_info::keep_csi_node;
pub use set_up::Request;
pub use tear_down::{clean_up, keep_unstaging};
pub use usage::keep_usage;

use crate::error::{Error, Result};
use crate::plugin_api::versions;
use crate::pod::waker::Waker;
use driver::Driver;

/// The user of a volume that no pod uses any more and that its driver has not unstaged.
const LEFT_STAGED: &str = "left-staged";

/// The CSI drivers of the node and their volumes.
pub struct Csi {
    root_dir: PathBuf,
    node_name: String,
    client: Client,
    /// The CSIDriver objects of the cluster.
    objects: Arc<Cache>,
    /// This node's own object.
    own_node: Arc<Cache>,
    state: Mutex<State>,
    /// The volumes in use, for `volumesInUse` of the node's status.
    in_use: watch::Sender<BTreeSet<String>>,
    /// Signals that a volume was left staged.
    left_staged: tokio::sync::Notify,
}

#[derive(Default)]
struct State {
    drivers: HashMap<String, Registered>,
    /// One lock for each volume with a call in progress.
    locks: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// The pods that use an attachable volume.
    users: BTreeMap<String, BTreeSet<String>>,
    /// Pods that wait for a driver or an attachment.
    waiting: HashMap<String, Waker>,
    /// The published volumes, by pod and by their name in its spec.
    published: HashMap<(String, String), Published>,
    /// The volumes whose last expansion failed.
    failed_expansions: BTreeSet<String>,
}

struct Registered {
    driver: Driver,
    endpoint: PathBuf,
    version: String,
}

/// A volume that is published for a pod.
#[derive(Clone, Debug)]
struct Published {
    driver: String,
    handle: String,
    path: PathBuf,
    staging: Option<PathBuf>,
    /// The last usage that the driver reported.
    usage: Vec<corten_plugins::csi::VolumeUsage>,
}

impl Csi {
    /// Reads from the disk which volumes an earlier kubelet published.
    pub fn new(root_dir: &Path, node_name: &str, client: Client, objects: Arc<Cache>, own_node: Arc<Cache>) -> Csi {
        let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (pod_dir, record) in record::of_node(root_dir).into_iter().filter(|(_, record)| record.persistent) {
            let uid = pod_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
            users.entry(record.unique_name()).or_default().insert(uid);
        }
        for record in record::staged(root_dir) {
            users.entry(record.unique_name()).or_insert_with(|| BTreeSet::from([LEFT_STAGED.to_owned()]));
        }
        Csi {
            root_dir: root_dir.to_path_buf(),
            node_name: node_name.to_owned(),
            client,
            objects,
            own_node,
            in_use: watch::channel(users.keys().cloned().collect()).0,
            state: Mutex::new(State { users, ..State::default() }),
            left_staged: tokio::sync::Notify::new(),
        }
    }

    /// Returns the volumes in use, now and later.
    pub fn in_use(&self) -> watch::Receiver<BTreeSet<String>> {
        self.in_use.subscribe()
    }

    /// Registers a driver: queries its node information and reports it to the API.
    pub async fn register(&self, name: &str, endpoint: &Path, supported: &[String]) -> Result<()> {
        let Some(version) = versions::highest(supported, 1) else {
            return Err(Error::pod(format!(
                "RegisterPlugin for CSI driver {name:?} failed. None of the versions specified {supported:?} are supported"
            )));
        };
        if let Some(known) = self.lock().drivers.get(name)
            && known.endpoint != endpoint
            && !versions::is_less(&known.version, &version)
        {
            return Err(Error::pod(format!(
                "RegisterPlugin for CSI driver {name:?} failed. Another driver with the same name is already registered \
                 with a higher supported version: {:?}",
                known.version
            )));
        }
        let driver = Driver::new(endpoint)?;
        let info = driver.info().await?;
        node_info::install(self, name, &info).await?;
        let registered = Registered { driver, endpoint: endpoint.to_path_buf(), version };
        self.lock().drivers.insert(name.to_owned(), registered);
        tracing::info!(driver = name, node_id = info.node_id, "CSI driver registered");
        self.wake();
        Ok(())
    }

    /// Removes a driver whose socket is gone.
    pub async fn deregister(&self, name: &str) -> Result<()> {
        self.lock().drivers.remove(name);
        tracing::info!(driver = name, "CSI driver gone");
        node_info::uninstall(self, name).await
    }

    fn driver(&self, name: &str) -> Result<Driver> {
        let known = self.lock().drivers.get(name).map(|registered| registered.driver.clone());
        known.ok_or_else(|| Error::pod(format!("driver name {name} not found in the list of registered CSI drivers")))
    }

    fn object(&self, name: &str) -> Option<CSIDriver> {
        self.objects.typed(&Key { namespace: String::new(), name: name.to_owned() })
    }

    /// Returns the lock of a volume; it is held during every call for the volume.
    fn volume_lock(&self, unique_name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.lock();
        state.locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        state.locks.entry(unique_name.to_owned()).or_default().clone()
    }

    /// Records whether the pod uses the volume.
    fn set_user(&self, unique_name: &str, pod_uid: &str, uses: bool) {
        let mut state = self.lock();
        let users = state.users.entry(unique_name.to_owned()).or_default();
        if uses {
            users.insert(pod_uid.to_owned());
        } else {
            users.remove(pod_uid);
        }
        state.users.retain(|_, users| !users.is_empty());
        let names: BTreeSet<String> = state.users.keys().cloned().collect();
        drop(state);
        self.in_use.send_if_modified(|known| {
            let changed = *known != names;
            *known = names;
            changed
        });
    }

    /// Wakes the pod when a driver registers or the node's attachments change.
    fn wait(&self, pod_uid: &str, waker: &Waker) {
        self.lock().waiting.insert(pod_uid.to_owned(), waker.clone());
    }

    /// Wakes all waiting pods.
    pub fn wake(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        waiting.values().for_each(Waker::refresh);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
