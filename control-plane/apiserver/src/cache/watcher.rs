//! One watch of one client: a position in a resource's window, and a filter.
//!
//! Invariant: the events of a watcher are the changes of its resource after its start revision, in order,
//! none missing and none twice, as far as they touch what its filter selects. An object that enters the
//! selection is ADDED, one that leaves it is DELETED. A watcher that cannot keep up ends.
//!
//! A watcher takes the changes up to the revision that it was woken for, and leaves later ones to its next waking. So
//! watchers that are woken together take the same changes, and one of them encodes these for all that select
//! everything.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use corten_meta::{Key, Object, Status};
use corten_store::Revision;
use futures::stream::{BoxStream, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::event::{Delivery, EventEncoder, WatchEvent};
use super::resource::{Chunk, Window};
use super::subscribers::{Received, Subscription};
use super::{Change, ChangeKind, Filter, ResourceCache};

/// The period of bookmarks of a watcher that wants them.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// The most events of a watch that leave in one piece.
const CHUNK_EVENTS: usize = 64;
/// The biggest chunk that is kept for other watchers.
const SHARED_BYTES: usize = 256 * 1024;

/// The start and the end of a watch.
pub struct WatcherOptions {
    /// Events after this revision.
    pub after: Revision,
    /// The present objects, to be sent first as ADDED.
    pub initial: Option<Vec<Arc<Object>>>,
    /// Whether a bookmark marks the end of the initial objects.
    pub mark_initial_end: bool,
    pub bookmarks: bool,
    pub timeout: Duration,
    /// Whether its events are shown as they are, so that watchers can share their encoding.
    pub plain: bool,
}

/// The last changes that a watcher has taken from the window. The changes of one revision arrive one by one, so some of
/// them may come by the mailbox alone.
struct Taken {
    revision: Revision,
    /// The objects that changed at this revision.
    keys: Vec<Key>,
}

impl Taken {
    fn includes(&self, change: &Change) -> bool {
        match change.revision.cmp(&self.revision) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => self.keys.contains(&change.item.object.key()),
            std::cmp::Ordering::Greater => false,
        }
    }
}

/// The state of a watch.
pub struct Watcher {
    cache: Arc<ResourceCache>,
    filter: Filter,
    after: Revision,
    generation: u64,
    changed: watch::Receiver<Revision>,
    /// The mailbox of its changes, if its filter selects the objects of one name or of one node.
    subscription: Option<Subscription>,
    /// The end of the changes that it has taken from the window, if it has a mailbox: the later ones come by that.
    taken: Option<Taken>,
    /// Whether it can share chunks with other watchers.
    shares: bool,
    /// Whether it has read the window once. Nothing wakes it for the changes before its start.
    has_begun: bool,
    pending: VecDeque<Delivery>,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    /// Set to the earlier of the next bookmark and the deadline.
    timer: Pin<Box<Sleep>>,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

impl Watcher {
    /// Begins a watch. Fails with 410 if its start is older than the window.
    pub fn start(
        cache: Arc<ResourceCache>,
        filter: Filter,
        options: WatcherOptions,
        shutdown: CancellationToken,
    ) -> Result<Box<Watcher>, Status> {
        let (subscription, changed) = match cache.subscribers.subscribe(&filter) {
            Some((subscription, woken)) => (Some(subscription), woken),
            None => (None, cache.changes()),
        };
        if let Window::TooOld { oldest } = cache.since(options.after, options.after) {
            return Err(too_old(options.after, oldest));
        }
        let initial = options.initial.into_iter().flatten();
        let mut pending: VecDeque<Delivery> = initial.map(|object| WatchEvent::Added(object).into()).collect();
        if options.mark_initial_end {
            let end = WatchEvent::Bookmark { revision: options.after, initial_events_end: true };
            pending.push_back(end.into());
        }
        let now = Instant::now();
        let mut watcher = Box::new(Watcher {
            generation: cache.generation(),
            cache,
            shares: options.plain && filter.is_everything(),
            filter,
            after: options.after,
            changed,
            subscription,
            taken: None,
            has_begun: false,
            pending,
            bookmarks: options.bookmarks,
            next_bookmark: now + BOOKMARK_PERIOD,
            deadline: now + options.timeout,
            timer: Box::pin(tokio::time::sleep_until(now)),
            shutdown: Box::pin(shutdown.cancelled_owned()),
            ended: false,
        });
        watcher.set_timer();
        if watcher.subscription.is_some() {
            // The mailbox has the changes from now on: however late the first read, the window is not needed again.
            watcher.collect(Revision::MAX);
        }
        Ok(watcher)
    }

    /// Returns the events one by one.
    pub fn deliveries(self: Box<Self>) -> BoxStream<'static, Delivery> {
        futures::stream::unfold(self, |mut w| async move { w.next().await.map(|event| (event, w)) }).boxed()
    }

    fn set_timer(&mut self) {
        let next = if self.bookmarks { self.next_bookmark.min(self.deadline) } else { self.deadline };
        self.timer.as_mut().reset(next);
    }

    async fn next(&mut self) -> Option<Delivery> {
        loop {
            if let Some(delivery) = self.pending.pop_front() {
                return Some(delivery);
            }
            if self.ended {
                return None;
            }
            let upto = self.woken();
            if !self.collect(upto) {
                self.wait().await;
            }
        }
    }

    /// Returns the encoded events that are ready, in one piece: fewer, fuller packets.
    pub async fn frames(&mut self, encode: &EventEncoder) -> Option<Bytes> {
        loop {
            if !self.pending.is_empty() {
                return Some(self.encoded(encode).0);
            }
            if self.ended {
                return None;
            }
            let upto = self.woken();
            if let Some(frames) = self.shared(upto, encode) {
                return Some(frames);
            }
            // `shared` may have collected already.
            let has_news = self.ended || !self.pending.is_empty() || self.collect(upto);
            if !has_news {
                self.wait().await;
            }
        }
    }

    /// Returns the revision that it was last woken for; at first, the latest.
    fn woken(&mut self) -> Revision {
        let woken = *self.changed.borrow_and_update();
        if std::mem::replace(&mut self.has_begun, true) { woken } else { Revision::MAX }
    }

    /// Waits until there may be an event to send.
    async fn wait(&mut self) {
        tokio::select! {
            changed = self.changed.changed() => self.ended |= changed.is_err(),
            () = self.timer.as_mut() => self.on_timer(),
            () = self.shutdown.as_mut() => {
                // The events until the shutdown are still sent.
                self.collect(Revision::MAX);
                self.ended = true;
            }
        }
    }

    /// Encodes the pending events, as many as leave together; returns also the size of each.
    fn encoded(&mut self, encode: &EventEncoder) -> (Bytes, Vec<usize>) {
        let count = self.pending.len().min(CHUNK_EVENTS);
        let mut frames: Vec<Bytes> = self.pending.drain(..count).map(|delivery| encode(&delivery)).collect();
        let sizes: Vec<usize> = frames.iter().map(Bytes::len).collect();
        self.cache.storage.watches.observe(sizes.iter().copied());
        (if count == 1 { frames.swap_remove(0) } else { frames.concat().into() }, sizes)
    }

    /// Returns the chunk that another watcher of the same selection has encoded, or encodes one for others. `None` if
    /// it cannot share, or if there is nothing to send.
    fn shared(&mut self, upto: Revision, encode: &EventEncoder) -> Option<Bytes> {
        let is_span = upto > self.after && upto < Revision::MAX && self.cache.generation() == self.generation;
        if !self.shares || !is_span || !self.cache.is_watched_by_many() {
            return None;
        }
        let cache = Arc::clone(&self.cache);
        let mut last = cache.chunk();
        let is_it = |chunk: &&Chunk| {
            (chunk.after, chunk.upto) == (self.after, upto) && chunk.namespace == self.filter.namespace
        };
        if let Some(chunk) = last.as_ref().filter(is_it) {
            self.after = upto;
            cache.storage.watches.observe(chunk.sizes.iter().copied());
            return Some(chunk.frames.clone());
        }
        let after = self.after;
        self.collect(upto);
        if self.ended || self.pending.is_empty() || self.pending.len() > CHUNK_EVENTS {
            return None;
        }
        let (frames, sizes) = self.encoded(encode);
        let namespace = self.filter.namespace.clone();
        let chunk = || Chunk { namespace, after, upto, frames: frames.clone(), sizes };
        *last = (frames.len() <= SHARED_BYTES).then(chunk);
        Some(frames)
    }

    fn on_timer(&mut self) {
        if Instant::now() >= self.deadline {
            self.ended = true;
        } else {
            self.bookmark();
            self.set_timer();
        }
    }

    /// Takes the new changes of the window, up to a revision. Returns whether there is something to send or the watch
    /// ended.
    fn collect(&mut self, upto: Revision) -> bool {
        if self.cache.generation() != self.generation {
            self.pending.push_back(WatchEvent::Error(too_old(self.after, self.cache.feed.revision())).into());
            self.ended = true;
            return true;
        }
        match self.changes(upto) {
            Window::TooOld { oldest } => {
                self.cache.storage.terminated_watchers.fetch_add(1, Ordering::Relaxed);
                self.pending.push_back(WatchEvent::Error(too_old(self.after, oldest)).into());
                self.ended = true;
            }
            Window::Changes(changes) => {
                for change in changes {
                    self.after = change.revision;
                    self.pending.extend(select(&self.filter, &self.cache, change));
                }
            }
        }
        !self.pending.is_empty() || self.ended
    }

    /// Takes the changes after its position from the mailbox, or from the window.
    fn changes(&mut self, upto: Revision) -> Window {
        let Some(subscription) = &self.subscription else { return self.cache.since(self.after, upto) };
        let Some(taken) = &self.taken else {
            let window = self.cache.since(self.after, upto);
            if let Window::Changes(changes) = &window {
                // Without changes, all up to the start are taken.
                let revision = changes.last().map_or(self.after.saturating_add(1), |last| last.revision);
                let last = changes.iter().rev().take_while(|change| change.revision == revision);
                self.taken = Some(Taken { revision, keys: last.map(|change| change.item.object.key()).collect() });
            }
            return window;
        };
        match subscription.take() {
            Received::Overflow => Window::TooOld { oldest: self.cache.revision() },
            Received::Changes(changes) => {
                Window::Changes(changes.into_iter().filter(|change| !taken.includes(change)).collect())
            }
        }
    }

    fn bookmark(&mut self) {
        self.next_bookmark = Instant::now() + BOOKMARK_PERIOD;
        // The progress is read before the window, so nothing up to it can still be missing below.
        let revision = self.cache.feed.revision();
        // A watch that begins in the future has no progress to report yet.
        if revision < self.after {
            return;
        }
        self.collect(Revision::MAX);
        if self.ended {
            return;
        }
        self.after = self.after.max(revision);
        let bookmark = WatchEvent::Bookmark { revision: self.after, initial_events_end: false };
        self.pending.push_back(bookmark.into());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(subscription) = &self.subscription {
            self.cache.subscribers.leave(subscription);
        }
    }
}

/// Returns the event of a change for a filter, if it has one.
fn select(filter: &Filter, cache: &ResourceCache, change: Arc<Change>) -> Option<Delivery> {
    let is = change.kind != ChangeKind::Deleted && filter.matches(&cache.kind, &change.item);
    let was = change.previous.as_ref().is_some_and(|previous| filter.matches(&cache.kind, previous));
    let previous = change.previous.as_ref().map(|previous| &previous.object);
    let event = transition(&change, previous.filter(|_| was), is.then_some(&change.item.object))?;
    let as_it_happened = match &event {
        WatchEvent::Added(_) => change.kind == ChangeKind::Added,
        WatchEvent::Deleted(_) => change.kind == ChangeKind::Deleted,
        _ => true,
    };
    Some(Delivery { event, change: as_it_happened.then_some(change) })
}

/// Returns the event of a change for a watcher that selected the object as it `was` and selects it as it `is`.
pub fn transition(change: &Change, was: Option<&Arc<Object>>, is: Option<&Arc<Object>>) -> Option<WatchEvent> {
    match (was, is) {
        (None, Some(is)) => Some(WatchEvent::Added(Arc::clone(is))),
        (Some(_), Some(is)) => Some(WatchEvent::Modified(Arc::clone(is))),
        // The client sees the object as it last matched, under the revision of the change.
        (Some(was), None) => {
            let bytes = was.bytes.clone();
            let header = was.header.clone();
            Some(WatchEvent::Deleted(Arc::new(Object { bytes, revision: change.revision, header })))
        }
        (None, None) => None,
    }
}

fn too_old(requested: Revision, oldest: Revision) -> Status {
    Status::expired(format!("too old resource version: {requested} ({oldest})"))
}
