//! Damage of a store's directory: where it is, what it hit, and how much of the store can be saved.
//!
//! [`verify`] reads every byte of every file and changes nothing. [`repair`] makes a new store of everything that is
//! intact, beside the damaged one, which is kept; it reports each key that is not as it last was. Records that a
//! checksum refuses are never applied; they are read only to name the keys in them.
//!
//! After a loss the store's revision is raised far, so that clients which saw the lost changes read everything anew.

mod findings;
mod salvage;
mod scan;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::import;
use super::recovery;
use super::segment::sync_dir;
use crate::snapshot::Contents;
use crate::{Error, Revision};

use salvage::Salvage;

/// The distance of the revision after a loss.
const REVISION_STEP: Revision = 1_000_000_000;

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub file: PathBuf,
    /// The bytes of the file that are affected: from here
    pub offset: u64,
    /// up to here.
    pub end: u64,
    pub what: String,
    /// The keys in the damaged record, as far as it can be read.
    pub keys: Vec<Bytes>,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: bytes {} to {}: {}", self.file.display(), self.offset, self.end, self.what)?;
        for key in &self.keys {
            write!(formatter, "; {}", String::from_utf8_lossy(key))?;
        }
        Ok(())
    }
}

/// The cost of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The keys of lost records that no later record wrote, with the revision that they have now; 0 if they are gone. A
    /// key is as the damaged record has it: its own bytes may be the damaged ones.
    pub keys: BTreeMap<Bytes, Revision>,
    /// The revisions that were lost, first and last.
    pub revisions: Vec<(Revision, Revision)>,
    /// Whether a lost record could not be read far enough to name all of its keys.
    pub is_incomplete: bool,
}

impl Loss {
    /// Reports whether everything was saved.
    pub fn is_nothing(&self) -> bool {
        self.keys.is_empty() && self.revisions.is_empty() && !self.is_incomplete
    }
}

/// A repaired store.
#[derive(Clone, Debug)]
pub struct Repaired {
    pub findings: Vec<Finding>,
    pub loss: Loss,
    pub keys: usize,
    pub revision: Revision,
    /// The directory of the damaged files.
    pub aside: PathBuf,
}

/// Returns every damage of the store in a directory; none for an intact one. Refuses a store that is in use.
pub fn verify(dir: &Path) -> Result<Vec<Finding>, Error> {
    let _lock = lock(dir)?;
    findings::of(dir)
}

/// Makes a new store of everything that is intact in a damaged one; `None` if nothing is damaged. The new one appears
/// complete or not at all.
pub fn repair(dir: &Path) -> Result<Option<Repaired>, Error> {
    let lock = lock(dir)?;
    let findings = findings::of(dir)?;
    if findings.is_empty() {
        return Ok(None);
    }
    refuse_newer(dir)?;
    let salvage = Salvage::of(dir)?;
    let loss = salvage.loss();
    let step = if loss.is_nothing() { 0 } else { REVISION_STEP };
    let contents: Contents = salvage.contents().raised(step, |_| true);
    let repaired = sibling(dir, "repaired");
    match fs::remove_dir_all(&repaired) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io("remove", &repaired, error));
        }
        _ => {}
    }
    import::import(&repaired, &contents)?;
    let names = (1..).map(|number| sibling(dir, &format!("damaged-{number}")));
    let aside = names.take(1000).find(|path| !path.exists()).unwrap_or_else(|| sibling(dir, "damaged"));
    let parent = dir.parent().unwrap_or(Path::new("/"));
    let moved = fs::rename(dir, &aside).and_then(|()| fs::rename(&repaired, dir)).and_then(|()| sync_dir(parent));
    moved.map_err(|error| Error::io("replace", dir, error))?;
    drop(lock);
    let keys = contents.base.len();
    Ok(Some(Repaired { findings, loss, keys, revision: contents.revision, aside }))
}

fn lock(dir: &Path) -> Result<fs::File, Error> {
    if !dir.is_dir() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io("read", dir, missing));
    }
    recovery::lock(dir)
}

/// Refuses a store of a newer format, whose files this version cannot judge.
fn refuse_newer(dir: &Path) -> Result<(), Error> {
    match recovery::check_format(&recovery::open_format(dir)?, dir, false) {
        Err(error @ Error::NewerFormat { .. }) => Err(error),
        _ => Ok(()),
    }
}

fn sibling(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{suffix}"));
    dir.with_file_name(name)
}
