//! The store's types as etcd's messages, and back.

use std::sync::Arc;

use bytes::Bytes;
use corten_etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use corten_etcd::etcdserverpb::request_op::Request;
use corten_etcd::etcdserverpb::response_op::Response;
use corten_etcd::etcdserverpb::{
    AlarmResponse, CompactionResponse, Compare, DeleteRangeRequest, LeaseGrantResponse, LeaseKeepAliveResponse,
    LeaseRevokeResponse, LeaseTimeToLiveResponse, PutRequest, RangeRequest, RangeResponse, RequestOp, ResponseHeader,
    ResponseOp, TxnRequest, TxnResponse,
};
use corten_etcd::mvccpb;

use crate::{Entry, Event, EventKind, Expect, Op, Outcome, Range, RangeResult, Revision};

/// An answer of etcd, which carries the store's revision in its header.
pub(super) trait Answer {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! answers {
    ($($message:ty),* $(,)?) => {
        $(impl Answer for $message {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        })*
    };
}

answers!(
    RangeResponse,
    TxnResponse,
    CompactionResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseKeepAliveResponse,
    LeaseTimeToLiveResponse,
    AlarmResponse,
);

pub(super) fn revision(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| unsigned(header.revision))
}

/// Returns a number that etcd sends as signed and that is never negative.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Returns a revision as etcd sends it. One that is too large is in the future anyway.
pub(super) fn signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// The key, and the end, that stand for "from the first key" and "without an end".
const OPEN: &[u8] = &[0];

/// Returns the first key of a range: etcd has no empty key.
pub(super) fn first_key(start: &Bytes) -> Bytes {
    if start.is_empty() { Bytes::from_static(OPEN) } else { start.clone() }
}

pub(super) fn range_end(end: &Bytes) -> Bytes {
    if end.is_empty() { Bytes::from_static(OPEN) } else { end.clone() }
}

pub(super) fn range_request(range: &Range) -> RangeRequest {
    RangeRequest {
        key: first_key(&range.start),
        range_end: range_end(&range.end),
        limit: i64::try_from(range.limit).unwrap_or(i64::MAX),
        revision: signed(range.revision.unwrap_or(0)),
        keys_only: range.keys_only,
        count_only: range.count_only,
        ..RangeRequest::default()
    }
}

pub(super) fn get_request(key: &[u8]) -> RangeRequest {
    RangeRequest { key: Bytes::copy_from_slice(key), limit: 1, ..RangeRequest::default() }
}

pub(super) fn range_result(range: &Range, answer: RangeResponse) -> RangeResult {
    RangeResult {
        revision: range.revision.unwrap_or_else(|| revision(answer.header.as_ref())),
        entries: answer.kvs.into_iter().map(entry).collect(),
        more: answer.more,
        count: unsigned(answer.count),
    }
}

pub(super) fn entry(kv: mvccpb::KeyValue) -> Entry {
    Entry {
        key: kv.key,
        value: kv.value,
        create_revision: unsigned(kv.create_revision),
        mod_revision: unsigned(kv.mod_revision),
        version: unsigned(kv.version),
        lease: kv.lease,
    }
}

/// Returns the transaction of a commit: if every expectation holds, the changes; else the keys with expectations, so
/// that the answer shows which did not hold.
pub(super) fn txn_request(ops: &[Op]) -> TxnRequest {
    let expected = || ops.iter().filter(|op| op.expect() != Expect::Any);
    TxnRequest {
        compare: expected().map(compare).collect(),
        success: ops.iter().map(change).collect(),
        failure: expected().map(|op| request(Request::RequestRange(get_request(op.key())))).collect(),
    }
}

fn compare(op: &Op) -> Compare {
    let expected = match op.expect() {
        Expect::ModRevision(revision) => signed(revision),
        Expect::Absent | Expect::Any => 0,
    };
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: op.key().clone(),
        target_union: Some(TargetUnion::ModRevision(expected)),
        ..Compare::default()
    }
}

fn change(op: &Op) -> RequestOp {
    request(match op.clone() {
        Op::Put { key, value, lease, .. } => {
            Request::RequestPut(PutRequest { key, value, lease, prev_kv: true, ..PutRequest::default() })
        }
        Op::Delete { key, .. } => {
            Request::RequestDeleteRange(DeleteRangeRequest { key, prev_kv: true, ..DeleteRangeRequest::default() })
        }
    })
}

fn request(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Returns the outcome of a transaction.
pub(super) fn outcome(ops: &[Op], answer: TxnResponse) -> Outcome {
    let revision = revision(answer.header.as_ref());
    if answer.succeeded {
        let previous = answer.responses.into_iter().map(|one| previous(one).map(|kv| Arc::new(entry(kv)))).collect();
        return Outcome::Committed { revision, previous };
    }
    let currents = answer.responses.into_iter().map(ranged);
    let expected = ops.iter().enumerate().filter(|(_, op)| op.expect() != Expect::Any);
    let mut conflicts = expected.zip(currents).filter(|((_, op), current)| !holds(op.expect(), current.as_ref()));
    match conflicts.next() {
        Some(((op, _), current)) => Outcome::Conflict { op, current, revision },
        // The transaction compared at the same revision as it read, so that this is unreachable for a sound etcd.
        None => Outcome::Conflict { op: 0, current: None, revision },
    }
}

fn holds(expect: Expect, current: Option<&Entry>) -> bool {
    match expect {
        Expect::Any => true,
        Expect::Absent => current.is_none(),
        Expect::ModRevision(revision) => current.is_some_and(|entry| entry.mod_revision == revision),
    }
}

fn previous(one: ResponseOp) -> Option<mvccpb::KeyValue> {
    match one.response? {
        Response::ResponsePut(put) => put.prev_kv,
        Response::ResponseDeleteRange(deleted) => deleted.prev_kvs.into_iter().next(),
        _ => None,
    }
}

fn ranged(one: ResponseOp) -> Option<Entry> {
    match one.response? {
        Response::ResponseRange(range) => range.kvs.into_iter().next().map(entry),
        _ => None,
    }
}

/// Returns an event of a watch.
pub(super) fn event(event: mvccpb::Event) -> Event {
    let kind = match event.r#type() {
        mvccpb::event::EventType::Put => EventKind::Put,
        mvccpb::event::EventType::Delete => EventKind::Delete,
    };
    let kv = event.kv.unwrap_or_default();
    let entry_of = entry;
    let entry = match kind {
        EventKind::Put => entry_of(kv),
        EventKind::Delete => Entry {
            key: kv.key,
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: unsigned(kv.mod_revision),
            version: 0,
            lease: 0,
        },
    };
    Event { kind, entry: Arc::new(entry), previous: event.prev_kv.map(|kv| Arc::new(entry_of(kv))) }
}
