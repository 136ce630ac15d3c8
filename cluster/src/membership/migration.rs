//! How the embedded store of a server becomes its first etcd member, when a cluster of one server gets others.
//!
//! The old store is only read. The member's database is written aside and renamed, etcd starts on it, and etcd's own hash of all
//! keys is compared with that of the old store. Then the old store is renamed: only after that does an API server use the
//! member. A start that finds both begins the migration anew, or goes on with the old store if it is not asked to.
//!
//! Must never: delete the old store, or let an API server write to a member while the old store is in its place.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use corten_members::{Config, Members, State};
use corten_store::Embedded;
use corten_store::snapshot::{self, FirstMember};

use crate::directories::Directories;

/// The suffix of a directory that is not complete yet.
const UNFINISHED: &str = "data.part";

/// An embedded store that is to become a member.
#[derive(Clone, Debug)]
pub struct Migration {
    store: PathBuf,
}

/// The content of the old store, by which the member is checked.
pub struct Expected {
    revision: u64,
    hash: u32,
}

impl Migration {
    /// Returns the migration that a machine needs: none without an embedded store.
    pub fn of(directories: &Directories) -> Option<Migration> {
        let store = directories.data.join("store");
        store.exists().then_some(Migration { store })
    }

    /// Writes the member's data anew, for an etcd that starts as the first of a new cluster.
    pub async fn prepare(&self, config: &Config) -> Result<Expected> {
        let store = self.store.clone();
        let directory = config.directory.clone();
        let endpoints = vec![config.client_url()];
        let first =
            FirstMember { member: id()?, cluster: id()?, name: config.name.clone(), peer_url: config.peer_url() };
        tokio::task::spawn_blocking(move || prepare(&store, &directory, endpoints, &first)).await?
    }

    /// Checks the member that has started, and makes it the cluster's store: the old store is set aside.
    pub async fn finish(&self, config: &Config, members: &Members, expected: &Expected) -> Result<()> {
        let own = members.at(vec![config.client_url()]);
        let hash = own.hash(expected.revision).await.context("the objects in etcd cannot be checked")?;
        ensure!(
            hash == expected.hash,
            "etcd has other objects than the store that they were moved from; the store is unchanged, and the server \
             starts with it without --cluster-init"
        );
        let aside = self.set_aside()?;
        complete(&config.directory)?;
        tracing::info!(
            revision = expected.revision,
            "the objects are in etcd now; the store that they were moved from is {}",
            aside.display()
        );
        Ok(())
    }

    fn set_aside(&self) -> Result<PathBuf> {
        let place = |number: u32| self.store.with_extension(format!("migrated-{number}"));
        let aside = (1..).map(place).find(|path| !path.exists()).context("no name is free for the old store")?;
        corten_durable::rename(&self.store, &aside).with_context(|| format!("cannot move {}", self.store.display()))?;
        Ok(aside)
    }
}

/// Records that the member is the cluster's store: nothing is left to migrate.
pub fn complete(directory: &Path) -> Result<()> {
    match State::read(directory)? {
        Some(state) if state.is_migrating => Ok(State { is_migrating: false, ..state }.write(directory)?),
        _ => Ok(()),
    }
}

/// Returns a random id that is not zero.
fn id() -> Result<u64> {
    let mut bytes = [0; 8];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    filled.map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

fn prepare(store: &Path, directory: &Path, endpoints: Vec<String>, first: &FirstMember) -> Result<Expected> {
    let data = directory.join("data");
    match State::read(directory)? {
        // The remains of a migration that was interrupted: no API server has used them.
        Some(state) if state.is_migrating => remove(&data)?,
        _ => ensure!(!data.exists(), "{} is there already, beside {}", data.display(), store.display()),
    }
    // From here on the data is known to be no cluster's store.
    State { endpoints, is_migrating: true, ..State::default() }.write(directory)?;
    let contents = Embedded::open(corten_store::Config::new(store)).context("the store cannot be opened")?.contents();
    let unfinished = directory.join(UNFINISHED);
    remove(&unfinished)?;
    let created = snapshot::create(&contents, first, &unfinished);
    created.with_context(|| format!("cannot write {}", unfinished.display()))?;
    corten_durable::rename(&unfinished, &data).with_context(|| format!("cannot move {}", unfinished.display()))?;
    Ok(Expected { revision: contents.revision, hash: snapshot::hash(&contents, contents.revision) })
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use corten_members::state;
    use corten_store::snapshot::{Limits, load};
    use corten_store::{Expect, Op, Store as _};

    use super::*;

    #[tokio::test]
    async fn the_old_store_is_only_read_and_remains_are_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        let directory = folder.path().join("etcd");
        let embedded = Embedded::open(corten_store::Config::new(&store)).unwrap();
        for number in 0..10 {
            embedded.commit(vec![Op::put(format!("/registry/{number}"), "v", Expect::Any)]).await.unwrap();
        }
        let before = embedded.contents();
        drop(embedded);
        let endpoints = vec!["https://10.0.0.1:2379".to_owned()];
        let peer_url = "https://10.0.0.1:2380".to_owned();
        let first = FirstMember { member: 1, cluster: 2, name: "one".to_owned(), peer_url };
        state::make_directory(&directory).unwrap();
        // The remains of a run that was killed while it wrote.
        fs::create_dir_all(directory.join(UNFINISHED).join("member")).unwrap();
        let expected = prepare(&store, &directory, endpoints.clone(), &first).unwrap();
        assert_eq!(expected.revision, before.revision);
        let database = directory.join("data/member/snap/db");
        assert_eq!(load(&database, Limits::default()).unwrap(), before);
        assert!(State::read(&directory).unwrap().unwrap().is_migrating);
        // The remains of a run that was killed after it wrote: etcd had begun its log.
        fs::write(directory.join("data/member/wal/1.tmp"), "").unwrap();
        prepare(&store, &directory, endpoints.clone(), &first).unwrap();
        assert!(!directory.join("data/member/wal/1.tmp").exists() && state::has_data(&directory));
        assert_eq!(Embedded::open(corten_store::Config::new(&store)).unwrap().contents(), before);

        let migration = Migration { store: store.clone() };
        let aside = migration.set_aside().unwrap();
        complete(&directory).unwrap();
        assert!(!State::read(&directory).unwrap().unwrap().is_migrating && !store.exists());
        assert_eq!(Embedded::open(corten_store::Config::new(&aside)).unwrap().contents(), before);
        // A member that is the cluster's store is never overwritten.
        fs::rename(&aside, &store).unwrap();
        let refused = prepare(&store, &directory, endpoints, &first).err().unwrap().to_string();
        assert!(refused.contains("is there already"), "{refused}");
        assert!(database.exists());
    }
}
