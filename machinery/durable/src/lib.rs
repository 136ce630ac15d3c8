//! Changes of files that survive a power cut: when a function of this package returns, the change is on the disk.
//!
//! A file system keeps changes in memory for seconds. A write that was not synced may be lost after the file has
//! its name, which leaves an empty file; a rename or a removal whose directory was not synced may be undone, after others
//! have relied on it. So a file is written beside its name, synced and renamed, and then its directory is synced.
//!
//! Must never: let a reader see half of a file, or return before the disk has all of it, except for [`replace`], which says so.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The suffix of a file that is not complete.
const UNFINISHED: &str = ".new";

/// Writes a file with this mode, whole or not at all, in place of an older one.
///
/// One process writes it at a time. A symbolic link that another user made in the way is not followed.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace(path, bytes, mode)?;
    sync_directory(parent(path))
}

/// Writes a file as [`write`] does, but does not wait for its name: after a power cut there may be the older one, or none. For
/// files without which the rest is still right.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let unfinished = unfinished(path);
    // The rest of a write that was interrupted, or a link.
    removed(fs::remove_file(&unfinished))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The error is the reason; an incomplete file only takes space.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Gives a file or a directory another name. What is in it must be on the disk already.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    if parent(from) != parent(to) {
        sync_directory(parent(from))?;
    }
    sync_directory(parent(to))
}

/// Removes a file, and the rest of an interrupted [`write`] of it; an absent one is the wanted state.
pub fn remove(path: &Path) -> io::Result<()> {
    removed(fs::remove_file(unfinished(path)))?;
    removed(fs::remove_file(path))?;
    removed(sync_directory(parent(path)))
}

/// Removes a directory with all that is in it; an absent one is the wanted state.
pub fn remove_directory(path: &Path) -> io::Result<()> {
    removed(fs::remove_dir_all(path))?;
    removed(sync_directory(parent(path)))
}

/// Syncs a directory: what was created, renamed or removed in it stays so.
///
/// A file system that has no sync of directories, as some of networks and of user space, keeps its own promise about names; nothing
/// more can be asked of it.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if has_no_sync(&error) => Ok(()),
        synced => synced,
    }
}

/// Reports whether the error says that there is no such operation, and not that it failed.
fn has_no_sync(error: &io::Error) -> bool {
    // EINVAL and ENOSYS, and EOPNOTSUPP, which the library has no stable kind for on every system.
    const NO_SYNC: [i32; 3] = [22, 38, 95];
    error.kind() == ErrorKind::Unsupported || error.raw_os_error().is_some_and(|code| NO_SYNC.contains(&code))
}

/// Returns the directory of a path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(UNFINISHED);
    name.into()
}

fn removed(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_a_sync_of_directories_is_taken_as_it_is_and_a_failed_sync_is_an_error() {
        for code in [22, 38, 95] {
            assert!(has_no_sync(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for code in [5, 28, 30, 122] {
            assert!(!has_no_sync(&io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(!has_no_sync(&io::Error::other("anything else")));
    }

    #[test]
    fn a_file_is_replaced_whole_and_the_rest_of_an_interrupted_write_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(unfinished(&path), "half").unwrap();
        write(&path, b"one", 0o600).unwrap();
        write(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(!unfinished(&path).exists());
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists());
    }
}
