//! The watch cache: all stored objects as shared bytes, fed by one watch of the store.
//!
//! Lists and watches are served from here. A reader first waits until the feed has reached the store's revision
//! (`fresh`), so that its result is never older than the last acknowledged write.
//!
//! Invariant: a resource's changes are applied whole, in order of revision, and `progress` is raised only
//! after every resource holds the changes of that revision. The cache never writes.

pub mod event;
mod groups;
mod pacer;
mod resource;
mod watcher;
mod written_headers;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use corten_api::Kind;
use corten_meta::{Header, Object, Status, Value};
use corten_store::{Entry, EventKind, Range, Revision, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use pacer::Pacer;
pub use resource::{Change, ChangeKind, Filter, Item, ResourceCache, Window, projected, shown};
pub use watcher::{Watcher, WatcherOptions, transition};
pub use written_headers::{PendingHeader, WrittenHeaders};

use crate::encryption::Transformer;
use crate::error::{Error, store_status};
use crate::storage_format::{Root, StorageFormat};
use crate::tasks::Tasks;

/// The revision of an empty store.
const EMPTY_STORE: Revision = 1;

/// The time that a read waits for the feed before it fails with 504.
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval at which a waiting read requests the progress of a store that other processes write to: their changes
/// of other keys raise its revision, and the feed hears nothing of them.
const PROGRESS: Duration = Duration::from_millis(100);
/// The time before the first request, in which nearly every change arrives by itself.
const FIRST_PROGRESS: Duration = Duration::from_millis(10);

/// The entries of one page of a load from a store of other machines.
const PAGE: usize = 1000;

/// The store, and the parts that turn its entries into objects.
pub struct Sources {
    pub store: Arc<dyn Store>,
    pub transformer: Arc<Transformer>,
    pub format: Arc<StorageFormat>,
    pub root: Root,
}

/// All resource caches and the progress of their feed.
pub struct Caches {
    by_prefix: RwLock<HashMap<String, Arc<ResourceCache>>>,
    additions: mpsc::Sender<Addition>,
    progress: watch::Sender<Revision>,
    sources: Sources,
    /// The headers that writers keep for the feed.
    pub written_headers: WrittenHeaders,
    /// Entries that could not be read, by their keys.
    unread: Mutex<BTreeMap<Vec<u8>, Error>>,
}

/// A kind that is added to the caches.
struct Addition {
    prefix: String,
    kind: Arc<Kind>,
    done: oneshot::Sender<()>,
}

impl Caches {
    /// Fills the caches from the store and starts the task that keeps them current.
    pub async fn start(
        sources: Sources,
        hubs: impl IntoIterator<Item = (String, Arc<Kind>)>,
        tasks: &Tasks,
    ) -> Result<Arc<Caches>, Error> {
        let by_prefix = hubs.into_iter().map(|(prefix, kind)| (prefix, Arc::new(ResourceCache::new(kind)))).collect();
        let (additions, receiver) = mpsc::channel(16);
        let by_prefix = RwLock::new(by_prefix);
        let progress = watch::Sender::new(0);
        let unread = Mutex::default();
        let written_headers = WrittenHeaders::default();
        let caches = Arc::new(Caches { by_prefix, additions, progress, sources, written_headers, unread });
        let revision = caches.load().await?;
        tasks.spawn(Arc::clone(&caches).feed(revision, receiver, tasks.shutdown.clone()));
        caches.caught_up().await.map_err(|status| Error::Bootstrap(status.message))?;
        // A server with the wrong keys must not take the objects that it cannot decrypt for absent.
        match caches.sealed() {
            Some(sealed) => {
                tasks.abort();
                Err(sealed)
            }
            None => Ok(caches),
        }
    }

    /// Waits until the feed has replayed the changes since the load, for as long as it advances: a busy machine may need
    /// longer for a whole window than a read may wait.
    async fn caught_up(&self) -> Result<(), Status> {
        let mut reached = self.revision();
        loop {
            match self.fresh().await {
                Ok(_) => return Ok(()),
                Err(_) if self.revision() > reached => reached = self.revision(),
                Err(status) => return Err(status),
            }
        }
    }

    /// Returns the forms of stored objects.
    pub fn format(&self) -> &StorageFormat {
        &self.sources.format
    }

    /// Returns the root of the keys in the store.
    pub fn root(&self) -> &Root {
        &self.sources.root
    }

    /// Returns the cache of the resource stored under `prefix`.
    pub fn of(&self, prefix: &str) -> Option<Arc<ResourceCache>> {
        self.map().get(prefix).cloned()
    }

    /// Adds these kinds to the caches, from the feed's present revision on.
    pub async fn hold(&self, hubs: &HashMap<String, Arc<Kind>>) -> Result<(), Status> {
        for (prefix, kind) in hubs {
            // A resource of the same name whose scope has changed has other keys.
            if self.of(prefix).is_some_and(|cache| cache.kind.namespaced == kind.namespaced) {
                continue;
            }
            let (done, added) = oneshot::channel();
            let addition = Addition { prefix: prefix.clone(), kind: Arc::clone(kind), done };
            let stopped = || Status::service_unavailable("the watch cache has stopped");
            self.additions.send(addition).await.map_err(|_| stopped())?;
            added.await.map_err(|_| stopped())?;
        }
        Ok(())
    }

    /// Removes every kind but these. A watch of a removed kind keeps its cache until it ends.
    pub fn forget_others(&self, hubs: &HashMap<String, Arc<Kind>>) {
        let mut map = self.by_prefix.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.retain(|prefix, _| hubs.contains_key(prefix));
    }

    fn map(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Arc<ResourceCache>>> {
        self.by_prefix.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the revision that all caches have reached.
    pub fn revision(&self) -> Revision {
        *self.progress.borrow()
    }

    /// Returns whether the caches have all writes that the store had acknowledged when this was called.
    pub fn is_fresh(&self) -> bool {
        let store = &self.sources.store;
        // The store is read first: a cache that is read later may be newer, never older.
        let revision = store.revision();
        !store.is_shared() && self.revision() >= revision
    }

    /// Waits until the caches have the store's present state.
    pub async fn fresh(&self) -> Result<Revision, Status> {
        let store = &self.sources.store;
        let revision = if store.is_shared() { store.current().await.map_err(store_status)? } else { store.revision() };
        self.reach(revision).await
    }

    /// Waits until the caches have reached `revision`.
    pub async fn reach(&self, revision: Revision) -> Result<Revision, Status> {
        let at = self.revision();
        if at >= revision {
            return Ok(at);
        }
        let mut progress = self.progress.subscribe();
        let reached = tokio::time::timeout(FRESH_TIMEOUT, async {
            tokio::select! {
                at = progress.wait_for(|at| *at >= revision) => at.ok().map(|at| *at),
                never = self.request_progress(), if self.sources.store.is_shared() => match never {},
            }
        });
        match reached.await {
            Ok(Some(at)) => Ok(at),
            _ => Err(too_large_resource_version(revision, self.revision())),
        }
    }

    /// Requests progress notifications of the feed's watch for as long as a read waits.
    async fn request_progress(&self) -> Infallible {
        tokio::time::sleep(FIRST_PROGRESS).await;
        loop {
            if let Err(error) = self.sources.store.progress(self.root().all().as_bytes()).await {
                tracing::debug!(%error, "no progress of the store's watch");
            }
            tokio::time::sleep(PROGRESS).await;
        }
    }

    /// Fills the caches with a state as old as a window is long: the feed then replays the changes since, so that
    /// clients can resume from a resourceVersion of before a restart.
    async fn load(&self) -> Result<Revision, Error> {
        let store = &self.sources.store;
        let oldest = store.current().await?.saturating_sub(resource::WINDOW as Revision);
        let from = oldest.max(store.compacted()).max(EMPTY_STORE);
        let all = Range::prefix(self.root().all().as_bytes());
        let revision = match self.load_range(all.clone().at(from)).await {
            // The store was compacted just now; its present state is always there.
            Err(corten_store::Error::Compacted { .. }) => {
                self.map().values().for_each(|cache| cache.clear());
                self.load_range(all).await?
            }
            other => other?,
        };
        for cache in self.map().values() {
            cache.begin_window(revision);
        }
        self.progress.send_replace(revision);
        Ok(revision)
    }

    /// Applies all entries of a range, at the revision of its first page, which is returned.
    async fn load_range(&self, range: Range) -> Result<Revision, corten_store::Error> {
        let limit = if self.sources.store.is_shared() { PAGE } else { 0 };
        let mut range = range.limit(limit);
        loop {
            let page = self.sources.store.range(range.clone()).await?;
            for entry in &page.entries {
                self.apply(entry.mod_revision, EventKind::Put, entry).await;
            }
            match page.entries.last().filter(|_| page.more) {
                None => return Ok(page.revision),
                // The next key after this one.
                Some(last) => range = range.from([&last.key, &[0_u8][..]].concat()).at(page.revision),
            }
        }
    }

    /// Applies the store's changes until shutdown, and resumes at its revision when a watch ends.
    async fn feed(
        self: Arc<Self>,
        mut revision: Revision,
        mut additions: mpsc::Receiver<Addition>,
        shutdown: CancellationToken,
    ) {
        let mut pacer = Pacer::new(Instant::now());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                ended = self.follow(&mut revision, &mut additions, &mut pacer) => {
                    tracing::warn!(revision, error = %ended, "the store's watch ended; resuming");
                    if matches!(ended, corten_store::Error::Compacted { .. }) {
                        revision = self.reload(revision).await;
                    }
                }
            }
            // Retries wait a little: a store that cannot be watched must not cause a tight loop.
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    }

    async fn follow(
        &self,
        revision: &mut Revision,
        additions: &mut mpsc::Receiver<Addition>,
        pacer: &mut Pacer,
    ) -> corten_store::Error {
        let mut watch = match self.sources.store.watch(self.root().all().as_bytes(), *revision + 1).await {
            Ok(watch) => watch,
            Err(e) => return e,
        };
        loop {
            let batch = tokio::select! {
                Some(addition) = additions.recv() => {
                    if let Err(e) = self.add(addition, *revision).await {
                        return e;
                    }
                    continue;
                }
                () = pacer.due() => {
                    pacer.wake_due(Instant::now());
                    continue;
                }
                batch = watch.next() => batch,
            };
            let batch = match batch {
                Some(Ok(batch)) => batch,
                Some(Err(e)) => return e,
                None => return corten_store::Error::Closed,
            };
            let mut touched: Vec<Arc<ResourceCache>> = Vec::with_capacity(batch.events.len());
            for event in batch.events.iter() {
                touched.extend(self.apply(batch.revision, event.kind, &event.entry).await);
            }
            *revision = batch.revision;
            self.progress.send_replace(batch.revision);
            let now = Instant::now();
            touched.iter().for_each(|cache| pacer.changed(cache, now));
        }
    }

    /// Fills a new cache with the state at the feed's revision; the feed applies the later changes.
    async fn add(&self, addition: Addition, revision: Revision) -> Result<(), corten_store::Error> {
        let base = format!("{}/", self.root().key(&addition.prefix));
        let cache = Arc::new(ResourceCache::new(addition.kind));
        self.by_prefix
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(addition.prefix, Arc::clone(&cache));
        self.load_range(Range::prefix(base.as_bytes()).at(revision)).await?;
        cache.begin_window(revision);
        // The caller may have been cancelled; the cache stays until it is removed.
        let _ = addition.done.send(());
        Ok(())
    }

    /// Starts over and ends every watch, after the history between the feed and the store was compacted.
    async fn reload(&self, revision: Revision) -> Revision {
        self.written_headers.clear();
        for cache in self.map().values() {
            cache.clear();
        }
        match self.load().await {
            Ok(at) => at,
            Err(e) => {
                tracing::error!(error = %e, "the watch cache cannot be filled");
                revision
            }
        }
    }

    /// Applies one change to the cache of its resource, and returns that cache.
    async fn apply(&self, revision: Revision, kind: EventKind, entry: &Entry) -> Option<Arc<ResourceCache>> {
        let header = self.written_headers.take(&entry.value);
        let (cache, name) = self.route(&entry.key)?;
        let item = match kind {
            EventKind::Delete => None,
            EventKind::Put => match self.read(&cache.kind, entry, header).await {
                Ok(object) => Some(Arc::new(Item::read(&cache.kind, object))),
                Err(e) => {
                    tracing::error!(error = %e, "a stored object cannot be read; it is left out");
                    self.unread().insert(entry.key.to_vec(), e);
                    return None;
                }
            },
        };
        if !self.unread().is_empty() {
            self.unread().remove(entry.key.as_ref());
        }
        cache.apply(revision, name, item);
        Some(cache)
    }

    fn unread(&self) -> std::sync::MutexGuard<'_, BTreeMap<Vec<u8>, Error>> {
        self.unread.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the error of an object that none of the keys decrypts.
    fn sealed(&self) -> Option<Error> {
        let all = std::mem::take(&mut *self.unread());
        all.into_values().find(|e| matches!(e, Error::Sealed { .. }))
    }

    /// Returns the object of an entry of the feed; its writer may have kept the header.
    async fn read(&self, kind: &Kind, entry: &Entry, header: Option<Header>) -> Result<Object, Error> {
        match header {
            Some(header) => Ok(Object { bytes: entry.value.clone(), revision: entry.mod_revision, header }),
            None => self.decode(kind, entry).await,
        }
    }

    /// Decrypts and parses the object of an entry.
    pub async fn decode(&self, kind: &Kind, entry: &Entry) -> Result<Object, Error> {
        let plain = self.open(kind, entry).await?;
        self.format().decode(kind, plain, entry.mod_revision).map_err(|reason| unreadable(entry, reason))
    }

    /// Decrypts and parses an entry as it is, without defaults.
    pub async fn decode_value(&self, kind: &Kind, entry: &Entry) -> Result<Value, Error> {
        let plain = self.open(kind, entry).await?;
        self.format().decode_value(kind, &plain).map_err(|reason| unreadable(entry, reason))
    }

    async fn open(&self, kind: &Kind, entry: &Entry) -> Result<Bytes, Error> {
        let transformer = &self.sources.transformer;
        transformer.learn(kind, &entry.value).await;
        let opened = transformer.open(kind, &entry.key, &entry.value);
        let key = || String::from_utf8_lossy(&entry.key).into_owned();
        opened.map(|opened| opened.plain).map_err(|reason| Error::Sealed { key: key(), reason })
    }

    /// Returns the cache of a key, and the rest of the key. Prefixes have one or two segments.
    fn route<'a>(&self, key: &'a [u8]) -> Option<(Arc<ResourceCache>, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        let declared = self.root().declared(key)?;
        let slashes: Vec<usize> = declared.match_indices('/').map(|(at, _)| at).skip(2).take(2).collect();
        let map = self.map();
        let found = slashes.iter().rev().find_map(|&at| Some((Arc::clone(map.get(&declared[..at])?), at)));
        // The name is the end of the key, whatever its root is.
        found.map(|(cache, at)| (cache, &key[key.len() - (declared.len() - at - 1)..]))
    }
}

fn unreadable(entry: &Entry, reason: String) -> Error {
    Error::Object { key: String::from_utf8_lossy(&entry.key).into_owned(), reason }
}

/// Returns upstream's error for a resourceVersion that is still in the future.
pub fn too_large_resource_version(requested: Revision, current: Revision) -> Status {
    let mut status = Status::timeout(&format!("Too large resource version: {requested}, current: {current}"), 1);
    let details = status.details.get_or_insert_default();
    details.causes.push(corten_meta::status::Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    });
    status
}
