//! Commits as transactions, and the outcome of one whose answer was lost.
//!
//! A transaction whose outcome is unknown is never repeated blindly. The history of its key since before it was sent
//! shows whether it happened. If it did not, it is sent again only if its own expectations keep it from happening
//! twice; else the caller gets [`Error::UnknownOutcome`].

use std::sync::Arc;

use bytes::Bytes;
use corten_etcd::etcdserverpb::TxnRequest;
use corten_etcd::etcdserverpb::kv_client::KvClient;
use corten_etcd::{MAX_REQUEST_BYTES, MAX_TXN_OPS};
use prost::Message as _;
use tokio::time::Instant;

use super::MAX_ANSWER_BYTES;
use super::Shared;
use super::failure::{Failure, Refusal};
use super::history::history;
use super::members::{ATTEMPT, TOTAL, traced};
use super::messages::{outcome, txn_request};
use crate::{Entry, Error, Event, EventKind, Expect, NO_LEASE, Op, Outcome, Range, Revision};

/// Commits the operations.
pub(super) async fn commit(shared: &Shared, ops: Vec<Op>) -> Result<Outcome, Error> {
    let request = txn_request(&ops);
    check(&ops, &request)?;
    let commit = Commit { shared, ops: &ops, before: shared.members.revision(), deadline: Instant::now() + TOTAL };
    commit.run(&request).await
}

/// Refuses operations that no etcd would take.
fn check(ops: &[Op], request: &TxnRequest) -> Result<(), Error> {
    if ops.iter().any(|op| op.key().is_empty()) {
        return Err(Error::EmptyKey);
    }
    let mut keys: Vec<&Bytes> = ops.iter().map(Op::key).collect();
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::DuplicateKey);
    }
    let bytes = request.encoded_len();
    if bytes > MAX_REQUEST_BYTES {
        return Err(Error::TooLarge { bytes, limit: MAX_REQUEST_BYTES });
    }
    if ops.len() > MAX_TXN_OPS {
        return Err(Error::Refused { reason: "etcdserver: too many operations in txn request".into() });
    }
    Ok(())
}

/// A commit on its way.
struct Commit<'a> {
    shared: &'a Shared,
    ops: &'a [Op],
    /// A revision that was there before the commit was sent.
    before: Revision,
    deadline: Instant,
}

impl Commit<'_> {
    async fn run(&self, request: &TxnRequest) -> Result<Outcome, Error> {
        // The reason why the outcome of an earlier attempt is unknown.
        let mut unknown: Option<String> = None;
        loop {
            let member = match (self.shared.members.ready(self.deadline).await, &unknown) {
                (Ok(member), _) => member,
                (Err(_), Some(reason)) => return Err(self.unknown(reason)),
                (Err(error), None) => return Err(error),
            };
            let mut client = KvClient::new(member.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
            let sent = corten_spans::child("etcdserverpb.KV/Txn", corten_spans::Kind::Client, Vec::new, async {
                client.txn(traced(request.clone())).await
            });
            match self.shared.members.attempt(&member, ATTEMPT, sent).await {
                Ok(answer) => return self.decided(outcome(self.ops, answer), unknown.is_some()).await,
                Err(Failure::Refused(refusal)) if unknown.is_none() => return Err(self.refused(refusal)),
                Err(Failure::Refused(refusal)) => {
                    return match self.find().await? {
                        Some(done) => Ok(done),
                        None => Err(self.refused(refusal)),
                    };
                }
                Err(Failure::NotDone(reason)) if Instant::now() >= self.deadline => {
                    return Err(match &unknown {
                        Some(reason) => self.unknown(reason),
                        None => Error::Unavailable { reason: reason.into() },
                    });
                }
                Err(Failure::NotDone(_)) => {}
                Err(Failure::Lost(reason)) => {
                    if let Some(done) = self.find().await.map_err(|_| self.unknown(&reason))? {
                        return Ok(done);
                    }
                    if !self.is_guarded() || Instant::now() >= self.deadline {
                        return Err(self.unknown(&reason));
                    }
                    unknown = Some(reason);
                }
            }
        }
    }

    /// Returns an outcome that etcd answered. A conflict after an attempt of unknown outcome may be one with itself.
    async fn decided(&self, outcome: Outcome, is_repeated: bool) -> Result<Outcome, Error> {
        match outcome {
            Outcome::Conflict { .. } if is_repeated => Ok(self.find().await?.unwrap_or(outcome)),
            _ => Ok(outcome),
        }
    }

    /// Reports whether the commit cannot happen twice: an expectation no longer holds once it happened.
    fn is_guarded(&self) -> bool {
        self.ops.iter().any(|op| match op {
            Op::Put { expect, .. } => *expect != Expect::Any,
            Op::Delete { expect, .. } => matches!(expect, Expect::ModRevision(_)),
        })
    }

    fn unknown(&self, reason: &str) -> Error {
        Error::UnknownOutcome { reason: reason.into() }
    }

    fn refused(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::LeaseNotFound => Error::LeaseNotFound(self.lease()),
            Refusal::TooLarge => {
                Error::TooLarge { bytes: txn_request(self.ops).encoded_len(), limit: MAX_REQUEST_BYTES }
            }
            other => other.error(),
        }
    }

    /// Returns the lease of the commit. Those of the API server have one at most.
    fn lease(&self) -> i64 {
        let leases = self.ops.iter().filter_map(|op| match op {
            Op::Put { lease, .. } if *lease != NO_LEASE => Some(*lease),
            _ => None,
        });
        leases.last().unwrap_or(NO_LEASE)
    }

    /// Returns the outcome if the history shows that the commit happened.
    async fn find(&self) -> Result<Option<Outcome>, Error> {
        let deciding = self.ops.iter().find(|op| match op {
            Op::Put { .. } => true,
            Op::Delete { expect, .. } => matches!(expect, Expect::ModRevision(_)),
        });
        let Some(op) = deciding else { return Ok(None) };
        let events = history(self.shared, op.key(), self.before + 1).await?;
        let Some(event) = events.iter().find(|event| is_effect(op, event)) else { return Ok(None) };
        let revision = event.entry.mod_revision;
        let mut previous = Vec::with_capacity(self.ops.len());
        for op in self.ops {
            let range = Range::key(op.key()).at(revision - 1);
            let entry: Option<Entry> = super::range(self.shared, range).await?.entries.into_iter().next();
            previous.push(entry.map(Arc::new));
        }
        Ok(Some(Outcome::Committed { revision, previous }))
    }
}

/// Reports whether an event is the effect of an operation. Values carry uids and times, so that two writers do not
/// write the same.
fn is_effect(op: &Op, event: &Event) -> bool {
    match op {
        Op::Put { value, lease, .. } => {
            event.kind == EventKind::Put && event.entry.value == *value && event.entry.lease == *lease
        }
        Op::Delete { expect: Expect::ModRevision(revision), .. } => {
            let deleted = event.previous.as_ref().map(|previous| previous.mod_revision);
            event.kind == EventKind::Delete && deleted == Some(*revision)
        }
        Op::Delete { .. } => false,
    }
}
