//! A repository in a directory: each object is a file, written beside the others, synced and renamed.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::{Error, Result};
use crate::objects::Objects;

/// The directory of files that are being written.
pub const TEMPORARY: &str = "tmp/";
/// The deepest directory that a list enters.
const MOST_DEPTH: usize = 4;

/// A directory with a repository.
#[derive(Clone, Debug)]
pub struct Directory {
    root: Arc<Path>,
}

impl Directory {
    /// Takes a directory, which exists: a missing one may be a mount that failed.
    pub fn open(root: &Path) -> Result<Directory> {
        match std::fs::metadata(root) {
            Ok(found) if found.is_dir() => Ok(Directory { root: root.into() }),
            Ok(_) => Err(Error::Place(format!("{} is not a directory", root.display()))),
            Err(error) => Err(Error::Place(format!("the directory {} cannot be used: {error}", root.display()))),
        }
    }

    /// Runs a call on a thread that may block.
    fn call<'a, T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path, &Path) -> std::io::Result<T> + Send + 'static,
    ) -> BoxFuture<'a, Result<T>> {
        let root = self.root.clone();
        let path = root.join(name);
        async move {
            let shown = path.display().to_string();
            let done = tokio::task::spawn_blocking(move || work(&root, &path)).await;
            let done = done.map_err(|error| Error::Place(format!("{shown}: {error}")))?;
            done.map_err(|error| Error::Place(format!("{shown}: {error}")))
        }
        .boxed()
    }
}

impl Objects for Directory {
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<()>> {
        self.call(name, move |root, path| write(root, path, &bytes))
    }

    fn get<'a>(&'a self, name: &'a str, most: usize) -> BoxFuture<'a, Result<Option<Bytes>>> {
        self.call(name, move |_, path| present(read(path, most)))
    }

    fn exists<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.call(name, |_, path| Ok(present(std::fs::symlink_metadata(path))?.is_some()))
    }

    fn list<'a>(&'a self, prefix: &'a str, most: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        let below = prefix.to_owned();
        self.call(prefix, move |_, path| {
            let mut names = Vec::new();
            collect(path, &below, most, MOST_DEPTH, &mut names)?;
            names.sort_unstable();
            Ok(names)
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        self.call(name, |_, path| present(std::fs::remove_file(path)).map(drop))
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.call("", |root, _| Ok(rustix::fs::syncfs(File::open(root)?)?))
    }
}

/// Turns the error of a missing file into none.
fn present<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Writes a file under another name and renames it. Its data are synced first, so that no name shows half a file after
/// a crash.
fn write(root: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = root.join(format!("{TEMPORARY}{}", uuid::Uuid::new_v4().simple()));
    for directory in [temporary.parent(), path.parent()].into_iter().flatten() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        std::fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // Prune removes it, if this does not.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn read(path: &Path, most: usize) -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() > most {
        true => Err(std::io::Error::other(format!("it has more than {most} bytes"))),
        false => Ok(bytes.into()),
    }
}

/// Collects the names of files below a directory. Symbolic links are not followed.
fn collect(path: &Path, prefix: &str, most: usize, depth: usize, names: &mut Vec<String>) -> std::io::Result<()> {
    let Some(entries) = present(std::fs::read_dir(path))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if names.len() >= most {
            return Ok(());
        }
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let below: PathBuf = entry.path();
        match entry.file_type()?.is_dir() && depth > 0 {
            true => collect(&below, &format!("{name}/"), most, depth - 1, names)?,
            false => names.push(name),
        }
    }
    Ok(())
}
