//! The watch cache: all stored objects as shared bytes, fed by one watch of each store. There is one store, unless some
//! resources have one of their own.
//!
//! Lists and watches are served from here. A reader first waits until the feed of its resource has reached the store's
//! revision (`fresh`), so that its result is never older than the last acknowledged write.
//!
//! Invariant: a resource's changes are applied whole, in order of revision, and the progress of a feed is raised only
//! after every resource of its store holds the changes of that revision. The cache never writes.

pub mod event;
mod feed;
mod fields;
mod groups;
mod pacer;
mod pins;
mod resource;
mod subscribers;
mod watcher;
mod written_headers;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use corten_api::Kind;
use corten_meta::{Header, Object, Status, Value};
use corten_store::{Entry, EventKind, Range, Revision, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use feed::Feed;
use pacer::Pacer;
pub use pins::Pinned;
pub use resource::{Change, ChangeKind, Filter, Item, ResourceCache, Window, projected, shown};
pub use watcher::{Watcher, WatcherOptions, transition};
pub use written_headers::{PendingHeader, WrittenHeaders};

use crate::encryption::Transformer;
use crate::error::Error;
use crate::storage_format::{Root, StorageFormat};
use crate::tasks::Tasks;

/// The revision of an empty store.
const EMPTY_STORE: Revision = 1;

/// The entries of one page of a load from a store of other machines.
const PAGE: usize = 1000;

/// The stores, and the parts that turn their entries into objects.
pub struct Sources {
    pub store: Arc<dyn Store>,
    /// The stores of resources that have one of their own.
    pub overrides: Vec<OverriddenPrefixes>,
    pub transformer: Arc<Transformer>,
    pub format: Arc<StorageFormat>,
    pub root: Root,
}

/// A store that has some resources, by the prefixes that their kinds declare.
pub struct OverriddenPrefixes {
    pub store: Arc<dyn Store>,
    pub prefixes: Vec<String>,
}

/// All resource caches and the feeds of their stores.
pub struct Caches {
    by_prefix: RwLock<HashMap<String, Arc<ResourceCache>>>,
    additions: mpsc::Sender<Addition>,
    /// The feed of the main store, and those of the others.
    feeds: Vec<Arc<Feed>>,
    transformer: Arc<Transformer>,
    format: Arc<StorageFormat>,
    root: Root,
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
        let Sources { store, overrides, transformer, format, root } = sources;
        let feed = |store: &Arc<dyn Store>| Arc::new(Feed::new(Arc::clone(store), root.all()));
        let main = feed(&store);
        let others: Vec<Arc<Feed>> = overrides.iter().map(|one| feed(&one.store)).collect();
        let cache = |(prefix, kind): (String, Arc<Kind>)| {
            let at = overrides.iter().position(|one| one.prefixes.contains(&prefix));
            let feed = at.map_or(&main, |at| &others[at]);
            (prefix, Arc::new(ResourceCache::new(kind, Arc::clone(feed))))
        };
        let by_prefix = RwLock::new(hubs.into_iter().map(cache).collect());
        let feeds: Vec<Arc<Feed>> = std::iter::once(main).chain(others).collect();
        let (additions, receiver) = mpsc::channel(16);
        let unread = Mutex::default();
        let written_headers = WrittenHeaders::default();
        let caches =
            Arc::new(Caches { by_prefix, additions, feeds, transformer, format, root, written_headers, unread });
        // Custom resources are added to the main store alone.
        let mut receiver = Some(receiver);
        for feed in &caches.feeds {
            let revision = caches.load(feed).await?;
            let receiver = receiver.take().unwrap_or_else(|| mpsc::channel(1).1);
            let following = Arc::clone(&caches).feed(Arc::clone(feed), revision, receiver, tasks.shutdown.clone());
            tasks.spawn(following);
        }
        for feed in &caches.feeds {
            feed.caught_up().await.map_err(|status| Error::Bootstrap(status.message))?;
        }
        // A server with the wrong keys must not take the objects that it cannot decrypt for absent.
        match caches.sealed() {
            Some(sealed) => {
                tasks.abort();
                Err(sealed)
            }
            None => Ok(caches),
        }
    }

    /// Returns the forms of stored objects.
    pub fn format(&self) -> &StorageFormat {
        &self.format
    }

    /// Returns the root of the keys in the store.
    pub fn root(&self) -> &Root {
        &self.root
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

    /// Waits until the caches of all stores have their present state.
    pub async fn fresh(&self) -> Result<(), Status> {
        futures::future::try_join_all(self.feeds.iter().map(|feed| feed.fresh())).await.map(drop)
    }

    /// Returns the main store's feed, and those of stores that have resources of their own.
    pub fn feeds(&self) -> &[Arc<Feed>] {
        &self.feeds
    }

    /// Returns the feed of the store that has a key.
    pub fn feed_of(&self, key: &[u8]) -> &Arc<Feed> {
        let cache = if self.feeds.len() > 1 { self.route(key) } else { None };
        let is_it = |feed: &&Arc<Feed>| cache.as_ref().is_some_and(|(cache, _)| Arc::ptr_eq(&cache.feed, feed));
        self.feeds.iter().find(is_it).unwrap_or(&self.feeds[0])
    }

    /// Fills the caches with a state as old as a window is long: the feed then replays the changes since, so that
    /// clients can resume from a resourceVersion of before a restart.
    async fn load(&self, feed: &Arc<Feed>) -> Result<Revision, Error> {
        let store = &feed.store;
        let oldest = store.current().await?.saturating_sub(resource::WINDOW as Revision);
        let from = oldest.max(store.compacted()).max(EMPTY_STORE);
        let all = Range::prefix(self.root().all().as_bytes());
        let revision = match self.load_range(feed, all.clone().at(from)).await {
            // The store was compacted just now; its present state is always there.
            Err(corten_store::Error::Compacted { .. }) => {
                self.of_feed(feed).iter().for_each(|cache| cache.clear());
                self.load_range(feed, all).await?
            }
            other => other?,
        };
        for cache in self.of_feed(feed) {
            cache.begin_window(revision);
        }
        feed.reached(revision);
        Ok(revision)
    }

    /// Returns the caches of a store's resources.
    fn of_feed(&self, feed: &Arc<Feed>) -> Vec<Arc<ResourceCache>> {
        self.map().values().filter(|cache| Arc::ptr_eq(&cache.feed, feed)).cloned().collect()
    }

    /// Applies all entries of a range, at the revision of its first page, which is returned.
    async fn load_range(&self, feed: &Arc<Feed>, range: Range) -> Result<Revision, corten_store::Error> {
        let limit = if feed.store.is_shared() { PAGE } else { 0 };
        let mut range = range.limit(limit);
        loop {
            let page = feed.store.range(range.clone()).await?;
            for entry in &page.entries {
                self.apply(feed, entry.mod_revision, EventKind::Put, entry).await;
            }
            match page.entries.last().filter(|_| page.more) {
                None => return Ok(page.revision),
                // The next key after this one.
                Some(last) => range = range.from([&last.key, &[0_u8][..]].concat()).at(page.revision),
            }
        }
    }

    /// Applies a store's changes until shutdown, and resumes at its revision when a watch ends.
    async fn feed(
        self: Arc<Self>,
        feed: Arc<Feed>,
        mut revision: Revision,
        mut additions: mpsc::Receiver<Addition>,
        shutdown: CancellationToken,
    ) {
        let mut pacer = Pacer::new(Instant::now());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                ended = self.follow(&feed, &mut revision, &mut additions, &mut pacer) => {
                    tracing::warn!(revision, error = %ended, "the store's watch ended; resuming");
                    if matches!(ended, corten_store::Error::Compacted { .. }) {
                        revision = self.reload(&feed, revision).await;
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
        feed: &Arc<Feed>,
        revision: &mut Revision,
        additions: &mut mpsc::Receiver<Addition>,
        pacer: &mut Pacer,
    ) -> corten_store::Error {
        let mut watch = match feed.store.watch(feed.prefix.as_bytes(), *revision + 1).await {
            Ok(watch) => watch,
            Err(e) => return e,
        };
        loop {
            let batch = tokio::select! {
                Some(addition) = additions.recv() => {
                    if let Err(e) = self.add(feed, addition, *revision).await {
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
                touched.extend(self.apply(feed, batch.revision, event.kind, &event.entry).await);
            }
            *revision = batch.revision;
            feed.reached(batch.revision);
            let now = Instant::now();
            touched.iter().for_each(|cache| pacer.changed(cache, now));
        }
    }

    /// Fills a new cache with the state at the feed's revision; the feed applies the later changes.
    async fn add(&self, feed: &Arc<Feed>, addition: Addition, revision: Revision) -> Result<(), corten_store::Error> {
        let base = format!("{}/", self.root().key(&addition.prefix));
        let cache = Arc::new(ResourceCache::new(addition.kind, Arc::clone(feed)));
        self.by_prefix
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(addition.prefix, Arc::clone(&cache));
        self.load_range(feed, Range::prefix(base.as_bytes()).at(revision)).await?;
        cache.begin_window(revision);
        // The caller may have been cancelled; the cache stays until it is removed.
        let _ = addition.done.send(());
        Ok(())
    }

    /// Starts over and ends every watch, after the history between the feed and the store was compacted.
    async fn reload(&self, feed: &Arc<Feed>, revision: Revision) -> Revision {
        self.written_headers.clear();
        for cache in self.of_feed(feed) {
            cache.clear();
        }
        match self.load(feed).await {
            Ok(at) => at,
            Err(e) => {
                tracing::error!(error = %e, "the watch cache cannot be filled");
                revision
            }
        }
    }

    /// Applies one change to the cache of its resource, and returns that cache. A key of a resource that another store
    /// has was written before that store was configured, and is not read.
    async fn apply(
        &self,
        feed: &Arc<Feed>,
        revision: Revision,
        kind: EventKind,
        entry: &Entry,
    ) -> Option<Arc<ResourceCache>> {
        let header = self.written_headers.take(&entry.value);
        let (cache, name) = self.route(&entry.key).filter(|(cache, _)| Arc::ptr_eq(&cache.feed, feed))?;
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
        let transformer = &self.transformer;
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
