//! The content of a new data directory: the store, made of a snapshot, and files.
//!
//! The store's revision is raised far beyond any that a client of the old cluster can have seen. Clients that come back
//! get 410 and read everything anew; without that they would take old objects for newer ones, or wait for revisions that
//! never come.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use corten_store::Embedded;
use corten_store::snapshot::Contents;

use crate::restore::{Plan, Staging};
use crate::{Error, Fault};

/// The distance of the new revision from that of the snapshot: more than a busy cluster writes in years.
pub const REVISION_STEP: u64 = 1_000_000_000;
/// The most parts of a file's path.
const DEEPEST: usize = 4;
/// The name of the store in a data directory.
pub const STORE: &str = "store";

/// A data directory to be made.
pub struct Rebuild<'a> {
    /// The name of the source, for people.
    pub source: String,
    pub contents: &'a Contents,
    /// Whether a key of the snapshot is kept.
    pub keeps: &'a dyn Fn(&[u8]) -> bool,
    /// The files by their path in the data directory.
    pub files: &'a BTreeMap<String, Vec<u8>>,
    /// The names in the data directory that are set aside without a successor.
    pub retire: &'a [&'a str],
    /// The directory, inside of the data directory, for what was there before.
    pub aside: String,
}

/// Stages everything. Nothing of the data directory is changed before [`crate::restore::finish`].
pub fn stage(staging: Staging, rebuild: &Rebuild<'_>) -> Result<(), Error> {
    let dir = staging.dir();
    let mut names: BTreeSet<String> = [STORE.to_owned()].into();
    for (name, bytes) in rebuild.files {
        let path = plain(name).ok_or_else(|| {
            let fault = Fault::Damaged(format!("it holds a file {name:?}, which no cluster has"));
            Error::Unusable { file: rebuild.source.clone(), fault }
        })?;
        names.extend(path.iter().next().map(|first| first.to_string_lossy().into_owned()));
        write(&dir.join(path), bytes)?;
    }
    let contents = rebuild.contents.raised(REVISION_STEP, rebuild.keeps);
    Embedded::import(&dir.join(STORE), &contents)?;
    let plan = Plan {
        source: rebuild.source.clone(),
        install: names.into_iter().collect(),
        retire: rebuild.retire.iter().map(|name| (*name).to_owned()).collect(),
        aside: rebuild.aside.clone(),
    };
    staging.commit(&plan)
}

/// Returns the path of a name that stays below its directory and names no file of the restore itself.
fn plain(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let is_plain =
        path.components().all(|part| matches!(part, Component::Normal(_))) && path.components().count() <= DEEPEST;
    let first = path.iter().next()?.to_str()?;
    (is_plain && !matches!(first, STORE | "restore" | "restore.part" | "plan.json")).then(|| path.to_owned())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let failed = |error| Error::io("write", path)(error);
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    }
    let file = fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, bytes)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_below_the_data_directory() {
        for good in ["pki/ca.key", "cluster.json"] {
            assert!(plain(good).is_some(), "{good}");
        }
        for bad in
            ["", "/etc/passwd", "../x", "pki/../../x", "pki/a/b/c/d", "store/FORMAT", "plan.json", "restore/x", "."]
        {
            assert!(plain(bad).is_none(), "{bad}");
        }
    }
}
