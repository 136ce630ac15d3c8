//! Directories and files that only root can read: everything that a cluster keeps on its machine.
//!
//! The data and run directories contain Secrets, tokens, container environments and root file systems with setuid
//! programs. Their mode is the boundary to the other users of the machine: it is set at creation, and again at every
//! start. Must never: create something readable and restrict it afterwards.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The mode bits of a directory that only its owner can enter.
const DIRECTORY: u32 = 0o700;
/// The mode bits of a file that only its owner can read.
const FILE: u32 = 0o600;

/// The sticky bit of directories such as /tmp, which every user writes to.
const STICKY: u32 = 0o1000;
/// The number of components of /run and of every directory that is as near to the root.
const SYSTEM_DEPTH: usize = 2;
/// The files that identify a data directory and a run directory.
const MARKS: [&str; 3] = ["format", "corten.lock", "kubelet.lock"];

/// Sets the umask for new files that this module does not create, whatever the shell had set. Containers inherit it, so
/// it is the one that container runtimes give them.
pub fn set_umask() {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
}

/// Creates a directory for this user alone; does not change one that exists.
pub fn make_directory(path: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY).create(path);
    made.with_context(|| format!("cannot create {}", path.display()))
}

/// Creates a directory for this user alone; restricts one that exists. Refuses one that belongs to another user, and
/// one that is not the cluster's own, such as /run or /tmp.
pub fn directory(path: &Path) -> Result<()> {
    make_directory(path)?;
    let failed = || format!("cannot read {}", path.display());
    let metadata = std::fs::metadata(path).with_context(failed)?;
    let own = nix::unistd::geteuid().as_raw();
    let is_near_root = std::fs::canonicalize(path).with_context(failed)?.components().count() <= SYSTEM_DEPTH;
    let is_shared = metadata.mode() & STICKY != 0 || (is_near_root && !is_own(path));
    ensure!(!is_shared, "{} is shared with other programs; choose a directory below it", path.display());
    ensure!(
        metadata.uid() == own,
        "{} belongs to user {}, who could replace what is in it; change its owner to {own}, or choose another directory",
        path.display(),
        metadata.uid()
    );
    close(path, metadata.mode(), DIRECTORY)
}

/// Reports whether a directory is empty, or has a file that only a cluster's own directory has.
fn is_own(path: &Path) -> bool {
    let is_empty = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    is_empty || MARKS.iter().any(|mark| path.join(mark).exists())
}

/// Restricts a directory as [`directory`] does, and the files in it.
pub fn directory_of_files(path: &Path) -> Result<()> {
    directory(path)?;
    let failed = || format!("cannot read {}", path.display());
    for entry in std::fs::read_dir(path).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let metadata = entry.metadata().with_context(failed)?;
        if metadata.is_file() {
            close(&entry.path(), metadata.mode(), FILE)?;
        }
    }
    Ok(())
}

/// Opens a file for appending that only this user can read; restricts one that exists.
pub fn append(path: &Path) -> Result<File> {
    let failed = || format!("cannot write {}", path.display());
    let file = OpenOptions::new().create(true).append(true).mode(FILE).open(path).with_context(failed)?;
    let metadata = file.metadata().with_context(failed)?;
    close(path, metadata.mode(), FILE)?;
    Ok(file)
}

/// Writes a file that only this user can read, whole or not at all. It is on the disk when this returns.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_durably(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(DIRECTORY).create(parent)?;
    }
    corten_durable::write(path, bytes, FILE)
}

/// Removes the mode bits beyond `wanted`.
fn close(path: &Path, mode: u32, wanted: u32) -> Result<()> {
    if mode & 0o7777 & !wanted == 0 {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode & wanted))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn open(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn new_files_are_private_and_old_ones_are_restricted() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        directory(&inner).unwrap();
        assert_eq!((mode(&inner), mode(&dir.path().join("a"))), (0o700, 0o700));
        open(&inner, 0o777);
        directory(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
        let log = inner.join("log");
        std::fs::write(&log, "before\n").unwrap();
        open(&log, 0o666);
        append(&log).unwrap().write_all(b"after\n").unwrap();
        open(&log, 0o644);
        directory_of_files(&inner).unwrap();
        assert_eq!((mode(&log), std::fs::read_to_string(&log).unwrap().as_str()), (0o600, "before\nafter\n"));
    }

    #[test]
    fn a_written_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("pki/key.pem"), b"secret").unwrap();
        assert_eq!((mode(&dir.path().join("pki")), mode(&dir.path().join("pki/key.pem"))), (0o700, 0o600));
    }

    #[test]
    fn directories_of_the_system_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), 0o1777);
        for shared in [dir.path(), Path::new("/"), Path::new("/run")] {
            let before = mode(shared);
            assert!(directory(shared).unwrap_err().to_string().contains("is shared"), "{}", shared.display());
            assert_eq!(mode(shared), before);
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        let refused = directory(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("belongs to user 65534"), "{refused}");
    }
}
