//! The container runtime of a node: a CRI v1 server.
//!
//! `serve` is the daemon; containers live in shims (`shim`), which are this binary started again, so `reexec` must be
//! the first call of a binary with this package. The daemon may die and restart at any time: containers go on running,
//! and the new daemon follows them.
//!
//! The layers, from the outside: `service` (gRPC) → `daemon` (sandboxes and containers) → `shim` (one process per
//! container) → `executor` (between fork and exec). `spec` is the shim's input; `images`, `cgroup`, `sandbox` and
//! `streaming` are the tools.

mod cgroup;
mod container;
mod daemon;
mod error;
mod executor;
#[doc(hidden)]
pub mod fuzz;
mod id_mapping;
mod images;
mod network;
mod output_pipe;
mod paths;
mod procfs;
mod program;
mod purge;
mod regular;
mod rooted;
mod sandbox;
mod service;
mod shim;
mod spec;
mod streaming;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

pub use error::Error;
pub use images::{Digest, ImageRecord, ImageStore, Imported, PullAuth, Reference, RegistryConfig};
pub use network::{LoopbackNetwork, PodNetwork, PodNetworkRequest, PodNetworkResult, PortMapping};
pub use purge::purge;

/// The settings of the runtime.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of everything that survives a reboot: images, records, writable layers.
    pub state_dir: PathBuf,
    /// The directory of everything that a reboot ends: namespace pins, sockets.
    pub run_dir: PathBuf,
    /// The image store. Several runtimes of one machine may share it.
    pub images_dir: PathBuf,
    /// The path of the CRI socket.
    pub socket: PathBuf,
    /// The binary that is started again for shims and to unpack layers; it must call `reexec` first.
    pub self_exe: PathBuf,
    /// The settings of registries that are not plain public ones.
    pub registries: Vec<RegistryConfig>,
    /// The folders where drivers describe their devices (CDI); a later folder wins.
    pub cdi_folders: Vec<PathBuf>,
    /// The kubelet's folder of seccomp profiles: `Localhost` profiles are files below it and nowhere else.
    pub seccomp_profiles: PathBuf,
    /// Other OCI runtimes (runc, crun, …): programs by the handler of a RuntimeClass.
    pub runtime_handlers: BTreeMap<String, PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: "/var/lib/corten/runtime".into(),
            run_dir: "/run/corten/runtime".into(),
            images_dir: "/var/lib/corten/images".into(),
            socket: "/run/corten/cri.sock".into(),
            self_exe: "/proc/self/exe".into(),
            registries: Vec::new(),
            cdi_folders: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            seccomp_profiles: "/var/lib/kubelet/seccomp".into(),
            runtime_handlers: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Opens the images of this runtime, for use beside a running daemon or without one.
    pub fn image_store(&self) -> Result<ImageStore, Error> {
        let store = ImageStore::open(&self.images_dir)?;
        Ok(store.with_registries(self.registries.clone()).with_program(&self.self_exe))
    }
}

/// Serves the CRI until `shutdown`. Containers go on running.
pub async fn serve(config: Config, network: Arc<dyn PodNetwork>, shutdown: CancellationToken) -> Result<(), Error> {
    let config = Config { self_exe: real_path(&config.self_exe), ..config };
    let daemon = daemon::Daemon::load(&config, network).await?;
    let streaming = streaming::StreamingServer::start(daemon.clone(), shutdown.clone()).await?;
    let services = service::Services { daemon: daemon.clone(), streaming: streaming.clone() };
    let listener = listen(&config.socket)?;
    tracing::info!(socket = %config.socket.display(), "the container runtime is ready");
    service::serve(listener, services, shutdown).await;
    streaming.ended().await;
    daemon.end_watches().await;
    Ok(())
}

/// Resolves links: one like `/proc/self/exe` means another file in the process that follows it.
fn real_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Binds the socket for root alone; replaces one that a dead daemon left.
fn listen(socket: &Path) -> Result<UnixListener, Error> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    }
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        return Err(Error::Serve(format!("another runtime serves {}", socket.display())));
    }
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).map_err(Error::file("bind", socket))?;
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(socket, closed).map_err(Error::file("set the mode of", socket))?;
    Ok(listener)
}

/// Runs as the parent of shims, as a pause process or as an unpacker, if this process was started as one, and returns
/// its exit code. Must be called first in `main`, before any thread exists; `args` is the whole command line.
pub fn reexec(args: &[String]) -> Option<i32> {
    match args.get(1).map(String::as_str) {
        Some("zygote") => Some(shim::zygote::zygote_main()),
        Some("namespaces") => Some(sandbox::user_namespace::namespaces_main(&args[2..])),
        Some(images::unpacking::COMMAND) => Some(images::unpacking::unpack_main(&args[2..])),
        Some("pause") => Some(sandbox::pause::pause_main(&args[2..])),
        _ => None,
    }
}
