//! Where the runtime keeps its files.
//!
//! Two roots: the state directory survives a reboot (images, records, writable layers, exit
//! statuses); the run directory holds what the kernel forgets at a reboot anyway (namespace pins,
//! sockets, shared memory). Nothing else in the runtime spells a path below these roots.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::Error;

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

    /// Namespace pins and shared memory of a sandbox.
    pub fn run_sandbox(&self, id: &str) -> PathBuf {
        self.run_sandboxes().join(id)
    }

    /// Where other OCI runtimes keep what they know of their containers.
    pub fn oci_state(&self) -> PathBuf {
        self.run.join("oci")
    }

    /// A folder without content.
    pub fn empty(&self) -> PathBuf {
        self.run.join("empty")
    }

    pub fn run_containers(&self) -> PathBuf {
        self.run.join("containers")
    }

    /// The socket of a container's shim. The name is short because a socket address holds 108 bytes.
    pub fn shim_socket(&self, id: &str) -> PathBuf {
        self.run_containers().join(format!("{}.sock", &id[..id.len().min(32)]))
    }

    /// Creates both roots and their folders, closed to everyone but root.
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
/// process, sees the old or the new content.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<(), Error> {
    let temporary = path.with_extension("new");
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(&temporary).and_then(|mut file| file.write_all(content));
    written.map_err(Error::file("write", &temporary))?;
    std::fs::rename(&temporary, path).map_err(Error::file("replace", path))
}
