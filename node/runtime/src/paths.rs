//! The paths of the runtime's files.
//!
//! Two roots: the state directory survives a reboot (images, records, writable layers, exit statuses); the run
//! directory holds files that are useless after a reboot (namespace pins, sockets, shared memory). Nothing else in the
//! runtime makes a path below these roots.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::Error;

/// The mode of files for root alone.
const PRIVATE: u32 = 0o600;

/// The layout of both roots.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    state: PathBuf,
    run: PathBuf,
    images: PathBuf,
}

impl Paths {
    pub fn of(config: &crate::Config) -> Self {
        Self { state: config.state_dir.clone(), run: config.run_dir.clone(), images: config.images_dir.clone() }
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    pub fn run(&self) -> &Path {
        &self.run
    }

    pub fn images(&self) -> PathBuf {
        self.images.clone()
    }

    pub fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub fn sandbox(&self, id: &str) -> PathBuf {
        self.sandboxes().join(id)
    }

    pub fn containers(&self) -> PathBuf {
        self.state.join("containers")
    }

    pub fn container(&self, id: &str) -> PathBuf {
        self.containers().join(id)
    }

    pub fn run_sandboxes(&self) -> PathBuf {
        self.run.join("sandboxes")
    }

    /// Returns the folder of a sandbox's namespace pins and shared memory.
    pub fn run_sandbox(&self, id: &str) -> PathBuf {
        self.run_sandboxes().join(id)
    }

    /// Returns the folder where other OCI runtimes keep the state of their containers.
    pub fn oci_state(&self) -> PathBuf {
        self.run.join("oci")
    }

    /// Returns a folder without content.
    pub fn empty(&self) -> PathBuf {
        self.run.join("empty")
    }

    pub fn run_containers(&self) -> PathBuf {
        self.run.join("containers")
    }

    /// Returns the socket of a container's shim. The name is short because a socket address holds 108 bytes.
    pub fn shim_socket(&self, id: &str) -> PathBuf {
        self.run_containers().join(format!("{}.sock", &id[..id.len().min(32)]))
    }

    /// Creates both roots and their folders; only root may enter them.
    pub fn create(&self) -> Result<(), Error> {
        for path in [self.images(), self.sandboxes(), self.containers(), self.run_sandboxes(), self.run_containers()] {
            std::fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        for root in [&self.state, &self.run, &self.images()] {
            let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            std::fs::set_permissions(root, closed).map_err(Error::file("set the mode of", root))?;
        }
        Ok(())
    }
}

/// Writes a file for root alone, since it may hold a container's environment. A reader, also after a crash of this
/// process, sees the old or the new content. For files that nothing reads after a reboot.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let temporary = path.with_extension("new");
    let written = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE).open(&temporary)?;
        file.write_all(content)?;
        std::fs::rename(&temporary, path)
    };
    written().map_err(Error::file("write", path))
}

/// Writes a file for root alone, so that a reader sees the old or the new content, also after a power cut.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<(), Error> {
    waiting(|| corten_durable::replace(path, content, PRIVATE)).map_err(Error::file("write", path))
}

/// Writes a file as `write_atomically` does, so that the new content survives a power cut.
pub(crate) fn write_durably(path: &Path, content: &[u8]) -> Result<(), Error> {
    waiting(|| corten_durable::write(path, content, PRIVATE)).map_err(Error::file("write", path))
}

/// Syncs a directory, so that its names survive a power cut.
pub(crate) fn sync_directory(path: &Path) -> Result<(), Error> {
    waiting(|| corten_durable::sync_directory(path)).map_err(Error::file("sync", path))
}

/// Waits for the disk, while other threads take over this thread's asynchronous tasks.
fn waiting<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
