//! The operations of the API on a state of the store.
//!
//! Every function here is pure but for the [`View`], and runs on the committer's thread: it computes and never waits.

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use corten_etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use corten_etcd::etcdserverpb::range_request::{SortOrder, SortTarget};
use corten_etcd::etcdserverpb::request_op::Request;
use corten_etcd::etcdserverpb::response_op::Response;
use corten_etcd::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse,
};
use corten_etcd::mvccpb::KeyValue;
use corten_store::{Entry, Range, RangeResult, Revision, View};
use tonic::Status;

use crate::{signed, status};

/// The end of a range that has none.
const NO_END: &[u8] = b"\0";

/// The keys that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub start: Bytes,
    /// The end, exclusive; empty if there is none.
    pub end: Bytes,
}

impl Span {
    /// Returns the keys of a request: one key without a range end, all keys from it on with the end `\0`.
    pub fn new(key: &Bytes, range_end: &Bytes) -> Span {
        if range_end.is_empty() {
            let one = Range::key(key);
            return Span { start: one.start, end: one.end };
        }
        let end = if **range_end == *NO_END { Bytes::new() } else { range_end.clone() };
        Span { start: key.clone(), end }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        *key >= *self.start && (self.end.is_empty() || *key < *self.end)
    }

    /// Returns the range of the store.
    pub fn range(&self) -> Range {
        Range::new(self.start.clone(), self.end.clone())
    }
}

/// A range request, translated.
pub struct Query<'a> {
    request: &'a RangeRequest,
    order: SortOrder,
    target: SortTarget,
    has_bounds: bool,
    limit: usize,
}

impl<'a> Query<'a> {
    pub fn new(request: &'a RangeRequest) -> Result<Query<'a>, Status> {
        let order = SortOrder::try_from(request.sort_order).map_err(|_| status::invalid_sort_option())?;
        let target = SortTarget::try_from(request.sort_target).map_err(|_| status::invalid_sort_option())?;
        let has_bounds = request.min_mod_revision != 0
            || request.max_mod_revision != 0
            || request.min_create_revision != 0
            || request.max_create_revision != 0;
        let limit = usize::try_from(request.limit).unwrap_or_default();
        Ok(Query { request, order, target, has_bounds, limit })
    }

    fn is_sorted(&self) -> bool {
        self.order == SortOrder::Descend || self.target != SortTarget::Key
    }

    /// Returns the range to read.
    pub fn range(&self) -> Range {
        let mut range = Span::new(&self.request.key, &self.request.range_end).range();
        range.limit = if self.has_bounds || self.is_sorted() { 0 } else { self.limit };
        range.count_only = self.request.count_only;
        // Values are needed to sort by them.
        range.keys_only = self.request.keys_only && self.target != SortTarget::Value;
        // A revision below 1 is the last one.
        range.revision = u64::try_from(self.request.revision).ok().filter(|revision| *revision > 0);
        range
    }

    /// Makes the answer of the range that was read.
    pub fn answer(&self, mut found: RangeResult) -> RangeResponse {
        if self.has_bounds {
            found.entries.retain(|entry| is_within_bounds(self.request, entry));
        }
        if self.is_sorted() {
            sort(&mut found.entries, self.target, self.order);
        }
        let is_cut = self.limit > 0 && found.entries.len() > self.limit;
        if is_cut {
            found.entries.truncate(self.limit);
        }
        let mut kvs: Vec<KeyValue> = found.entries.into_iter().map(key_value).collect();
        if self.request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        let header = at(found.revision);
        RangeResponse { header, kvs, more: found.more || is_cut, count: signed(found.count) }
    }
}

fn range(view: &View<'_>, request: &RangeRequest) -> Result<RangeResponse, Status> {
    let query = Query::new(request)?;
    Ok(query.answer(view.range(&query.range()).map_err(status::of)?))
}

fn is_within_bounds(request: &RangeRequest, entry: &Entry) -> bool {
    let is_within = |least: i64, most: i64, revision: Revision| {
        let revision = signed(revision);
        (least == 0 || revision >= least) && (most == 0 || revision <= most)
    };
    is_within(request.min_mod_revision, request.max_mod_revision, entry.mod_revision)
        && is_within(request.min_create_revision, request.max_create_revision, entry.create_revision)
}

fn sort(entries: &mut [Entry], target: SortTarget, order: SortOrder) {
    let compare = |left: &Entry, right: &Entry| match target {
        SortTarget::Key => left.key.cmp(&right.key),
        SortTarget::Version => left.version.cmp(&right.version),
        SortTarget::Create => left.create_revision.cmp(&right.create_revision),
        SortTarget::Mod => left.mod_revision.cmp(&right.mod_revision),
        SortTarget::Value => left.value.cmp(&right.value),
    };
    match order {
        SortOrder::Descend => entries.sort_by(|left, right| compare(right, left)),
        SortOrder::Ascend | SortOrder::None => entries.sort_by(compare),
    }
}

pub fn put(view: &mut View<'_>, request: PutRequest) -> Result<PutResponse, Status> {
    let current = view.get(&request.key).cloned();
    let (value, lease) = match &current {
        None if request.ignore_value || request.ignore_lease => return Err(status::key_not_found()),
        None => (request.value, request.lease),
        Some(entry) => (
            if request.ignore_value { entry.value.clone() } else { request.value },
            if request.ignore_lease { entry.lease } else { request.lease },
        ),
    };
    view.put(request.key, value, lease).map_err(status::of)?;
    let prev_kv = current.filter(|_| request.prev_kv).map(|entry| key_value(Entry::clone(&entry)));
    Ok(PutResponse { header: at(view.revision()), prev_kv })
}

pub fn delete_range(view: &mut View<'_>, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse, Status> {
    let span = Span::new(&request.key, &request.range_end);
    let keys: Vec<Bytes> = if request.range_end.is_empty() {
        view.get(&request.key).map(|entry| entry.key.clone()).into_iter().collect()
    } else {
        view.range(&span.range().keys_only()).map_err(status::of)?.entries.into_iter().map(|entry| entry.key).collect()
    };
    let mut deleted = Vec::with_capacity(keys.len());
    for key in keys {
        deleted.extend(view.delete(key).map_err(status::of)?);
    }
    let count = signed(deleted.len() as u64);
    let previous: Vec<Arc<Entry>> = if request.prev_kv { deleted } else { Vec::new() };
    let prev_kvs = previous.iter().map(|entry| key_value(Entry::clone(entry))).collect();
    Ok(DeleteRangeResponse { header: at(view.revision()), deleted: count, prev_kvs })
}

/// Runs a transaction: all comparisons first, nested ones included, then the operations of the sides that they chose.
pub fn txn(view: &mut View<'_>, request: TxnRequest) -> Result<TxnResponse, Status> {
    let path = choose(view, &request)?;
    run(view, request, &mut path.into_iter())
}

/// Returns the outcomes of the comparisons of a transaction and of those nested in its chosen side, in order.
fn choose(view: &View<'_>, request: &TxnRequest) -> Result<Vec<bool>, Status> {
    let mut holds = true;
    for compare in &request.compare {
        holds = holds && matches(view, compare)?;
    }
    let mut path = vec![holds];
    for op in if holds { &request.success } else { &request.failure } {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            path.extend(choose(view, nested)?);
        }
    }
    Ok(path)
}

fn run(view: &mut View<'_>, request: TxnRequest, path: &mut std::vec::IntoIter<bool>) -> Result<TxnResponse, Status> {
    let succeeded = path.next().unwrap_or_default();
    let ops = if succeeded { request.success } else { request.failure };
    let mut responses = Vec::with_capacity(ops.len());
    for RequestOp { request } in ops {
        let response = match request.ok_or_else(status::key_not_found)? {
            Request::RequestRange(request) => Response::ResponseRange(range(view, &request)?),
            Request::RequestPut(request) => Response::ResponsePut(put(view, request)?),
            Request::RequestDeleteRange(request) => Response::ResponseDeleteRange(delete_range(view, &request)?),
            Request::RequestTxn(request) => Response::ResponseTxn(run(view, request, path)?),
        };
        responses.push(ResponseOp { response: Some(response) });
    }
    Ok(TxnResponse { header: at(view.revision()), succeeded, responses })
}

/// Reports whether a comparison holds for every key that it names. Absent keys have revisions of 0 and no value.
fn matches(view: &View<'_>, compare: &Compare) -> Result<bool, Status> {
    if compare.range_end.is_empty() {
        return Ok(match view.get(&compare.key) {
            Some(entry) => holds(compare, entry),
            None => holds_without_key(compare),
        });
    }
    let found = view.range(&Span::new(&compare.key, &compare.range_end).range()).map_err(status::of)?;
    if found.entries.is_empty() {
        return Ok(holds_without_key(compare));
    }
    Ok(found.entries.iter().all(|entry| holds(compare, entry)))
}

fn holds_without_key(compare: &Compare) -> bool {
    let absent =
        Entry { key: Bytes::new(), value: Bytes::new(), create_revision: 0, mod_revision: 0, version: 0, lease: 0 };
    // The API cannot tell a missing value from an empty one, so no comparison of one holds.
    compare.target() != CompareTarget::Value && holds(compare, &absent)
}

fn holds(compare: &Compare, entry: &Entry) -> bool {
    let union = compare.target_union.as_ref();
    let number = match union {
        Some(TargetUnion::Version(number)) if compare.target() == CompareTarget::Version => *number,
        Some(TargetUnion::CreateRevision(number)) if compare.target() == CompareTarget::Create => *number,
        Some(TargetUnion::ModRevision(number)) if compare.target() == CompareTarget::Mod => *number,
        Some(TargetUnion::Lease(number)) if compare.target() == CompareTarget::Lease => *number,
        _ => 0,
    };
    let ordering = match compare.target() {
        CompareTarget::Version => signed(entry.version).cmp(&number),
        CompareTarget::Create => signed(entry.create_revision).cmp(&number),
        CompareTarget::Mod => signed(entry.mod_revision).cmp(&number),
        CompareTarget::Lease => entry.lease.cmp(&number),
        CompareTarget::Value => match union {
            Some(TargetUnion::Value(value)) => entry.value.cmp(value),
            _ => entry.value.cmp(&Bytes::new()),
        },
    };
    match compare.result() {
        CompareResult::Equal => ordering == Ordering::Equal,
        CompareResult::NotEqual => ordering != Ordering::Equal,
        CompareResult::Greater => ordering == Ordering::Greater,
        CompareResult::Less => ordering == Ordering::Less,
    }
}

/// Returns an entry as the API has it.
pub fn key_value(entry: Entry) -> KeyValue {
    KeyValue {
        create_revision: signed(entry.create_revision),
        mod_revision: signed(entry.mod_revision),
        version: signed(entry.version),
        lease: entry.lease,
        key: entry.key,
        value: entry.value,
    }
}

/// Returns a header that has the revision alone, as those within a transaction do.
fn at(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision: signed(revision), ..ResponseHeader::default() })
}
