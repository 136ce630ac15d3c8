//! The watch cache: all stored objects as shared bytes, fed by one watch of the store.
//!
//! Lists and watches are served from here. A reader first waits until the feed has reached the store's
//! revision (`fresh`), so that what it sees is never older than the last acknowledged write.
//!
//! Invariant: a resource's changes are applied whole, in order of revision, and `progress` is raised only
//! after every resource holds the changes of that revision. The cache never writes.

pub mod event;
mod groups;
mod handover;
mod pacer;
mod resource;
mod watcher;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use corten_api::Kind;
use corten_meta::{Header, Object, Status};
use corten_store::{Entry, EventKind, Range, Revision, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use handover::{Handover, Left};
use pacer::Pacer;
pub use resource::{Change, ChangeKind, Filter, Item, ResourceCache, Window, projected, shown};
pub use watcher::{Watcher, WatcherOptions, transition};

use crate::encryption::Transformer;
use crate::error::Error;

/// The prefix that everything of the API lives under.
pub const REGISTRY: &str = "/registry/";

/// The revision of a store in which nothing ever happened.
const EMPTY_STORE: Revision = 1;

/// How long a read waits for the feed before it answers that the server is too busy.
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// All resource caches and the progress of their feed.
pub struct Caches {
    by_prefix: RwLock<HashMap<String, Arc<ResourceCache>>>,
    additions: mpsc::Sender<Addition>,
    progress: watch::Sender<Revision>,
    store: Arc<dyn Store>,
    transformer: Arc<Transformer>,
    /// What writers leave for the feed.
    pub handover: Handover,
    /// Entries that could not be read, by their keys.
    unread: Mutex<BTreeMap<Vec<u8>, Error>>,
}

/// A kind that is to be held from now on.
struct Addition {
    prefix: String,
    kind: Arc<Kind>,
    done: oneshot::Sender<()>,
}

impl Caches {
    /// Fills the caches from the store and starts the task that keeps them current.
    pub async fn start(
        store: Arc<dyn Store>,
        hubs: impl IntoIterator<Item = (String, Arc<Kind>)>,
        transformer: Arc<Transformer>,
        shutdown: CancellationToken,
    ) -> Result<Arc<Caches>, Error> {
        let by_prefix = hubs.into_iter().map(|(prefix, kind)| (prefix, Arc::new(ResourceCache::new(kind)))).collect();
        let (additions, receiver) = mpsc::channel(16);
        let by_prefix = RwLock::new(by_prefix);
        let progress = watch::Sender::new(0);
        let unread = Mutex::default();
        let handover = Handover::default();
        let caches = Arc::new(Caches { by_prefix, additions, progress, store, transformer, handover, unread });
        let revision = caches.load().await?;
        tokio::spawn(Arc::clone(&caches).feed(revision, receiver, shutdown.clone()));
        caches.fresh().await.map_err(|status| Error::Bootstrap(status.message))?;
        // Whoever comes with the wrong keys must not take what they do not open for absent.
        match caches.sealed() {
            Some(sealed) => {
                shutdown.cancel();
                Err(sealed)
            }
            None => Ok(caches),
        }
    }

    /// The cache of the resource stored under `prefix`.
    pub fn of(&self, prefix: &str) -> Option<Arc<ResourceCache>> {
        self.map().get(prefix).cloned()
    }

    /// Holds these kinds, too, from the feed's present revision on.
    pub async fn hold(&self, hubs: &HashMap<String, Arc<Kind>>) -> Result<(), Status> {
        for (prefix, kind) in hubs {
            // One of the same name that is in namespaces, or no longer is, has other keys.
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

    /// Forgets every kind but these. Who watches one has what it holds until the watch ends.
    pub fn forget_others(&self, hubs: &HashMap<String, Arc<Kind>>) {
        let mut map = self.by_prefix.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        map.retain(|prefix, _| hubs.contains_key(prefix));
    }

    fn map(&self) -> std::sync::RwLockReadGuard<'_, HashMap<String, Arc<ResourceCache>>> {
        self.by_prefix.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The revision that all caches have reached.
    pub fn revision(&self) -> Revision {
        *self.progress.borrow()
    }

    /// Whether the caches show all that the store had acknowledged when this was called.
    pub fn is_fresh(&self) -> bool {
        // The store first: what it holds at this moment must be in the caches at the next.
        let revision = self.store.revision();
        self.revision() >= revision
    }

    /// Waits until the caches show the store's present state.
    pub async fn fresh(&self) -> Result<Revision, Status> {
        self.reach(self.store.revision()).await
    }

    /// Waits until the caches have reached `revision`.
    pub async fn reach(&self, revision: Revision) -> Result<Revision, Status> {
        let at = self.revision();
        if at >= revision {
            return Ok(at);
        }
        let mut progress = self.progress.subscribe();
        let reached = tokio::time::timeout(FRESH_TIMEOUT, progress.wait_for(|at| *at >= revision)).await;
        match reached {
            Ok(Ok(at)) => Ok(*at),
            _ => Err(too_large_resource_version(revision, self.revision())),
        }
    }

    /// Fills the caches with a state that lies as far back as a window reaches: the feed then replays what
    /// happened since, so that clients can go on from a revision that they had before a restart.
    async fn load(&self) -> Result<Revision, Error> {
        let oldest = self.store.revision().saturating_sub(resource::WINDOW as Revision);
        let from = oldest.max(self.store.compacted()).max(EMPTY_STORE);
        let all = match self.store.range(Range::prefix(REGISTRY.as_bytes()).at(from)).await {
            // Somebody compacted just now; the present is always there.
            Err(corten_store::Error::Compacted { .. }) => self.store.range(Range::prefix(REGISTRY.as_bytes())).await?,
            other => other?,
        };
        for entry in &all.entries {
            self.apply(entry.mod_revision, EventKind::Put, entry).await;
        }
        for cache in self.map().values() {
            cache.begin_window(all.revision);
        }
        self.progress.send_replace(all.revision);
        Ok(all.revision)
    }

    /// Applies the store's changes until shutdown, and begins again where it stood if a watch ends.
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
            // A store that cannot be watched must not be asked in a tight loop.
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
        let mut watch = match self.store.watch(REGISTRY.as_bytes(), *revision + 1).await {
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

    /// Fills a new cache with what there was at the feed's revision; what comes after, the feed brings.
    async fn add(&self, addition: Addition, revision: Revision) -> Result<(), corten_store::Error> {
        let base = format!("{}/", addition.prefix);
        let all = self.store.range(Range::prefix(base.as_bytes()).at(revision)).await?;
        let cache = Arc::new(ResourceCache::new(addition.kind));
        self.by_prefix
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(addition.prefix, Arc::clone(&cache));
        for entry in &all.entries {
            self.apply(entry.mod_revision, EventKind::Put, entry).await;
        }
        cache.begin_window(revision);
        // Whoever asked may have gone; the cache stays until it is forgotten.
        let _ = addition.done.send(());
        Ok(())
    }

    /// The history between the feed and the store is gone: start over, and end every watch.
    async fn reload(&self, revision: Revision) -> Revision {
        self.handover.clear();
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

    /// Applies one change to the cache it belongs to, and returns that.
    async fn apply(&self, revision: Revision, kind: EventKind, entry: &Entry) -> Option<Arc<ResourceCache>> {
        let left = self.handover.take(&entry.value);
        let (cache, name) = self.route(&entry.key)?;
        let item = match kind {
            EventKind::Delete => None,
            EventKind::Put => match self.read(&cache.kind, entry, left).await {
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

    /// An object as it is now that none of the keys opens.
    fn sealed(&self) -> Option<Error> {
        let all = std::mem::take(&mut *self.unread());
        all.into_values().find(|e| matches!(e, Error::Sealed { .. }))
    }

    /// The object of an entry of the feed, whose header its writer may have left.
    async fn read(&self, kind: &Kind, entry: &Entry, left: Option<Header>) -> Result<Object, Error> {
        match left {
            Some(header) => Ok(Object { bytes: entry.value.clone(), revision: entry.mod_revision, header }),
            None => self.decode(kind, entry).await,
        }
    }

    /// The object of an entry.
    pub async fn decode(&self, kind: &Kind, entry: &Entry) -> Result<Object, Error> {
        let key = || String::from_utf8_lossy(&entry.key).into_owned();
        self.transformer.learn(kind, &entry.value).await;
        let opened = self.transformer.open(kind, &entry.key, &entry.value);
        let opened = opened.map_err(|reason| Error::Sealed { key: key(), reason })?;
        Object::parse(opened.plain, entry.mod_revision).map_err(|e| Error::Object { key: key(), reason: e.to_string() })
    }

    /// The cache a key belongs to and the rest of the key. Prefixes have one or two segments.
    fn route<'a>(&self, key: &'a [u8]) -> Option<(Arc<ResourceCache>, &'a str)> {
        let key = std::str::from_utf8(key).ok()?;
        let slashes: Vec<usize> = key.match_indices('/').map(|(at, _)| at).skip(2).take(2).collect();
        let map = self.map();
        slashes.iter().rev().find_map(|&at| Some((Arc::clone(map.get(&key[..at])?), &key[at + 1..])))
    }
}

/// What upstream answers when a revision is asked for that has not happened yet.
pub fn too_large_resource_version(asked: Revision, current: Revision) -> Status {
    let mut status = Status::timeout(&format!("Too large resource version: {asked}, current: {current}"), 1);
    let details = status.details.get_or_insert_default();
    details.causes.push(corten_meta::status::Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    });
    status
}
