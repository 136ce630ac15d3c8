//! Checks that need no store: requests that are invalid in every state.

use std::collections::BTreeSet;

use bytes::Bytes;
use corten_etcd::etcdserverpb::range_request::{SortOrder, SortTarget};
use corten_etcd::etcdserverpb::request_op::Request;
use corten_etcd::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest};
use tonic::Status;

use crate::execute::Span;
use crate::status;

/// The deepest nesting of transactions. Each level has an operation at least, of which there are 128 on a path.
const DEEPEST: usize = 128;

pub fn range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::empty_key());
    }
    let is_known = SortOrder::try_from(request.sort_order).is_ok() && SortTarget::try_from(request.sort_target).is_ok();
    if is_known { Ok(()) } else { Err(status::invalid_sort_option()) }
}

pub fn put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::empty_key());
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(status::value_provided());
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(status::lease_provided());
    }
    Ok(())
}

pub fn delete(request: &DeleteRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() { Err(status::empty_key()) } else { Ok(()) }
}

/// Checks a transaction with everything nested in it.
pub fn txn(request: &TxnRequest, most_ops: usize) -> Result<(), Status> {
    ops(request, most_ops, 0)?;
    changes(&request.success)?;
    changes(&request.failure)?;
    Ok(())
}

/// Checks the operations one by one. The operations of a level count for all levels below.
fn ops(request: &TxnRequest, most: usize, depth: usize) -> Result<(), Status> {
    let count = request.compare.len().max(request.success.len()).max(request.failure.len());
    if count > most || depth > DEEPEST {
        return Err(status::too_many_ops());
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(status::empty_key());
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(request)) => range(request)?,
            Some(Request::RequestPut(request)) => put(request)?,
            Some(Request::RequestDeleteRange(request)) => delete(request)?,
            Some(Request::RequestTxn(request)) => ops(request, most - count, depth + 1)?,
            None => return Err(status::key_not_found()),
        }
    }
    Ok(())
}

/// The keys that one side of a transaction may change.
#[derive(Default)]
struct Changes {
    puts: BTreeSet<Bytes>,
    deletes: Vec<Span>,
}

impl Changes {
    fn is_deleted(&self, key: &Bytes) -> bool {
        self.deletes.iter().any(|span| span.contains(key))
    }

    fn put(&mut self, key: Bytes) -> Result<(), Status> {
        if self.is_deleted(&key) || !self.puts.insert(key) {
            return Err(status::duplicate_key());
        }
        Ok(())
    }
}

/// Checks that no key is put twice, nor put and deleted. Of a nested transaction one side happens, so its sides may have
/// keys in common.
fn changes(ops: &[RequestOp]) -> Result<Changes, Status> {
    let mut all = Changes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(request)) = &op.request {
            all.deletes.push(Span::new(&request.key, &request.range_end));
        }
    }
    for op in ops {
        let Some(Request::RequestTxn(request)) = &op.request else { continue };
        let success = changes(&request.success)?;
        let failure = changes(&request.failure)?;
        for key in success.puts.union(&failure.puts) {
            all.put(key.clone())?;
        }
        all.deletes.extend(success.deletes.into_iter().chain(failure.deletes));
    }
    for op in ops {
        if let Some(Request::RequestPut(request)) = &op.request {
            all.put(request.key.clone())?;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_of(key: &'static str) -> RequestOp {
        let request = PutRequest { key: key.into(), ..PutRequest::default() };
        RequestOp { request: Some(Request::RequestPut(request)) }
    }

    fn delete_of(key: &'static str, end: &'static str) -> RequestOp {
        let request = DeleteRangeRequest { key: key.into(), range_end: end.into(), prev_kv: false };
        RequestOp { request: Some(Request::RequestDeleteRange(request)) }
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        let request = TxnRequest { compare: vec![], success, failure };
        RequestOp { request: Some(Request::RequestTxn(request)) }
    }

    fn refused(success: Vec<RequestOp>) -> Option<String> {
        let request = TxnRequest { compare: vec![], success, failure: vec![] };
        txn(&request, 128).err().map(|status| status.message().to_owned())
    }

    #[test]
    fn a_key_is_changed_once() {
        let duplicate = Some("etcdserver: duplicate key given in txn request".to_owned());
        assert_eq!(refused(vec![put_of("a"), put_of("b")]), None);
        assert_eq!(refused(vec![put_of("a"), put_of("a")]), duplicate);
        assert_eq!(refused(vec![put_of("b"), delete_of("a", "c")]), duplicate);
        assert_eq!(refused(vec![put_of("c"), delete_of("a", "c")]), None);
        assert_eq!(refused(vec![put_of("z"), delete_of("a", "\0")]), duplicate);
        assert_eq!(refused(vec![delete_of("a", "c"), delete_of("b", "")]), None);
        assert_eq!(refused(vec![nested(vec![put_of("a")], vec![put_of("a")])]), None);
        assert_eq!(refused(vec![put_of("a"), nested(vec![], vec![put_of("a")])]), duplicate);
        assert_eq!(refused(vec![put_of("a"), nested(vec![delete_of("a", "")], vec![])]), duplicate);
        assert_eq!(refused(vec![delete_of("a", ""), nested(vec![put_of("a")], vec![])]), duplicate);
    }

    #[test]
    fn operations_are_limited_over_all_levels() {
        let many = Some("etcdserver: too many operations in txn request".to_owned());
        let puts = |count: usize| (0..count).map(|_| RequestOp { request: None }).collect::<Vec<_>>();
        assert_eq!(refused(puts(129)), many);
        let mut deep = vec![put_of("a")];
        for _ in 0..128 {
            deep = vec![nested(deep, vec![])];
        }
        assert_eq!(refused(deep), many);
        assert_eq!(refused(puts(1)), Some("etcdserver: key not found".to_owned()));
    }
}
