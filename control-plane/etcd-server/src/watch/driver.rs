//! The task of a stream.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use corten_etcd::etcdserverpb::watch_request::RequestUnion;
use corten_etcd::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use corten_store::{Batch, Entry, Error, Event, EventKind, RangeResult, Revision, Store};
use futures::StreamExt;
use futures::stream::{AbortHandle, Abortable, BoxStream, SelectAll};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::{Status, Streaming};

use super::create::{self, Watched};
use super::{NO_WATCH, events};
use crate::{Server, signed, status};

/// The most requests for progress that wait. A later one takes the place of the last, whose answer is then later too.
const MOST_AWAITED: usize = 64;

/// The end of a stream: the client has gone, or the store has closed.
struct Ended;

/// A batch of the store for one watch, the error that ended the watch, or `None` when the store closed.
struct Delivery {
    id: i64,
    batch: Option<Result<Batch, Error>>,
}

struct Driver {
    server: Server,
    answers: mpsc::Sender<Result<WatchResponse, Status>>,
    watches: HashMap<i64, Watched>,
    feeds: SelectAll<BoxStream<'static, Delivery>>,
    next_id: i64,
    /// The revisions of requested progress that is not reported yet, in order.
    awaited: Vec<Revision>,
}

pub async fn run(
    server: Server,
    mut requests: Streaming<WatchRequest>,
    answers: mpsc::Sender<Result<WatchResponse, Status>>,
) {
    let mut ticks = tokio::time::interval_at(Instant::now() + server.limits.progress, server.limits.progress);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let shutdown = server.shutdown.clone();
    let mut driver =
        Driver { server, answers, watches: HashMap::new(), feeds: SelectAll::new(), next_id: 0, awaited: Vec::new() };
    let mut is_open = true;
    loop {
        let outcome = tokio::select! {
            () = driver.answers.closed() => Err(Ended),
            () = shutdown.cancelled() => driver.fail(status::stopped()).await,
            request = requests.next(), if is_open => match request {
                Some(Ok(request)) => driver.request(request).await,
                Some(Err(_)) => Err(Ended),
                // The client sends no more requests; its watches go on.
                None => {
                    is_open = false;
                    Ok(())
                }
            },
            Some(delivery) = driver.feeds.next() => driver.deliver(delivery).await,
            _ = ticks.tick() => driver.tick().await,
        };
        if outcome.is_err() {
            return;
        }
    }
}

impl Driver {
    async fn request(&mut self, request: WatchRequest) -> Result<(), Ended> {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request).await,
            Some(RequestUnion::CancelRequest(request)) => match self.watches.remove(&request.watch_id) {
                Some(watched) => {
                    watched.feed.abort();
                    let answer = self.answer(request.watch_id, self.server.store.revision());
                    self.send(WatchResponse { canceled: true, ..answer }).await?;
                    self.report_progress().await
                }
                None => Ok(()),
            },
            Some(RequestUnion::ProgressRequest(_)) => self.request_progress().await,
            None => Ok(()),
        }
    }

    async fn create(&mut self, request: WatchCreateRequest) -> Result<(), Ended> {
        let revision = self.server.store.revision();
        let id = match self.choose_id(&request) {
            Ok(id) => id,
            Err(reason) => {
                let answer = self.answer(NO_WATCH, revision);
                let refusal = WatchResponse { created: true, canceled: true, cancel_reason: reason, ..answer };
                return self.send(refusal).await;
            }
        };
        // The number was checked with the id.
        let start = u64::try_from(request.start_revision).unwrap_or_default();
        let from = if start == 0 { revision + 1 } else { start };
        let (feed, _) = AbortHandle::new_pair();
        let watched = Watched::new(&request, from, feed);
        self.watches.insert(id, watched);
        let answer = self.answer(id, revision);
        self.send(WatchResponse { created: true, ..answer }).await?;
        self.open(id, from).await
    }

    /// Returns the id of a new watch, or the reason to refuse it.
    fn choose_id(&mut self, request: &WatchCreateRequest) -> Result<i64, String> {
        if request.start_revision < 0 {
            return Err(status::compacted().message().to_owned());
        }
        if create::is_empty(&create::span(request)) {
            return Err("mvcc: watcher range is empty".to_owned());
        }
        if self.watches.len() >= self.server.limits.watches {
            return Err(format!("etcdserver: a stream has at most {} watches", self.server.limits.watches));
        }
        if request.watch_id != 0 {
            let is_taken = self.watches.contains_key(&request.watch_id);
            let is_valid = request.watch_id != NO_WATCH && !is_taken;
            return if is_valid { Ok(request.watch_id) } else { Err("mvcc: duplicate watch ID provided".to_owned()) };
        }
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        let id = self.next_id;
        self.next_id += 1;
        Ok(id)
    }

    /// Begins the store's watch, or ends ours if its history is compacted.
    async fn open(&mut self, id: i64, from: Revision) -> Result<(), Ended> {
        let Some(watched) = self.watches.get_mut(&id) else { return Ok(()) };
        match self.server.store.watch(&watched.prefix, from).await {
            Ok(watch) => {
                let batches = watch.map(Some).chain(futures::stream::iter([None]));
                let (feed, registration) = AbortHandle::new_pair();
                let deliveries = Abortable::new(batches, registration).map(move |batch| Delivery { id, batch });
                watched.feed = feed;
                self.feeds.push(deliveries.boxed());
                Ok(())
            }
            Err(Error::Compacted { compacted }) if compacted == from => {
                let found = self.server.store.range(watched.span.range().at(compacted)).await;
                match found {
                    Ok(found) => self.open_compacted(id, found).await,
                    Err(Error::Compacted { compacted }) => self.cancel_compacted(id, compacted).await,
                    Err(error) => self.fail(status::of(error)).await,
                }
            }
            Err(Error::Compacted { compacted }) => self.cancel_compacted(id, compacted).await,
            Err(error) => self.fail(status::of(error)).await,
        }
    }

    /// Begins a watch at the compacted revision itself. As in etcd, the keys that were put then and still exist are its
    /// events, without what they replaced.
    async fn open_compacted(&mut self, id: i64, found: RangeResult) -> Result<(), Ended> {
        let revision = found.revision;
        let put = |entry: Entry| Event { kind: EventKind::Put, entry: Arc::new(entry), previous: None };
        let then = found.entries.into_iter().filter(|entry| entry.mod_revision == revision);
        let batch = Batch { revision, events: then.map(put).collect() };
        self.deliver_batch(id, &batch).await?;
        Box::pin(self.open(id, revision + 1)).await
    }

    async fn cancel_compacted(&mut self, id: i64, compacted: Revision) -> Result<(), Ended> {
        self.watches.remove(&id);
        let answer = self.answer(id, self.server.store.revision());
        let compact_revision = signed(compacted);
        let cancel_reason = status::compacted().message().to_owned();
        self.send(WatchResponse { canceled: true, compact_revision, cancel_reason, ..answer }).await?;
        self.report_progress().await
    }

    async fn deliver(&mut self, delivery: Delivery) -> Result<(), Ended> {
        let id = delivery.id;
        let Some(watched) = self.watches.get_mut(&id) else { return Ok(()) };
        match delivery.batch {
            Some(Ok(batch)) => self.deliver_batch(id, &batch).await,
            // The client was too slow for the store's buffer: the history has what was missed.
            Some(Err(Error::Lagged)) => {
                watched.feed.abort();
                let prefix = watched.prefix.clone();
                let from = watched.seen + 1;
                self.open(id, from).await?;
                self.ask_progress(&prefix).await
            }
            Some(Err(error)) => self.fail(status::of(error)).await,
            None => self.fail(status::stopped()).await,
        }
    }

    async fn deliver_batch(&mut self, id: i64, batch: &Batch) -> Result<(), Ended> {
        let Some(watched) = self.watches.get_mut(&id) else { return Ok(()) };
        let events = events::of(batch, watched);
        let with_fragments = watched.with_fragments;
        if let Some(notify) = watched.notify.as_mut().filter(|_| !events.is_empty()) {
            notify.is_recent = true;
        }
        if !events.is_empty() {
            let answer = WatchResponse { events, ..self.answer(id, batch.revision) };
            self.send_events(answer, with_fragments).await?;
        }
        if let Some(watched) = self.watches.get_mut(&id) {
            watched.seen = watched.seen.max(batch.revision);
        }
        self.notify(id).await?;
        self.report_progress().await
    }

    /// Notifies the watches that had no event since the last tick, and want to be.
    async fn tick(&mut self) -> Result<(), Ended> {
        let revision = self.server.store.revision();
        let mut idle = Vec::new();
        let mut prefixes = BTreeSet::new();
        for (id, watched) in &mut self.watches {
            let Some(notify) = &mut watched.notify else { continue };
            if !std::mem::take(&mut notify.is_recent) && watched.from <= revision {
                notify.due = Some(revision);
                idle.push(*id);
                prefixes.insert(watched.prefix.clone());
            }
        }
        for prefix in prefixes {
            self.ask_progress(&prefix).await?;
        }
        for id in idle {
            self.notify(id).await?;
        }
        Ok(())
    }

    /// Sends the progress notification of a watch if it is due.
    async fn notify(&mut self, id: i64) -> Result<(), Ended> {
        let due = self.watches.get_mut(&id).and_then(Watched::take_due);
        let Some(revision) = due else { return Ok(()) };
        let answer = self.answer(id, revision);
        self.send(answer).await
    }

    /// Begins to report that every watch of the stream has reached the store's revision.
    async fn request_progress(&mut self) -> Result<(), Ended> {
        let revision = self.server.store.revision();
        // A watch of the future has nothing to report yet, and a client would take it back to the present.
        let is_possible = self.watches.values().all(|watched| watched.from <= revision);
        if self.watches.is_empty() || !is_possible {
            return Ok(());
        }
        if self.awaited.len() == MOST_AWAITED {
            self.awaited.pop();
        }
        self.awaited.push(revision);
        let prefixes: BTreeSet<Bytes> = self.watches.values().map(|watched| watched.prefix.clone()).collect();
        for prefix in prefixes {
            self.ask_progress(&prefix).await?;
        }
        self.report_progress().await
    }

    /// Makes the store tell the watches of a prefix how far they are.
    async fn ask_progress(&mut self, prefix: &[u8]) -> Result<(), Ended> {
        match self.server.store.progress(prefix).await {
            Ok(_) => Ok(()),
            Err(error) => self.fail(status::of(error)).await,
        }
    }

    /// Reports the requested progress that all watches have reached.
    async fn report_progress(&mut self) -> Result<(), Ended> {
        if self.awaited.is_empty() {
            return Ok(());
        }
        let Some(seen) = self.watches.values().map(|watched| watched.seen).min() else {
            self.awaited.clear();
            return Ok(());
        };
        let reached = self.awaited.partition_point(|revision| *revision <= seen);
        let Some(revision) = self.awaited.drain(..reached).next_back() else { return Ok(()) };
        let answer = self.answer(NO_WATCH, revision);
        self.send(answer).await
    }

    fn answer(&self, id: i64, revision: Revision) -> WatchResponse {
        WatchResponse { header: self.server.header(revision), watch_id: id, ..WatchResponse::default() }
    }

    async fn send_events(&mut self, answer: WatchResponse, with_fragments: bool) -> Result<(), Ended> {
        if !with_fragments {
            return self.send(answer).await;
        }
        for part in events::fragments(answer, self.server.limits.request_bytes) {
            self.send(part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, answer: WatchResponse) -> Result<(), Ended> {
        self.answers.send(Ok(answer)).await.map_err(|_| Ended)
    }

    /// Ends the stream with an error.
    async fn fail(&mut self, status: Status) -> Result<(), Ended> {
        // The client may have gone.
        let _ = self.answers.send(Err(status)).await;
        Err(Ended)
    }
}
