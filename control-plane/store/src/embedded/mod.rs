//! The embedded engine: all data in memory, every change in a log on disk before it is visible.
//!
//! The steps of a write, and the module of each:
//!
//! 1. it queues for the one committer thread (`queue`, `committer`);
//! 2. all queued requests are decided in order and become a group (`group`);
//! 3. the group is appended to the log as one frame and synced (`frame`, `log`, `segment`);
//! 4. it is applied to the index (`index`, `lease`) and sent to the watchers (`hub`);
//! 5. its callers are answered.
//!
//! A [`Transaction`](transaction::Transaction) is decided in step 2 by code of its caller.
//!
//! Reads and new watches use the index alone. From time to time a checkpoint replaces the log so far (`checkpoint`). The
//! one before it stays, with the log between them: a checkpoint that turns out to be damaged costs nothing.
//! `recovery` opens a directory; `inspect` names every damage of one, and saves the rest.

mod checkpoint;
mod committer;
mod config;
pub(crate) mod frame;
mod group;
mod hub;
mod import;
mod index;
mod inspect;
mod lease;
mod log;
mod queue;
pub(crate) mod recovery;
pub(crate) mod segment;
mod transaction;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use self::committer::Committer;
use self::hub::Hub;
use self::index::Index;
use self::lease::Leases;
use self::queue::{Queue, Reply, Request};
use self::transaction::{Deliver, Transaction};
use crate::snapshot::{Contents, Grant};
use crate::{Entry, Error, Health, Lease, LeaseId, Op, Outcome, Range, RangeResult, Revision, Store, Watch};

pub use config::{Clock, CommitterPlace, Config, MonotonicClock, Retain};
pub use inspect::{Finding, Loss, Repaired, repair, verify};
pub use transaction::View;

/// A store in a directory of this machine, for one process at a time. Dropping it closes it.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    watch_buffer: usize,
    clock: Arc<dyn Clock>,
    committer: Option<Running>,
    dir: PathBuf,
    /// The lock on the directory.
    lock: File,
}

/// The committer that runs.
#[derive(Debug)]
enum Running {
    Thread(JoinHandle<()>),
    Task(AbortHandle),
}

/// The state that the callers and the committer share.
///
/// Invariant: the locks are taken in the order hub, index, leases, and never across an await.
#[derive(Debug)]
struct Shared {
    queue: Queue,
    hub: Mutex<Hub>,
    index: RwLock<Index>,
    leases: Mutex<Leases>,
    health: watch::Sender<Health>,
    /// The time of the clock until which the store is frozen; zero if it is not.
    frozen_until: Mutex<Duration>,
}

/// The panic message of a poisoned lock. Only a panic of the committer poisons one, which is a bug that must stop the
/// store.
const POISONED: &str = "no holder of the store's locks panics";

impl Shared {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().expect(POISONED)
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().expect(POISONED)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().expect(POISONED)
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().expect(POISONED)
    }

    /// Reports whether the store takes no writes at this time of its clock.
    fn is_frozen(&self, now: Duration) -> bool {
        now < *self.frozen_until.lock().expect(POISONED)
    }
}

impl Embedded {
    /// Opens the store in `config.dir`, or makes one there.
    ///
    /// Refuses a directory that another process holds, one of a newer format, and one that has lost acknowledged data.
    pub fn open(config: Config) -> Result<Arc<Embedded>, Error> {
        let recovered = recovery::recover(&config)?;
        let shared = Arc::new(Shared {
            queue: Queue::new(config.queue),
            hub: Mutex::default(),
            index: RwLock::new(recovered.index),
            leases: Mutex::new(recovered.leases),
            health: watch::Sender::default(),
            frozen_until: Mutex::default(),
        });
        let watch_buffer = config.watch_buffer;
        let clock = config.clock.clone();
        let dir = config.dir.clone();
        let place = config.committer;
        let committer = Committer::new(shared.clone(), config, recovered.log, recovered.last);
        let committer = match place {
            CommitterPlace::Thread => thread::Builder::new()
                .name("store-committer".to_owned())
                .spawn(move || committer.run())
                .map(Running::Thread)
                .map_err(|error| Error::io("start the committer of", &dir, error))?,
            CommitterPlace::Task => Running::Task(tokio::spawn(committer.run_as_task()).abort_handle()),
        };
        Ok(Arc::new(Embedded { shared, watch_buffer, clock, committer: Some(committer), dir, lock: recovered.lock }))
    }

    /// Makes the store check its clock now, and returns after it has acted on it. Only a manual clock needs this.
    pub async fn tick(&self) -> Result<(), Error> {
        self.ask(|reply| Request::Tick { reply }).await
    }

    /// Runs code that reads and changes the store at one revision, in the order of all commits. Its answer arrives once
    /// its changes are durable; an error drops them. The code must only compute.
    pub async fn transact<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut View<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let decide = |reply: Reply<T>| {
            Transaction::new(move |view| {
                let result = run(view).inspect_err(|_| view.discard());
                let deliver: Deliver = Box::new(move |failure| group::send(reply, failure, result));
                deliver
            })
        };
        self.ask(|reply| Request::Transact(decide(reply))).await
    }

    /// Refuses writes, and lets no lease expire, for this time, unless it is frozen again; zero ends it. When this
    /// returns, no write is under way, and the store's revision stays.
    pub async fn freeze(&self, time: Duration) -> Result<Revision, Error> {
        let until = if time.is_zero() { Duration::ZERO } else { self.clock.now().saturating_add(time) };
        *self.shared.frozen_until.lock().expect(POISONED) = until;
        self.tick().await?;
        Ok(self.revision())
    }

    /// Reports whether the store refuses writes because it is frozen.
    pub fn is_frozen(&self) -> bool {
        self.shared.is_frozen(self.clock.now())
    }

    /// Returns the ids of the leases, in order.
    pub fn leases(&self) -> Vec<LeaseId> {
        let mut ids: Vec<LeaseId> = self.shared.leases().granted().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns everything in the store, at its last revision.
    pub fn contents(&self) -> Contents {
        let index = self.shared.index();
        let leases = self.shared.leases();
        let snapshot = index.snapshot().clone();
        let history = index.history(snapshot.compacted + 1).map(|batches| batches.cloned().collect());
        let mut leases: Vec<Grant> = leases.granted().map(|(id, ttl)| Grant { id, ttl }).collect();
        // The rest needs no lock.
        drop(index);
        leases.sort_unstable_by_key(|lease| lease.id);
        Contents {
            revision: snapshot.revision,
            compacted: snapshot.compacted,
            base: snapshot.base().cloned().collect(),
            history: history.expect("what comes after the compacted revision is kept"),
            leases,
        }
    }

    /// Makes a store with this content in a directory that does not exist, or is empty. It is complete or not there,
    /// whenever this is interrupted.
    pub fn import(dir: &Path, contents: &Contents) -> Result<(), Error> {
        import::import(dir, contents)
    }

    /// Makes an empty file on the store's disk, which ends with its last holder.
    pub fn scratch_file(&self) -> Result<File, Error> {
        segment::scratch(&self.dir)
    }

    /// Queues a request and waits for its answer.
    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.shared.queue.push(request(reply)).await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

impl Store for Embedded {
    fn revision(&self) -> Revision {
        self.shared.index().snapshot().revision
    }

    fn compacted(&self) -> Revision {
        self.shared.index().snapshot().compacted
    }

    fn size(&self) -> u64 {
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        // Allocated blocks count, as for any database: the log is made in advance.
        files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum()
    }

    fn free(&self) -> Option<u64> {
        segment::free_space(&self.dir)
    }

    fn follow_health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    fn get(&self, key: &[u8]) -> BoxFuture<'_, Result<(Revision, Option<Entry>), Error>> {
        let index = self.shared.index();
        let snapshot = index.snapshot();
        let entry = snapshot.get(key).map(|entry| Entry::clone(entry));
        ready(Ok((snapshot.revision, entry))).boxed()
    }

    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult, Error>> {
        // The snapshot is a copy, so that a long range does not block the committer.
        async move {
            let snapshot = self.shared.index().snapshot().clone();
            snapshot.range(&range)
        }
        .boxed()
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Outcome, Error>> {
        async move {
            group::check(&ops)?;
            self.ask(|reply| Request::Commit { ops, reply }).await
        }
        .boxed()
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        let prefix = Bytes::copy_from_slice(prefix);
        async move {
            let mut hub = self.shared.hub();
            hub.watch(&self.shared.index(), &prefix, from, self.watch_buffer)
        }
        .boxed()
    }

    fn progress(&self, prefix: &[u8]) -> BoxFuture<'_, Result<Revision, Error>> {
        let prefix = Bytes::copy_from_slice(prefix);
        async move {
            let mut hub = self.shared.hub();
            let revision = self.revision();
            hub.progress(&prefix, revision);
            Ok(revision)
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>> {
        self.ask(move |reply| Request::Compact { revision, reply }).boxed()
    }

    fn grant(&self, ttl: Duration, id: LeaseId) -> BoxFuture<'_, Result<LeaseId, Error>> {
        self.ask(move |reply| Request::Grant { id, ttl, reply }).boxed()
    }

    fn revoke(&self, id: LeaseId) -> BoxFuture<'_, Result<Revision, Error>> {
        self.ask(move |reply| Request::Revoke { id, reply }).boxed()
    }

    fn keep_alive(&self, id: LeaseId) -> BoxFuture<'_, Result<Duration, Error>> {
        ready(self.shared.leases().keep_alive(id, self.clock.now())).boxed()
    }

    fn time_to_live(&self, id: LeaseId) -> BoxFuture<'_, Result<Lease, Error>> {
        ready(self.shared.leases().describe(id, self.clock.now())).boxed()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.queue.close();
        match self.committer.take() {
            // A panic of the committer was reported where it happened.
            Some(Running::Thread(committer)) => drop(committer.join()),
            Some(Running::Task(committer)) => committer.abort(),
            None => {}
        }
        // The watches end here: nothing will feed them any more.
        *self.shared.hub.lock().unwrap_or_else(PoisonError::into_inner) = Hub::default();
        // Closing the file is not enough: a process that is being forked at this moment has it too.
        let _ = self.lock.unlock();
    }
}
