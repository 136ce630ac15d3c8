//! The change of a data directory: new content takes the place of old, completely or not at all.
//!
//! New content is staged in `restore.part` inside of the data directory, so that every later step is a rename on one
//! disk. When everything is synced, that directory is renamed to `restore`: from then on the restore can be finished or
//! undone, whenever it is interrupted, and no server starts until either was done. What was there before is moved to
//! a directory of its own and never deleted.
//!
//! For each name there are three places: staged, in force, set aside. [`finish`] moves in force → set aside and staged
//! → in force; [`undo`] goes the other way. Both decide from what they find, so either can follow either.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

const UNFINISHED: &str = "restore.part";
const COMMITTED: &str = "restore";
const PLAN: &str = "plan.json";

/// The names of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The file that is restored, for people.
    pub source: String,
    /// The names that the staged directory provides.
    pub install: Vec<String>,
    /// The names that are set aside without a successor.
    pub retire: Vec<String>,
    /// The directory, inside of the data directory, for what was there before.
    pub aside: String,
}

/// A directory in which new content is collected.
#[derive(Debug)]
pub struct Staging {
    data: PathBuf,
}

impl Staging {
    /// Begins a restore into `data`; refuses one that has an interrupted restore.
    pub fn begin(data: &Path) -> Result<Staging, Error> {
        refuse_pending(data)?;
        let staging = Staging { data: data.to_owned() };
        remove(&staging.dir())?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(staging.dir());
        made.map_err(Error::io("create", &staging.dir()))?;
        Ok(staging)
    }

    /// Returns the directory to put new content into.
    pub fn dir(&self) -> PathBuf {
        self.data.join(UNFINISHED)
    }

    /// Makes the staged content durable, and the restore one that is finished or undone. Each name is plain.
    pub fn commit(self, plan: &Plan) -> Result<(), Error> {
        let dir = self.dir();
        let path = dir.join(PLAN);
        let written = serde_json::to_vec_pretty(plan).map_err(io::Error::from);
        let written = written.and_then(|bytes| fs::write(&path, bytes));
        written.map_err(Error::io("write", &path))?;
        sync_tree(&dir).map_err(Error::io("sync", &dir))?;
        let committed = self.data.join(COMMITTED);
        rename(&dir, &committed)?;
        sync(&self.data)
    }

    /// Drops the staged content.
    pub fn abandon(self) -> Result<(), Error> {
        remove(&self.dir())
    }
}

/// Refuses a data directory with an interrupted restore.
pub fn refuse_pending(data: &Path) -> Result<(), Error> {
    match pending(data)? {
        None => Ok(()),
        Some(plan) => Err(Error::Pending { source_file: plan.source, data: data.to_owned() }),
    }
}

/// Returns the interrupted restore of a data directory.
pub fn pending(data: &Path) -> Result<Option<Plan>, Error> {
    let path = data.join(COMMITTED).join(PLAN);
    match fs::read(&path) {
        Ok(bytes) => {
            let plan = serde_json::from_slice(&bytes).map_err(io::Error::from).map_err(Error::io("read", &path))?;
            Ok(Some(plan))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path)(error)),
    }
}

/// Finishes a restore, and returns the directory of what was there before, if there was anything.
pub fn finish(data: &Path) -> Result<Option<PathBuf>, Error> {
    let plan = pending(data)?.ok_or_else(|| Error::NothingPending(data.to_owned()))?;
    let places = Places::of(data, &plan);
    for name in plan.install.iter().chain(&plan.retire) {
        let is_staged = places.staged(name).try_exists().map_err(Error::io("read", &places.staged(name)))?;
        let is_retired = plan.retire.contains(name);
        if (is_staged || is_retired) && exists(&places.in_force(name)) {
            places.make_aside()?;
            rename(&places.in_force(name), &places.aside(name))?;
            sync(&places.aside)?;
        }
        if is_staged {
            rename(&places.staged(name), &places.in_force(name))?;
        }
        sync(data)?;
    }
    places.close(data)?;
    Ok(Some(places.aside.clone()).filter(|aside| exists(aside)))
}

/// Takes a restore back: what was there before is in force again.
pub fn undo(data: &Path) -> Result<(), Error> {
    let plan = pending(data)?.ok_or_else(|| Error::NothingPending(data.to_owned()))?;
    let places = Places::of(data, &plan);
    for name in plan.install.iter().chain(&plan.retire) {
        let is_installed = plan.install.contains(name) && !exists(&places.staged(name));
        if is_installed && exists(&places.in_force(name)) {
            rename(&places.in_force(name), &places.staged(name))?;
            sync(&places.staged)?;
        }
        if exists(&places.aside(name)) {
            rename(&places.aside(name), &places.in_force(name))?;
        }
        sync(data)?;
    }
    places.close(data)?;
    // Nothing is in it any more; one that has something stays.
    let _ = fs::remove_dir(&places.aside);
    Ok(())
}

struct Places {
    data: PathBuf,
    staged: PathBuf,
    aside: PathBuf,
}

impl Places {
    fn of(data: &Path, plan: &Plan) -> Places {
        Places { data: data.to_owned(), staged: data.join(COMMITTED), aside: data.join(&plan.aside) }
    }

    fn staged(&self, name: &str) -> PathBuf {
        self.staged.join(name)
    }

    fn in_force(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    fn aside(&self, name: &str) -> PathBuf {
        self.aside.join(name)
    }

    fn make_aside(&self) -> Result<(), Error> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.aside);
        made.map_err(Error::io("create", &self.aside))
    }

    /// Ends the restore: its directory gets the name of an unfinished one, which is removed.
    fn close(&self, data: &Path) -> Result<(), Error> {
        let unfinished = data.join(UNFINISHED);
        remove(&unfinished)?;
        rename(&self.staged, &unfinished)?;
        sync(data)?;
        remove(&unfinished)
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    fs::rename(from, to).map_err(Error::io("move", from))
}

fn sync(directory: &Path) -> Result<(), Error> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(Error::io("sync", directory))
}

fn remove(directory: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", directory)(error)),
        _ => Ok(()),
    }
}

/// Syncs every file and directory below `path`, of which none is deep.
fn sync_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(path)?.sync_all()
}
