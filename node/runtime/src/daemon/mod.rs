//! The daemon: sandboxes and containers of this node, and the operations on them.
//!
//! State is on disk and in shims; the maps here are a view that `Daemon::load` rebuilds, so that a restart changes
//! nothing for running containers. Methods are in files by subject.

mod containers;
mod exec;
mod propagation;
mod sandboxes;
mod stats;
mod status;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_cri::v1;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::Hierarchy;
use crate::container::Container;
use crate::images::{Digest, ImageStore};
use crate::network::PodNetwork;
use crate::paths::Paths;
use crate::program::Program;
use crate::sandbox::{Sandbox, namespaces};
use crate::shim::zygote::Zygote;
use crate::{Config, Error};

pub(crate) use sandboxes::OWN_HANDLERS;
pub(crate) use status::matches_labels;

/// The number of events that a slow subscriber may lag behind before it loses some.
const EVENT_BACKLOG: usize = 1024;

/// A change of a container's state.
#[derive(Debug, Clone)]
pub(crate) struct ContainerEvent {
    pub container_id: String,
    pub sandbox_id: String,
    pub kind: v1::ContainerEventType,
    pub at: i64,
}

/// The runtime of one node.
pub(crate) struct Daemon {
    pub paths: Paths,
    pub images: ImageStore,
    pub network: Arc<dyn PodNetwork>,
    program: Program,
    zygote: Arc<Zygote>,
    hierarchy: Hierarchy,
    capabilities: u64,
    /// The reason why the devices of containers cannot be filtered here.
    pub device_filter_error: Option<String>,
    cdi_folders: Vec<std::path::PathBuf>,
    seccomp_profiles: PathBuf,
    /// Other OCI runtimes by their handler.
    pub runtime_handlers: BTreeMap<String, PathBuf>,
    /// Whether pods may have user namespaces here.
    pub user_namespaces: bool,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
    containers: Mutex<HashMap<String, Arc<Container>>>,
    events: broadcast::Sender<ContainerEvent>,
    samples: stats::Samples,
    /// The tasks that wait for the exits of containers.
    watches: TaskTracker,
    /// Ends these tasks, but not the containers.
    stop: CancellationToken,
}

impl Daemon {
    /// Opens the directories, loads the sandboxes and containers, and follows the containers that run.
    pub async fn load(config: &Config, network: Arc<dyn PodNetwork>) -> Result<Arc<Self>, Error> {
        let paths = Paths::of(config);
        paths.create()?;
        finish_removals(&paths.containers())?;
        let images = config.image_store()?;
        let program = Program::seal(&config.self_exe, &paths.empty())?;
        let probed = program.clone();
        let layers = images.layers_folder();
        let probe = move || Ok(crate::sandbox::user_namespace::can_map_ids(&probed, &layers));
        let hierarchy = Hierarchy::detect()?;
        let daemon = Arc::new(Self {
            device_filter_error: hierarchy.device_filter_error(),
            user_namespaces: sandboxes::blocking(probe).await?,
            images,
            network,
            zygote: Arc::new(Zygote::new(program.clone(), &config.run_dir)),
            program,
            hierarchy,
            capabilities: own_capabilities(),
            cdi_folders: config.cdi_folders.clone(),
            seccomp_profiles: config.seccomp_profiles.clone(),
            runtime_handlers: config.runtime_handlers.clone(),
            sandboxes: Mutex::default(),
            containers: Mutex::default(),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            samples: stats::Samples::default(),
            watches: TaskTracker::new(),
            stop: CancellationToken::new(),
            paths,
        });
        daemon.remove_unfinished()?;
        daemon.load_sandboxes()?;
        daemon.load_containers()?;
        daemon.reconcile_network().await;
        Ok(daemon)
    }

    /// Ends the tasks that wait for the exits of containers, and waits until a recorded exit is complete.
    pub async fn end_watches(&self) {
        self.stop.cancel();
        self.watches.close();
        self.watches.wait().await;
    }

    /// Removes sandboxes and containers that a crash left unfinished. The record is written last, and nothing was
    /// started before it: a folder without a record is an unfinished creation.
    fn remove_unfinished(&self) -> Result<(), Error> {
        for id in unrecorded(&self.paths.containers())? {
            tracing::info!(container = id, "removing a container whose creation did not finish");
            let folder = self.paths.container(&id);
            corten_files::remove_tree(&folder).map_err(Error::file("remove", &folder))?;
            self.images.release(&id)?;
        }
        for id in unrecorded(&self.paths.sandboxes())? {
            let folder = self.paths.sandbox(&id);
            corten_files::remove_tree(&folder).map_err(Error::file("remove", &folder))?;
        }
        Ok(())
    }

    /// Releases the network resources of sandboxes that no longer exist.
    async fn reconcile_network(&self) {
        let connected = self.all_sandboxes().into_iter().filter(|sandbox| sandbox.record().connected);
        let live: BTreeSet<String> = connected.map(|sandbox| sandbox.id.clone()).collect();
        if let Err(error) = self.network.reconcile(live).await {
            tracing::warn!(%error, "the pod network could not be reconciled with the sandboxes that exist");
        }
    }

    fn load_sandboxes(&self) -> Result<(), Error> {
        for id in names(&self.paths.sandboxes())? {
            match Sandbox::load(&self.paths, &id) {
                Ok(sandbox) => {
                    let plan = namespaces::Plan::new(&sandbox.namespace_options(), String::new(), Vec::new())?;
                    if sandbox.record().ready && !namespaces::exist(&plan, &self.paths.run_sandbox(&id)) {
                        sandbox.update(&self.paths, |record| record.ready = false)?;
                    }
                    self.sandbox_map().insert(id, Arc::new(sandbox));
                }
                Err(error) => tracing::warn!(sandbox = id, %error, "a sandbox could not be read and is forgotten"),
            }
        }
        Ok(())
    }

    fn load_containers(self: &Arc<Self>) -> Result<(), Error> {
        for id in names(&self.paths.containers())? {
            match Container::load(&self.paths, &id) {
                Ok(container) => {
                    let container = Arc::new(container);
                    self.container_map().insert(id, container.clone());
                    if container.state() == v1::ContainerState::ContainerRunning {
                        self.watches.spawn(self.clone().watch(container));
                    }
                }
                Err(error) => tracing::warn!(container = id, %error, "a container could not be read and is forgotten"),
            }
        }
        Ok(())
    }

    pub fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, Error> {
        find(&self.sandbox_map(), id).ok_or_else(|| Error::NotFound { kind: "pod sandbox", id: id.to_string() })
    }

    pub fn container(&self, id: &str) -> Result<Arc<Container>, Error> {
        find(&self.container_map(), id).ok_or_else(|| Error::NotFound { kind: "container", id: id.to_string() })
    }

    pub fn all_sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.sandbox_map().values().cloned().collect()
    }

    pub fn all_containers(&self) -> Vec<Arc<Container>> {
        self.container_map().values().cloned().collect()
    }

    pub fn containers_of(&self, sandbox_id: &str) -> Vec<Arc<Container>> {
        self.container_map().values().filter(|container| container.is_of(sandbox_id)).cloned().collect()
    }

    /// Returns the layers that containers use.
    pub fn layers_in_use(&self) -> BTreeSet<Digest> {
        self.all_containers().iter().flat_map(|container| container.record().layers).collect()
    }

    pub fn subscribe(&self) -> broadcast::Receiver<ContainerEvent> {
        self.events.subscribe()
    }

    fn announce(&self, container: &Container, kind: v1::ContainerEventType) {
        let event = ContainerEvent {
            container_id: container.id.clone(),
            sandbox_id: container.record().sandbox_id,
            kind,
            at: crate::shim::log::now(),
        };
        // An event without subscribers is fine: the kubelet may poll instead.
        let _ = self.events.send(event);
    }

    fn sandbox_map(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn container_map(&self) -> MutexGuard<'_, HashMap<String, Arc<Container>>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds an object by its id, or by an unambiguous prefix of it.
fn find<T>(map: &HashMap<String, Arc<T>>, id: &str) -> Option<Arc<T>> {
    if let Some(found) = map.get(id) {
        return Some(found.clone());
    }
    let mut found = map.iter().filter(|(known, _)| id.len() >= 12 && known.starts_with(id));
    match (found.next(), found.next()) {
        (Some((_, found)), None) => Some(found.clone()),
        _ => None,
    }
}

fn names(folder: &std::path::Path) -> Result<Vec<String>, Error> {
    let entries = std::fs::read_dir(folder).map_err(Error::file("list", folder))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // The name of an object that was being removed when the daemon died has a leading dot.
    Ok(names.filter(|name| !name.starts_with('.')).collect())
}

/// Returns the folders without a record.
fn unrecorded(folder: &std::path::Path) -> Result<Vec<String>, Error> {
    let incomplete = |id: &String| !folder.join(id).join("record.json").exists();
    Ok(names(folder)?.into_iter().filter(incomplete).collect())
}

/// Makes an id that no sandbox or container had before.
fn new_id() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

/// Returns the capabilities that this process may give to a container.
fn own_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Finishes the removals that were under way when the daemon died.
fn finish_removals(folder: &std::path::Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder).map_err(Error::file("list", folder))?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            corten_files::remove_tree(&entry.path()).map_err(Error::file("remove", entry.path()))?;
        }
    }
    Ok(())
}
