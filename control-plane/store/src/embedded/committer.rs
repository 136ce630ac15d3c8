//! The thread (in simulations the task) that writes: it turns requests into groups, groups into frames, and durable frames into state, answers
//! and watch events.
//!
//! Invariant: the index changes only here, and only after its frame was synced. Without work the thread sleeps; its
//! only timers are the expiry of the next lease and the age of the oldest history.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs;
use std::mem;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Shared;
use super::checkpoint::{self, Source};
use super::config::Config;
use super::group::{Effect, Group};
use super::log::Log;
use super::queue::{Reply, Request, Taken};
use super::segment;
use crate::{Error, Health, LeaseId};

/// The number of revisions that are freed at once, beyond twice those that were just made: a reader never waits long
/// for the lock, and a backlog of compacted history still shrinks.
const RECLAIM: usize = 512;
/// The delay before another attempt to expire a lease whose expiry could not be written.
const LEASE_RETRY: Duration = Duration::from_secs(1);
/// The longest pause between two checks of the history's age, which is otherwise a fifth of its time.
const RETAIN_SLACK: Duration = Duration::from_secs(60);
/// The largest frame buffer that is kept.
const KEPT_BUFFER: usize = 1 << 20;

pub struct Committer {
    shared: Arc<Shared>,
    config: Config,
    log: Log,
    buffer: Vec<u8>,
    checkpoint: Option<Checkpointing>,
    /// The last checkpoint.
    last: Last,
    /// The size of the log before which no checkpoint is tried again, after one that failed.
    checkpoint_retry: u64,
}

/// The last checkpoint: its size, and the segment at which the log after it begins; both 0 without one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Last {
    pub size: u64,
    pub segment: u64,
}

/// A checkpoint that is being written.
struct Checkpointing {
    job: JoinHandle<Result<Option<u64>, Error>>,
    cancel: Arc<AtomicBool>,
    /// The bytes of the log that it will cover.
    bytes: u64,
    /// The number of segments that it removes: those before the last checkpoint. The log since then is kept beside it,
    /// so that the last one can stand in for it.
    removed: usize,
    /// The segment at which the log after it begins.
    segment: u64,
}

impl Committer {
    pub fn new(shared: Arc<Shared>, config: Config, log: Log, last: Last) -> Committer {
        let buffer = Vec::new();
        let checkpoint = None;
        let checkpoint_retry = 0;
        Committer { shared, config, log, buffer, checkpoint, last, checkpoint_retry }
    }

    /// Serves until the store is closed, then ends the background work.
    pub fn run(mut self) {
        loop {
            let taken = self.shared.queue.take(self.patience());
            if self.serve(taken).is_break() {
                break;
            }
        }
        self.end();
    }

    /// Does the same as a task.
    pub async fn run_as_task(mut self) {
        let shared = self.shared.clone();
        loop {
            let taken = shared.queue.taken(self.patience()).await;
            if self.serve(taken).is_break() {
                break;
            }
        }
        self.end();
    }

    /// Serves what was taken at once, and what is due.
    fn serve(&mut self, taken: Taken) -> ControlFlow<()> {
        self.end_due_leases();
        let (commits, ticks) = self.commit_all(taken.requests);
        self.retain_history(commits);
        self.start_checkpoint();
        for reply in ticks {
            // The caller may have gone.
            let _ = reply.send(Ok(()));
        }
        if taken.closed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(mut self) {
        if let Some(checkpoint) = self.checkpoint.take() {
            checkpoint.cancel.store(true, Ordering::Relaxed);
            // The next opening finds either checkpoint; both are valid.
            let _ = checkpoint.job.join();
        }
        self.log.finish();
    }

    /// Returns the time until the next timer; `None` means no timer.
    fn patience(&self) -> Option<Duration> {
        let index = self.shared.index();
        if index.is_reclaimable() {
            return Some(Duration::ZERO);
        }
        let slack = RETAIN_SLACK.min(self.config.retain.time / 5);
        let aged = index.oldest().map(|at| at.saturating_add(self.config.retain.time).saturating_add(slack));
        let next = aged.into_iter().chain(self.shared.leases().next()).min()?;
        Some(next.saturating_sub(self.config.clock.now()))
    }

    /// Serves the requests in order, in as few groups as possible. Returns the number of new revisions, and the ticks
    /// to answer after everything else.
    fn commit_all(&mut self, requests: Vec<Request>) -> (usize, Vec<Reply<()>>) {
        let mut ticks = Vec::new();
        let mut writes = VecDeque::with_capacity(requests.len());
        for request in requests {
            match request {
                Request::Tick { reply } => ticks.push(reply),
                Request::CheckpointEnded => self.end_checkpoint(),
                write => writes.push_back(write),
            }
        }
        let mut commits = 0;
        while !writes.is_empty() {
            let group = self.plan(&mut writes);
            commits += group.batches.len();
            // The callers get the error as their answer.
            let _ = self.finish(group);
        }
        (commits, ticks)
    }

    /// Moves requests into a group, for as long as it accepts them.
    fn plan(&mut self, requests: &mut VecDeque<Request>) -> Group {
        // No lease had this id before, as no frame before had this sequence.
        let fresh = ((self.log.sequence() + 1) << 16) as LeaseId;
        let index = self.shared.index();
        let mut leases = self.shared.leases();
        let snapshot = index.snapshot();
        let mut group = Group::new(mem::take(&mut self.buffer), snapshot);
        if self.shared.is_frozen(self.config.clock.now()) {
            requests.drain(..).for_each(|request| group.refuse(snapshot, &leases, request));
            return group;
        }
        while let Some(request) = requests.pop_front_if(|request| group.accepts(request)) {
            match request {
                Request::Commit { ops, reply } => group.commit(snapshot, &leases, ops, reply),
                Request::Transact(transaction) => group.transact(snapshot, &leases, transaction),
                Request::Compact { revision, reply } => group.compact(revision, reply),
                Request::Grant { id, ttl, reply } => group.grant(&leases, id, fresh, ttl, reply),
                Request::Revoke { id, reply } => {
                    let keys = leases.begin_end(id);
                    group.revoke(snapshot, id, keys, Some(reply));
                }
                Request::Tick { .. } | Request::CheckpointEnded => {}
            }
        }
        group
    }

    /// Expires the leases that are due.
    fn end_due_leases(&mut self) {
        let due = self.shared.leases().due(self.config.clock.now());
        if due.is_empty() {
            return;
        }
        let now = self.config.clock.now();
        if self.shared.is_frozen(now) {
            let mut leases = self.shared.leases();
            due.into_iter().for_each(|id| leases.abort_end(id, now + LEASE_RETRY));
            return;
        }
        let index = self.shared.index();
        let mut group = Group::new(mem::take(&mut self.buffer), index.snapshot());
        for id in due {
            let keys = self.shared.leases().begin_end(id);
            group.revoke(index.snapshot(), id, keys, None);
        }
        drop(index);
        if let Err(error) = self.finish(group) {
            tracing::warn!(%error, "expired leases cannot be removed yet");
        }
    }

    /// Makes the group durable, then visible, then answers it.
    fn finish(&mut self, mut group: Group) -> Result<(), Error> {
        let written = if group.has_frame() { self.append(&mut group.frame) } else { Ok(()) };
        match &written {
            Ok(()) => self.publish(&group),
            Err(_) => self.abandon(&group),
        }
        group.answer(written.clone());
        if group.frame.capacity() <= KEPT_BUFFER {
            self.buffer = group.frame;
        }
        written
    }

    /// Appends to the log, and records whether that worked.
    fn append(&mut self, frame: &mut Vec<u8>) -> Result<(), Error> {
        let written = self.log.append(frame);
        let health = Health::of(&written);
        if health == Health::Writable && self.is_short_of_space() {
            return written;
        }
        self.shared.health.send_if_modified(|known| {
            let is_news = *known != health;
            *known = health;
            is_news
        });
        written
    }

    /// Reports whether a write failed and there is still no space for a segment: a smaller write may fit.
    fn is_short_of_space(&self) -> bool {
        let is_failing = matches!(*self.shared.health.borrow(), Health::Failing { .. });
        is_failing && segment::free_space(&self.config.dir).is_some_and(|free| free < self.config.segment_bytes)
    }

    fn publish(&self, group: &Group) {
        let now = self.config.clock.now();
        let mut hub = self.shared.hub();
        let mut index = self.shared.index_mut();
        let mut leases = self.shared.leases();
        for effect in &group.effects {
            if let Effect::Grant(id, ttl) = effect {
                leases.grant(*id, *ttl, now);
            }
        }
        for batch in &group.batches {
            index.apply(batch.clone(), now);
            batch.events.iter().for_each(|event| leases.observe(event));
        }
        for effect in &group.effects {
            match effect {
                Effect::Grant(..) => {}
                Effect::Compact(revision) => index.compact(*revision),
                Effect::End(id) => leases.end(*id),
            }
        }
        drop((index, leases));
        group.batches.iter().for_each(|batch| hub.publish(batch));
    }

    /// Abandons the group: leases that it would have ended continue.
    fn abandon(&self, group: &Group) {
        let retry = self.config.clock.now() + LEASE_RETRY;
        for effect in &group.effects {
            if let Effect::End(id) = effect {
                self.shared.leases().abort_end(*id, retry);
            }
        }
    }

    /// Compacts the history that exceeds its bounds, and frees a part of the compacted history.
    fn retain_history(&self, commits: usize) {
        let index = self.shared.index();
        let excess = index.excess(&self.config.retain, self.config.clock.now());
        if excess.is_none() && !index.is_reclaimable() {
            return;
        }
        drop(index);
        let mut index = self.shared.index_mut();
        if let Some(revision) = excess {
            index.compact(revision);
        }
        index.reclaim(RECLAIM + 2 * commits);
    }

    /// Starts a checkpoint once the log is long enough.
    fn start_checkpoint(&mut self) {
        let enough = self.config.checkpoint_bytes.max(self.last.size).max(self.checkpoint_retry);
        if self.checkpoint.is_some() || self.log.uncovered() < enough {
            return;
        }
        let source = self.source();
        let is_before = |path: &&PathBuf| segment::index_of(path).is_some_and(|index| index < self.last.segment);
        let segments: Vec<PathBuf> = self.log.full_segments().iter().filter(is_before).cloned().collect();
        let bytes = self.log.uncovered();
        let removed = segments.len();
        let segment = source.segment;
        let cancel = Arc::new(AtomicBool::new(false));
        let dir = self.config.dir.clone();
        let shared = self.shared.clone();
        let cancelled = cancel.clone();
        let job = thread::Builder::new().name("store-checkpoint".to_owned()).spawn(move || {
            let written = checkpoint::write(&dir, &source, &cancelled);
            if matches!(written, Ok(Some(_))) {
                remove_covered(&dir, source.sequence, &segments);
            }
            shared.queue.notify(Request::CheckpointEnded);
            written
        });
        match job {
            Ok(job) => self.checkpoint = Some(Checkpointing { job, cancel, bytes, removed, segment }),
            Err(error) => self.retry_checkpoint(&error),
        }
    }

    fn source(&self) -> Source {
        let index = self.shared.index();
        let snapshot = index.snapshot().clone();
        let history = index.history(snapshot.compacted + 1).map(|batches| batches.cloned().collect());
        Source {
            history: history.expect("what comes after the compacted revision is kept"),
            snapshot,
            leases: self.shared.leases().granted().collect(),
            sequence: self.log.sequence(),
            segment: self.log.active_segment(),
        }
    }

    fn end_checkpoint(&mut self) {
        let Some(checkpoint) = self.checkpoint.take() else { return };
        match checkpoint.job.join() {
            Ok(Ok(Some(size))) => {
                self.log.covered(checkpoint.bytes, checkpoint.removed);
                self.last = Last { size, segment: checkpoint.segment };
                self.checkpoint_retry = 0;
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => self.retry_checkpoint(&error),
            Err(_) => self.retry_checkpoint(&"its thread panicked"),
        }
    }

    /// Schedules another attempt after the log has grown by a quarter. The log stays complete without the checkpoint.
    fn retry_checkpoint(&mut self, error: &dyn Display) {
        tracing::warn!(%error, "no checkpoint could be written; the log keeps growing");
        self.checkpoint_retry = self.log.uncovered() + self.config.checkpoint_bytes / 4;
    }
}

/// Removes the files that a durable checkpoint makes useless. A file that stays only takes space, and is removed when
/// the store is next opened.
fn remove_covered(dir: &Path, sequence: u64, segments: &[PathBuf]) {
    let obsolete = checkpoint::obsolete(dir, sequence);
    for path in segments.iter().chain(&obsolete) {
        if let Err(error) = fs::remove_file(path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove an obsolete file");
        }
    }
}
