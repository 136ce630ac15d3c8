//! This program, as it is started again for shims, pause processes and namespaces.
//!
//! Containers see such a process, and `/proc/<pid>/exe` leads a process that may trace it to the file that it runs: a
//! container that opened the node's own binary for writing would be root of the node. So these processes run a view of
//! the binary that no process can write: a read-only overlay that is mounted nowhere. It shares the pages of the
//! binary, so it costs no memory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::Error;

/// The binary, as a descriptor that cannot be written through.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    sealed: Arc<OwnedFd>,
}

impl Program {
    /// Seals the binary. `empty` becomes an empty folder, which an overlay without a writable layer needs as its lower
    /// layer.
    pub fn seal(path: &Path, empty: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(empty).map_err(Error::file("create", empty))?;
        let sealed = view(path, empty).or_else(|error| {
            tracing::info!(%error, "the binary cannot be seen through an overlay and is copied");
            copy(path)
        });
        Ok(Self { path: path.to_path_buf(), sealed: Arc::new(sealed.map_err(Error::file("seal", path))?) })
    }

    /// Returns a command that runs the binary. Its name in process lists is the binary's.
    pub fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.sealed.as_raw_fd()));
        command.arg0(&self.path);
        command
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens the binary in an overlay of its folder. Such an overlay is always read-only: there is no mount flag to remove.
fn view(path: &Path, empty: &Path) -> io::Result<OwnedFd> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path.parent().unwrap_or(Path::new("/")), flags, Mode::empty())?;
    let empty = rustix::fs::open(empty, flags, Mode::empty())?;
    let overlay = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // By descriptors, because a path may hold characters with a meaning in the option.
    let layers = format!("/proc/self/fd/{}:/proc/self/fd/{}", folder.as_raw_fd(), empty.as_raw_fd());
    rustix::mount::fsconfig_set_string(&overlay, "lowerdir", layers)?;
    rustix::mount::fsconfig_create(&overlay)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    let tree = rustix::mount::fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(rustix::fs::openat(&tree, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Copies the binary to sealed memory, for a file system that takes no overlay.
fn copy(path: &Path) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut memory = std::fs::File::from(rustix::fs::memfd_create("corten", flags)?);
    io::copy(&mut std::fs::File::open(path)?, &mut memory)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(memory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the program of a running process for writing, as a process that may trace it can.
    fn open_for_writing(sealed: &OwnedFd) -> io::Result<OwnedFd> {
        let place = format!("/proc/self/fd/{}", sealed.as_raw_fd());
        Ok(rustix::fs::open(place, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    #[test]
    fn a_sealed_program_runs_and_is_not_writable() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: an overlay needs root");
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let binary = folder.path().join("a, strange: name");
        std::fs::copy("/bin/true", &binary).expect("a program");
        // Layers of an overlay must not lie in each other.
        let empty = tempfile::tempdir().expect("a temporary directory");
        let view = view(&binary, empty.path());
        for sealed in [view, copy(&binary)] {
            let sealed = sealed.expect("seal");
            assert!(std::fs::OpenOptions::new().write(true).open(&binary).is_ok(), "the binary itself is writable");
            let memory = open_for_writing(&sealed).map(|fd| rustix::io::write(fd, b"x"));
            assert!(!matches!(memory, Ok(Ok(_))), "{memory:?}");
            let program = Program { path: binary.clone(), sealed: Arc::new(sealed) };
            assert!(program.command().status().expect("it runs").success());
        }
    }
}
