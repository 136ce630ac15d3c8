//! Backups as files: written under a temporary name, synced and renamed; verified; listed.
//!
//! Invariant: a file with a backup's name is complete, or was damaged later. A write that was interrupted leaves a file
//! that ends in `.part`, which no command takes for a backup.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use corten_store::snapshot::{self, Limits};

use crate::archive::{Contents, Manifest, Opened};
use crate::container::Header;
use crate::{Error, Fault, Secret};

/// The suffix of a file that is not complete.
pub const UNFINISHED: &str = ".part";
/// The suffix of scheduled backups.
pub const SUFFIX: &str = ".corten";
const BUFFER: usize = 256 << 10;
/// The step in which a backup is synced: the store's own syncs wait for all pending writes of the disk, so these must
/// stay small.
const SYNC_BYTES: u64 = 1 << 20;

/// Writes a backup to a path that does not exist yet, and returns its size.
pub fn write(path: &Path, contents: &mut Contents, secret: &Secret) -> Result<u64, Error> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(Error::Exists(path.to_owned()));
    }
    let unfinished = unfinished(path);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io("remove", &unfinished)(error)),
        _ => {}
    }
    let written = write_file(&unfinished, contents, secret);
    let renamed = written.and_then(|size| {
        rename_new(&unfinished, path)?;
        sync_parent(path)?;
        Ok(size)
    });
    if renamed.is_err() {
        // The error is the reason; an incomplete file only takes space.
        let _ = fs::remove_file(&unfinished);
    }
    renamed.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists(path.to_owned()),
        _ => Error::Io { action: "write", path: path.to_owned(), source: error },
    })
}

fn write_file(path: &Path, contents: &mut Contents, secret: &Secret) -> io::Result<u64> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let mut stepwise = BufWriter::with_capacity(BUFFER, Stepwise { file: &file, unsynced: 0 });
    contents.write(&mut stepwise, secret)?;
    stepwise.flush()?;
    drop(stepwise);
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Syncs a file each time that some more was written.
struct Stepwise<'a> {
    file: &'a File,
    unsynced: u64,
}

impl Write for Stepwise<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.unsynced += written as u64;
        if self.unsynced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Renames a file to a name that no file has.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems cannot; the name was free a moment ago.
        Err(rustix::io::Errno::INVAL) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// Syncs the directory of a path.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Opens a backup.
pub fn open(path: &Path, secret: &Secret) -> Result<Opened<BufReader<File>>, Error> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    Opened::new(BufReader::with_capacity(BUFFER, file), secret).map_err(|error| Error::reading(path, error))
}

/// The facts that a complete read of a backup gives.
#[derive(Clone, Debug)]
pub struct Verified {
    pub header: Header,
    pub manifest: Manifest,
    pub files: usize,
    /// The keys in the store, and the store's revision.
    pub keys: usize,
    pub revision: u64,
}

/// Reads a backup completely: every chunk is authenticated, and every key of the snapshot decoded. The snapshot takes
/// space in `scratch` meanwhile, in a file without a name.
pub fn verify(path: &Path, secret: &Secret, scratch: &Path) -> Result<Verified, Error> {
    let opened = open(path, secret)?;
    let header = opened.header.clone();
    let manifest = opened.manifest.clone();
    let files = opened.files.len();
    let contents = load_snapshot(path, opened, scratch)?;
    let keys = contents.current().len();
    Ok(Verified { header, manifest, files, keys, revision: contents.revision })
}

/// Reads the snapshot of an opened backup.
pub fn load_snapshot(
    path: &Path,
    opened: Opened<BufReader<File>>,
    scratch: &Path,
) -> Result<snapshot::Contents, Error> {
    let mut file = scratch_file(scratch)?;
    opened.copy_snapshot(&mut file).map_err(|error| Error::reading(path, error))?;
    // The name of an open file that has none.
    let name = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    snapshot::load(&name, Limits::default()).map_err(|error| {
        let what = match error {
            corten_store::Error::Corrupt { what, .. } => what,
            other => other.to_string(),
        };
        Error::Unusable { file: path.display().to_string(), fault: Fault::Damaged(what) }
    })
}

/// Writes the snapshot of a backup to a new file, for etcd's tools.
pub fn extract_snapshot(path: &Path, secret: &Secret, output: &Path) -> Result<(), Error> {
    let opened = open(path, secret)?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(output);
    let mut file = file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists(output.to_owned()),
        _ => Error::io("write", output)(error),
    })?;
    let copied = opened.copy_snapshot(&mut file).map_err(|error| Error::reading(path, error));
    if copied.is_err() {
        let _ = fs::remove_file(output);
    }
    copied?;
    file.sync_all().and_then(|()| sync_parent(output)).map_err(Error::io("write", output))
}

/// Makes a file without a name in a directory, which ends with its last holder.
pub fn scratch_file(directory: &Path) -> Result<File, Error> {
    let path = directory.join(format!("scratch-{}-{:?}{UNFINISHED}", std::process::id(), std::thread::current().id()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(Error::io("write", &path))?;
    fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    Ok(file)
}

/// A backup in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub bytes: u64,
    /// The header, or the reason why the file is none.
    pub header: Result<Header, Fault>,
}

/// Lists the backups of a directory, oldest first: files with a backup's header, and damaged ones with a backup's name.
pub fn list(directory: &Path) -> Result<Vec<Listed>, Error> {
    let failed = |error| Error::io("list", directory)(error);
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(metadata) = entry.metadata() else { continue };
        if !metadata.is_file() || name.ends_with(UNFINISHED) {
            continue;
        }
        let header = File::open(entry.path()).and_then(|mut file| Header::read(&mut file));
        let header = header.map_err(|error| {
            crate::error::fault_of(&error).unwrap_or_else(|| Fault::Damaged(format!("it cannot be read: {error}")))
        });
        if header != Err(Fault::Foreign) || name.ends_with(SUFFIX) {
            all.push(Listed { name, bytes: metadata.len(), header });
        }
    }
    all.sort_by(|left, right| (created(left), &left.name).cmp(&(created(right), &right.name)));
    Ok(all)
}

fn created(listed: &Listed) -> Option<jiff::Timestamp> {
    listed.header.as_ref().ok().map(|header| header.created)
}
