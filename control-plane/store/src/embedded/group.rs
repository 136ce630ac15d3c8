//! A group of requests that becomes one frame: the effects of each, decided in order.
//!
//! Planning is pure. A request sees the state after the requests before it in the group, though that is not durable
//! yet; hence every answer, also that of a conflict, is sent only after the frame is synced, and a frame that fails
//! fails the entire group.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::frame;
use super::index::{self, Change, Snapshot};
use super::lease::Leases;
use super::queue::{Reply, Request};
use super::transaction::{Changed, Deliver, Transaction, View};
use crate::{Batch, Entry, Error, Event, EventKind, Expect, LeaseId, NO_LEASE, Op, Outcome, Range, Revision};

/// The most bytes of keys and values in one commit.
const COMMIT_LIMIT: usize = 8 << 20;
/// The size of a frame from which its group takes no more requests.
const GROUP_BYTES: usize = 4 << 20;

/// Returns the delivery of the refusal of a transaction.
fn refusal(deliver: Deliver) -> Deliver {
    Box::new(move |failure| deliver(Some(failure.unwrap_or(Error::Frozen))))
}

/// Refuses operations that are invalid in every state.
pub fn check(ops: &[Op]) -> Result<(), Error> {
    if ops.iter().any(|op| op.key().is_empty()) {
        return Err(Error::EmptyKey);
    }
    let bytes: usize = ops
        .iter()
        .map(|op| match op {
            Op::Put { key, value, .. } => frame::put_size(key.len(), value.len()),
            Op::Delete { key, .. } => frame::put_size(key.len(), 0),
        })
        .sum();
    if bytes > COMMIT_LIMIT {
        return Err(Error::TooLarge { bytes, limit: COMMIT_LIMIT });
    }
    let mut keys: Vec<&Bytes> = ops.iter().map(Op::key).collect();
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::DuplicateKey);
    }
    Ok(())
}

/// The plan of a group.
pub struct Group {
    /// The frame, which its owner reuses for the next group.
    pub frame: Vec<u8>,
    /// The revisions that the group makes, in order.
    pub batches: Vec<Batch>,
    /// The effects on leases and history.
    pub effects: Vec<Effect>,
    answers: Vec<Answer>,
    revision: Revision,
    compacted: Revision,
    /// The keys that the group has changed so far.
    overlay: HashMap<Bytes, Option<Arc<Entry>>>,
}

#[derive(Debug)]
pub enum Effect {
    Compact(Revision),
    Grant(LeaseId, Duration),
    End(LeaseId),
}

/// An answer that waits for the frame.
enum Answer {
    Commit(Reply<Outcome>, Result<Outcome, Error>),
    Compact(Reply<()>, Result<(), Error>),
    Grant(Reply<LeaseId>, Result<LeaseId, Error>),
    Revoke(Reply<Revision>, Result<Revision, Error>),
    Transaction(Deliver),
}

impl Group {
    /// Makes an empty group on top of a state, with a buffer to use.
    pub fn new(mut frame: Vec<u8>, snapshot: &Snapshot) -> Group {
        frame::begin(&mut frame);
        Group {
            frame,
            batches: Vec::new(),
            effects: Vec::new(),
            answers: Vec::new(),
            revision: snapshot.revision,
            compacted: snapshot.compacted,
            overlay: HashMap::new(),
        }
    }

    /// Reports whether the request can join. The revocation of a lease deletes its keys, which must be known: it starts
    /// a group of its own.
    pub fn accepts(&self, request: &Request) -> bool {
        let fits = self.frame.len() < GROUP_BYTES;
        fits && (self.answers.is_empty() || !matches!(request, Request::Revoke { .. }))
    }

    pub fn has_frame(&self) -> bool {
        !frame::is_empty(&self.frame)
    }

    /// Plans a commit: every expectation first, then every change.
    pub fn commit(&mut self, snapshot: &Snapshot, leases: &Leases, ops: Vec<Op>, reply: Reply<Outcome>) {
        let outcome = self.plan_commit(snapshot, leases, ops);
        self.answers.push(Answer::Commit(reply, outcome));
    }

    fn plan_commit(&mut self, snapshot: &Snapshot, leases: &Leases, ops: Vec<Op>) -> Result<Outcome, Error> {
        for (number, op) in ops.iter().enumerate() {
            let current = self.get(snapshot, op.key());
            if !holds(op.expect(), current) {
                let current = current.map(|entry| Entry::clone(entry));
                return Ok(Outcome::Conflict { op: number, current, revision: self.revision });
            }
            if let Op::Put { lease, .. } = op
                && *lease != NO_LEASE
                && !self.is_alive(leases, *lease)
            {
                return Err(Error::LeaseNotFound(*lease));
            }
        }
        let revision = self.revision + 1;
        let mut previous = Vec::with_capacity(ops.len());
        let mut events = Vec::with_capacity(ops.len());
        for op in ops {
            let (key, change) = match op {
                Op::Put { key, value, lease, .. } => (key, Change::Put { value, lease }),
                Op::Delete { key, .. } => (key, Change::Delete),
            };
            let event = index::event(self.get(snapshot, &key), key, change, revision);
            previous.push(event.as_ref().and_then(|event| event.previous.clone()));
            events.extend(event);
        }
        self.add_batch(events);
        Ok(Outcome::Committed { revision: self.revision, previous })
    }

    /// Plans a transaction, which decides its changes itself.
    pub fn transact(&mut self, snapshot: &Snapshot, leases: &Leases, transaction: Transaction) {
        let mut view = View::new(self, snapshot, leases);
        let deliver = transaction.run(&mut view);
        let events = view.into_events();
        self.add_batch(events);
        self.answers.push(Answer::Transaction(deliver));
    }

    /// Refuses a request of a frozen store, unless it changes nothing.
    pub fn refuse(&mut self, snapshot: &Snapshot, leases: &Leases, request: Request) {
        let answer = match request {
            Request::Commit { reply, .. } => Answer::Commit(reply, Err(Error::Frozen)),
            Request::Compact { reply, .. } => Answer::Compact(reply, Err(Error::Frozen)),
            Request::Grant { reply, .. } => Answer::Grant(reply, Err(Error::Frozen)),
            Request::Revoke { reply, .. } => Answer::Revoke(reply, Err(Error::Frozen)),
            Request::Transact(transaction) => {
                let mut view = View::new(self, snapshot, leases);
                let deliver = transaction.run(&mut view);
                let is_read = view.into_events().is_empty();
                if is_read { Answer::Transaction(deliver) } else { Answer::Transaction(refusal(deliver)) }
            }
            Request::Tick { .. } | Request::CheckpointEnded => return,
        };
        self.answers.push(answer);
    }

    pub fn compact(&mut self, revision: Revision, reply: Reply<()>) {
        let result = if revision > self.revision {
            Err(Error::Future { requested: revision, current: self.revision })
        } else if revision <= self.compacted {
            Err(Error::Compacted { compacted: self.compacted })
        } else {
            frame::push_compact(&mut self.frame, revision);
            self.compacted = revision;
            self.effects.push(Effect::Compact(revision));
            Ok(())
        };
        self.answers.push(Answer::Compact(reply, result));
    }

    /// Plans a lease; `fresh` is an unused id, for a request without one.
    pub fn grant(&mut self, leases: &Leases, id: LeaseId, fresh: LeaseId, ttl: Duration, reply: Reply<LeaseId>) {
        let chosen = if id == NO_LEASE { fresh + self.answers.len() as LeaseId } else { id };
        let exists = leases.contains(chosen) || self.granted(chosen) == Some(true);
        let result = if exists {
            Err(Error::LeaseExists(chosen))
        } else {
            frame::push_grant(&mut self.frame, chosen, ttl);
            self.effects.push(Effect::Grant(chosen, ttl));
            Ok(chosen)
        };
        self.answers.push(Answer::Grant(reply, result));
    }

    /// Plans the revocation of a lease with its keys, or the answer that there is none.
    pub fn revoke(
        &mut self,
        snapshot: &Snapshot,
        id: LeaseId,
        keys: Option<Vec<Bytes>>,
        reply: Option<Reply<Revision>>,
    ) {
        let result = match keys {
            None => Err(Error::LeaseNotFound(id)),
            Some(keys) => {
                self.end_lease(snapshot, id, keys);
                Ok(self.revision)
            }
        };
        self.answers.extend(reply.map(|reply| Answer::Revoke(reply, result)));
    }

    fn end_lease(&mut self, snapshot: &Snapshot, id: LeaseId, keys: Vec<Bytes>) {
        let revision = self.revision + 1;
        let deleted = keys.into_iter().filter_map(|key| {
            let current = self.get(snapshot, &key);
            index::event(current, key, Change::Delete, revision)
        });
        let events = deleted.collect();
        self.add_batch(events);
        frame::push_revoke(&mut self.frame, id);
        self.effects.push(Effect::End(id));
    }

    /// Adds a revision with these events, unless there are none.
    fn add_batch(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.revision += 1;
        frame::push_commit(&mut self.frame, self.revision, &events);
        for event in &events {
            let after = (event.kind == EventKind::Put).then(|| Arc::clone(&event.entry));
            self.overlay.insert(event.entry.key.clone(), after);
        }
        self.batches.push(Batch { revision: self.revision, events: events.into() });
    }

    /// Returns the revision after the requests so far.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the compacted revision after the requests so far.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// Returns the changes of the group to keys of a range.
    pub fn changed_within(&self, range: &Range) -> Changed {
        let is_within = |key: &Bytes| *key >= range.start && (range.end.is_empty() || *key < range.end);
        let changed = self.overlay.iter().filter(|(key, _)| is_within(key));
        changed.map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    /// Returns the changes of the group up to one of its revisions.
    pub fn changed_until(&self, revision: Revision) -> Changed {
        let batches = self.batches.iter().take_while(|batch| batch.revision <= revision);
        let events = batches.flat_map(|batch| batch.events.iter());
        events
            .map(|event| {
                let after = (event.kind == EventKind::Put).then(|| Arc::clone(&event.entry));
                (event.entry.key.clone(), after)
            })
            .collect()
    }

    /// Returns the entry of a key after the requests so far.
    pub fn get<'a>(&'a self, snapshot: &'a Snapshot, key: &[u8]) -> Option<&'a Arc<Entry>> {
        match self.overlay.get(key) {
            Some(entry) => entry.as_ref(),
            None => snapshot.get(key),
        }
    }

    /// Reports whether a lease can be used after the requests so far.
    pub fn is_alive(&self, leases: &Leases, id: LeaseId) -> bool {
        self.granted(id).unwrap_or_else(|| leases.is_alive(id))
    }

    /// Reports whether the group grants the lease, or revokes it; `None` if it does neither.
    fn granted(&self, id: LeaseId) -> Option<bool> {
        self.effects.iter().rev().find_map(|effect| match effect {
            Effect::Grant(granted, _) if *granted == id => Some(true),
            Effect::End(ended) if *ended == id => Some(false),
            _ => None,
        })
    }

    /// Sends every answer: its own if the frame is durable, else the error.
    pub fn answer(&mut self, written: Result<(), Error>) {
        for answer in self.answers.drain(..) {
            let failure = written.as_ref().err().cloned();
            match answer {
                Answer::Commit(reply, result) => send(reply, failure, result),
                Answer::Compact(reply, result) => send(reply, failure, result),
                Answer::Grant(reply, result) => send(reply, failure, result),
                Answer::Revoke(reply, result) => send(reply, failure, result),
                Answer::Transaction(deliver) => deliver(failure),
            }
        }
    }
}

/// Sends a result, or the failure of its group.
pub fn send<T>(reply: Reply<T>, failure: Option<Error>, result: Result<T, Error>) {
    let result = failure.map_or(result, Err);
    // The caller may have gone.
    let _ = reply.send(result);
}

fn holds(expect: Expect, current: Option<&Arc<Entry>>) -> bool {
    match expect {
        Expect::Any => true,
        Expect::Absent => current.is_none(),
        Expect::ModRevision(revision) => current.is_some_and(|entry| entry.mod_revision == revision),
    }
}
