//! Changes of files that survive a power cut: when a function of this package returns, the change is on the disk.
//!
//! A file system keeps changes in memory for seconds. A write that was not synced may be lost after the file has
//! its name, which leaves an empty file; a rename or a removal whose directory was not synced may be undone, after others
//! have relied on it. So a file is written beside its name, synced and renamed, and then its directory is synced.
//!
//! Must never: let a reader see half of a file, or return before the disk has all of it.

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
    let unfinished = unfinished(path);
    // The rest of a write that was interrupted, or a link.
    removed(fs::remove_file(&unfinished))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| rename(&unfinished, path));
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
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
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
