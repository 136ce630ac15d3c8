//! The backup of this cluster: what is collected, from where, and the record of the last one.
//!
//! The command and the schedule take one path: [`Subject`] says whose backup it is, [`collect`] reads everything, and a
//! [`corten_backup::Target`] keeps it.

mod access;
mod record;
mod source;

use std::collections::BTreeMap;
use std::io::Seek;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use corten_backup::archive::{Contents, MOST_FILE_BYTES};
use corten_backup::{Header, Manifest, Secret};

use crate::directories::Directories;
use crate::settings::Settings;
use crate::version::VERSION;

pub use access::{directory, local_copy, place, secret};
pub use record::{Success, record_failure, record_success, status};
pub use source::Source;

/// The name of the EncryptionConfiguration in a backup and in a restored data directory.
pub const ENCRYPTION_FILE: &str = "encryption.yaml";
/// The directory of authorities and keys, in a backup and in a data directory.
const PKI: &str = "pki";
/// The most levels of directories below the directory of keys.
const DEEPEST: usize = 3;
/// The attempts to read files and snapshot without a change of the files in between.
const ATTEMPTS: usize = 5;

/// A cluster to back up.
pub struct Subject {
    pub directories: Directories,
    pub node: String,
    pub settings: Settings,
    /// The prefix of all keys in the store.
    pub prefix: String,
    /// The EncryptionConfiguration that the server was started with.
    pub encryption: Option<PathBuf>,
    /// The flags that the server was started with, for people.
    pub flags: Vec<String>,
    pub source: Source,
}

/// Reads everything that a backup holds. The files are read before and after the snapshot: a rotation of keys in between
/// would leave a snapshot that they do not open.
pub async fn collect(subject: &Subject, secret: &Secret, time: jiff::Timestamp) -> Result<Contents> {
    for _ in 0..ATTEMPTS {
        let files = files(subject)?;
        let scratch = corten_backup::file::scratch_file(&subject.directories.data)?;
        let mut snapshot = subject.source.snapshot(scratch).await?;
        if self::files(subject)? != files {
            continue;
        }
        snapshot.rewind()?;
        let snapshot_bytes = snapshot.metadata()?.len();
        let authority = files.get(&format!("{PKI}/ca.crt")).context("this data directory has no CA")?;
        let manifest = Manifest {
            node: subject.node.clone(),
            prefix: subject.prefix.clone(),
            settings: serde_json::to_value(&subject.settings)?,
            flags: subject.flags.clone(),
        };
        let header = Header::new(time, VERSION, cluster_id(authority), secret)?;
        return Ok(Contents { header, manifest, files, snapshot, snapshot_bytes });
    }
    anyhow::bail!("the keys in {} change all the time; try again", subject.directories.pki().display())
}

/// Returns the id of a cluster: the SHA-256 of its CA certificate.
pub fn cluster_id(authority: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, authority);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the files of the cluster's identity.
fn files(subject: &Subject) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    read_directory(&subject.directories.pki(), PKI, DEEPEST, &mut files)?;
    if let Some(path) = &subject.encryption {
        files.insert(ENCRYPTION_FILE.to_owned(), read_file(path)?);
    }
    Ok(files)
}

fn read_directory(path: &Path, name: &str, depth: usize, files: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    let failed = || format!("cannot read {}", path.display());
    for entry in std::fs::read_dir(path).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let kind = entry.file_type().with_context(failed)?;
        let file_name = entry.file_name();
        let inner = format!("{name}/{}", file_name.to_string_lossy());
        // A file with this suffix is being written, and renamed in a moment.
        if kind.is_file() && !inner.ends_with(".new") {
            files.insert(inner, read_file(&entry.path())?);
        } else if kind.is_dir() && depth > 1 {
            read_directory(&entry.path(), &inner, depth - 1, files)?;
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let failed = || format!("cannot read {}", path.display());
    let bytes = std::fs::metadata(path).with_context(failed)?.len();
    ensure!(bytes <= MOST_FILE_BYTES, "{} has {bytes} bytes, more than a backup takes of a file", path.display());
    std::fs::read(path).with_context(failed)
}
