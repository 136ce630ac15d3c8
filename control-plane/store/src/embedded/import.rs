//! Makes a store of given content: a checkpoint and an empty log.
//!
//! The files are written into a directory beside the new one, which is renamed once everything is synced. An interrupted
//! import leaves that directory behind, and the next one begins anew.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::checkpoint::{self, Source};
use super::index::Index;
use super::log::Log;
use super::recovery;
use super::segment::sync_dir;
use crate::Error;
use crate::snapshot::Contents;

/// The suffix of the directory that is not complete yet.
const UNFINISHED: &str = ".import";
/// The frame of the log that the checkpoint claims to cover; the log goes on after it.
const COVERED: u64 = 1;

pub fn import(dir: &Path, contents: &Contents) -> Result<(), Error> {
    let failed = |error| Error::io("create", dir, error);
    if !is_vacant(dir).map_err(failed)? {
        return Err(Error::NotEmpty { dir: dir.to_owned() });
    }
    let unfinished = beside(dir);
    match fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io("remove", &unfinished, error)),
        _ => {}
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&unfinished).map_err(failed)?;
    write(&unfinished, contents)?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::rename(&unfinished, dir).and_then(|()| sync_dir(parent)).map_err(failed)
}

/// Reports whether a directory is empty, or does not exist.
fn is_vacant(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

fn beside(dir: &Path) -> PathBuf {
    let mut name = OsString::from(dir.file_name().unwrap_or_default());
    name.push(UNFINISHED);
    dir.with_file_name(name)
}

fn write(dir: &Path, contents: &Contents) -> Result<(), Error> {
    let lock = recovery::lock(dir)?;
    recovery::check_format(&lock, dir, true)?;
    let mut index = Index::new(contents.compacted, contents.base.iter().map(|entry| (**entry).clone()));
    for batch in &contents.history {
        index.apply(batch.clone(), Duration::ZERO);
    }
    let log = Log::create(dir, u64::MAX)?;
    let source = Source {
        snapshot: index.snapshot().clone(),
        history: contents.history.clone(),
        leases: contents.leases.iter().map(|lease| (lease.id, lease.ttl)).collect(),
        sequence: COVERED,
        segment: log.active_segment(),
    };
    checkpoint::write(dir, &source, &AtomicBool::new(false)).map(|_| ())
}
