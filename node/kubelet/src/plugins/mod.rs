//! The plugin registration of the node: the kubelet calls a socket that appears in `plugins_registry` for its type,
//! registers the plugin with the matching manager, and notifies it of the result; a removed socket deregisters its
//! plugin.
//!
//! Nothing here depends on the plugin's type. A failed registration is retried with growing delays until the socket is
//! removed.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corten_plugins::registration::registration_client::RegistrationClient;
use corten_plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Channel;
use tracing::{debug, warn};

use crate::claims::Claims;
use crate::error::{Error, Result};
use crate::logs::follow::LogWatcher;
use crate::services::Services;
use crate::{claims, devices};

const CSI: &str = "CSIPlugin";
const DEVICES: &str = "DevicePlugin";
const CLAIMS: &str = "DRAPlugin";

/// Upstream's time limit of a plugin's `GetInfo`.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// The depth of directories below the registry that are scanned, so that no plugin can make the kubelet walk a whole
/// disk.
const DEPTH: usize = 3;

/// The identity of a socket file: a new file at the same path is another plugin.
type Identity = (u64, i64, i64);

/// The state of a socket.
struct Known {
    identity: Identity,
    state: State,
}

enum State {
    Registered(PluginInfo),
    /// The registration failed: the next attempt, and the delay after that.
    Failed(Instant, Duration),
}

/// Follows the registration directory until shutdown.
pub async fn run(services: Arc<Services>, watcher: LogWatcher, stop: CancellationToken) {
    let directory = services.config.root_dir.join("plugins_registry");
    if let Err(error) = std::fs::create_dir_all(&directory) {
        warn!(%error, directory = %directory.display(), "plugins cannot register");
        return;
    }
    let tasks = TaskTracker::new();
    let mut registry = Registry { services, known: HashMap::new(), tasks: tasks.clone(), stop: stop.clone() };
    let changed = Arc::new(Notify::new());
    let mut followed = HashMap::new();
    loop {
        let (sockets, directories) = scan(&directory);
        followed.retain(|path, _| directories.contains(path));
        for path in &directories {
            if !followed.contains_key(path)
                && let Some(follower) = follow(&watcher, path, &changed)
            {
                followed.insert(path.clone(), follower);
            }
        }
        registry.sync(&sockets).await;
        let again = registry.next_try();
        tokio::select! {
            () = stop.cancelled() => break,
            () = changed.notified() => {}
            () = sleep_until(again) => {}
        }
    }
    tasks.close();
    tasks.wait().await;
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Forwards the changes of one directory; ends when the returned guard is dropped.
fn follow(watcher: &LogWatcher, path: &Path, changed: &Arc<Notify>) -> Option<tokio_util::task::AbortOnDropHandle<()>> {
    let news = watcher.follow(path).ok()?;
    let changed = changed.clone();
    let task = tokio::spawn(async move {
        loop {
            news.notified().await;
            changed.notify_one();
        }
    });
    Some(tokio_util::task::AbortOnDropHandle::new(task))
}

/// Returns the sockets below a directory, and the directories themselves.
fn scan(directory: &Path) -> (BTreeMap<PathBuf, Identity>, Vec<PathBuf>) {
    let mut sockets = BTreeMap::new();
    let mut directories = vec![directory.to_path_buf()];
    let mut level = vec![directory.to_path_buf()];
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for entry in level.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten().flatten() {
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            let Some(metadata) = entry.metadata().ok().filter(|_| !hidden) else { continue };
            if metadata.is_dir() {
                next.push(entry.path());
            } else if metadata.file_type().is_socket() {
                let identity = (metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
                sockets.insert(entry.path(), identity);
            }
        }
        directories.extend(next.iter().cloned());
        level = next;
    }
    (sockets, directories)
}

struct Registry {
    services: Arc<Services>,
    known: HashMap<PathBuf, Known>,
    /// The tasks that follow a registration or deregistration.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Registry {
    /// Deregisters removed sockets and registers those that are new or due.
    async fn sync(&mut self, sockets: &BTreeMap<PathBuf, Identity>) {
        let gone: Vec<PathBuf> = self
            .known
            .iter()
            .filter(|(path, known)| sockets.get(*path) != Some(&known.identity))
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            if let Some(Known { state: State::Registered(info), .. }) = self.known.remove(&path)
                && let Err(error) = self.deregister(&info, &endpoint(&info, &path)).await
            {
                warn!(%error, plugin = info.name, "a plugin that has gone is still announced");
            }
        }
        let now = Instant::now();
        for (path, identity) in sockets {
            let wait = match self.known.get(path).map(|known| &known.state) {
                Some(State::Registered(_)) => continue,
                Some(State::Failed(at, _)) if *at > now => continue,
                Some(State::Failed(_, wait)) => *wait,
                None => FIRST_RETRY,
            };
            let state = match self.register(path).await {
                Ok(info) => State::Registered(info),
                Err(error) => {
                    debug!(%error, socket = %path.display(), "plugin not registered");
                    State::Failed(Instant::now() + wait, (wait * 2).min(LAST_RETRY))
                }
            };
            self.known.insert(path.clone(), Known { identity: *identity, state });
        }
    }

    fn next_try(&self) -> Option<Instant> {
        let tries = self.known.values().filter_map(|known| match known.state {
            State::Failed(at, _) => Some(at),
            State::Registered(_) => None,
        });
        tries.min()
    }

    /// Calls the socket for its type, registers the plugin, and notifies it of the result.
    async fn register(&self, socket: &Path) -> Result<PluginInfo> {
        let channel = corten_plugins::connect_lazy(socket).map_err(|error| Error::pod(error.to_string()))?;
        let mut client = RegistrationClient::new(channel);
        let info = client.get_info(timed(InfoRequest {})).await?.into_inner();
        match self.hand_over(&info, &endpoint(&info, socket)).await {
            Ok(()) => {
                notify(&mut client, None).await?;
                Ok(info)
            }
            Err(error) => {
                warn!(%error, plugin = info.name, socket = %socket.display(), "plugin refused");
                notify(&mut client, Some(&error)).await?;
                Err(error)
            }
        }
    }

    async fn hand_over(&self, info: &PluginInfo, endpoint: &Path) -> Result<()> {
        let services = &self.services;
        match info.r#type.as_str() {
            CSI => services.volumes.csi.register(&info.name, endpoint, &info.supported_versions).await,
            CLAIMS => {
                let claims = services.resources.claims.clone();
                let gone = claims.register(&info.name, endpoint, &info.supported_versions)?;
                self.follow_health(claims, info.name.clone(), endpoint.to_path_buf(), gone);
                Ok(())
            }
            DEVICES => {
                let devices = services.resources.devices.clone();
                let name = info.name.clone();
                if !info.supported_versions.iter().any(|version| version == devices::VERSION) {
                    return Err(Error::pod(format!(
                        "manager version, {}, is not among plugin supported versions {:?}",
                        devices::VERSION,
                        info.supported_versions
                    )));
                }
                let followed = devices::follow(devices, name, endpoint.to_path_buf(), self.stop.clone());
                self.tasks.spawn(followed);
                Ok(())
            }
            other => Err(Error::pod(format!(
                "no handler registered for plugin type: {other} at socket {}",
                endpoint.display()
            ))),
        }
    }

    /// Follows the health of a driver's devices until its socket is gone or the kubelet stops.
    fn follow_health(&self, claims: Arc<Claims>, driver: String, endpoint: PathBuf, gone: CancellationToken) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            let followed = claims::follow(claims, driver, endpoint, gone);
            stop.run_until_cancelled(followed).await;
        });
    }

    async fn deregister(&self, info: &PluginInfo, endpoint: &Path) -> Result<()> {
        match info.r#type.as_str() {
            CSI => self.services.volumes.csi.deregister(&info.name).await,
            CLAIMS => {
                let claims = self.services.resources.claims.clone();
                if claims.deregister(&info.name, endpoint) {
                    self.tasks.spawn(claims::delete_after_grace(claims, info.name.clone(), self.stop.clone()));
                }
                Ok(())
            }
            // A device plugin's stream ends with it.
            _ => Ok(()),
        }
    }
}

fn endpoint(info: &PluginInfo, socket: &Path) -> PathBuf {
    if info.endpoint.is_empty() { socket.to_path_buf() } else { PathBuf::from(&info.endpoint) }
}

async fn notify(client: &mut RegistrationClient<Channel>, error: Option<&Error>) -> Result<()> {
    let status = RegistrationStatus {
        plugin_registered: error.is_none(),
        error: error.map(|error| format!("RegisterPlugin error -- {error}")).unwrap_or_default(),
    };
    client.notify_registration_status(timed(status)).await?;
    Ok(())
}

fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("deep/er")).unwrap();
        std::fs::write(root.path().join("file"), "").unwrap();
        let sockets = ["a.sock", ".hidden.sock", "deep/b.sock", "deep/er/c.sock"];
        let _listeners = sockets.map(|name| std::os::unix::net::UnixListener::bind(root.path().join(name)).unwrap());
        let (found, directories) = scan(root.path());
        let names: Vec<_> = found.keys().map(|path| path.strip_prefix(root.path()).unwrap().to_owned()).collect();
        assert_eq!(names, ["a.sock", "deep/b.sock", "deep/er/c.sock"].map(PathBuf::from));
        assert_eq!(directories.len(), 3);
    }
}
