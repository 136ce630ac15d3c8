//! Tests of keys and values: ranges with all their options, puts, deletes, transactions, compaction, and errors with
//! etcd's codes and texts.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use corten_etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use corten_etcd::etcdserverpb::range_request::{SortOrder, SortTarget};
use corten_etcd::etcdserverpb::request_op::Request;
use corten_etcd::etcdserverpb::response_op::Response;
use corten_etcd::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    TxnResponse,
};
use tonic::{Code, Status};

use support::{Served, one, serve, span};

/// Returns keys and values of an answer in order.
fn pairs(response: &RangeResponse) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    response.kvs.iter().map(|kv| format!("{}={}", text(&kv.key), text(&kv.value))).collect()
}

async fn range(served: &Served, request: RangeRequest) -> RangeResponse {
    served.kv().range(request).await.unwrap().into_inner()
}

/// Asserts that a request fails with this code and message.
fn assert_refused<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, Status>, code: Code, message: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

#[tokio::test]
async fn ranges_have_every_option() {
    let served = serve().await;
    for (key, value) in [("a", "3"), ("b", "1"), ("c", "2"), ("a", "4")] {
        served.put(key, value).await;
    }
    assert_eq!(pairs(&range(&served, span("a", "c")).await), ["a=4", "b=1"]);
    assert_eq!(pairs(&range(&served, span("b", "\0")).await), ["b=1", "c=2"]);
    assert_eq!(pairs(&range(&served, one("c")).await), ["c=2"]);
    assert_eq!(pairs(&range(&served, span("c", "a")).await), [""; 0]);

    let limited = range(&served, RangeRequest { limit: 2, ..span("a", "\0") }).await;
    assert_eq!((pairs(&limited).len(), limited.more, limited.count), (2, true, 3));
    let counted = range(&served, RangeRequest { count_only: true, ..span("a", "\0") }).await;
    assert_eq!((counted.kvs.len(), counted.more, counted.count), (0, false, 3));
    let keys = range(&served, RangeRequest { keys_only: true, ..span("a", "\0") }).await;
    assert_eq!(pairs(&keys), ["a=", "b=", "c="]);

    let sorted = |target: SortTarget, order: SortOrder| RangeRequest {
        sort_order: order.into(),
        sort_target: target.into(),
        ..span("a", "\0")
    };
    let order = [
        (SortTarget::Value, SortOrder::Ascend, ["b=1", "c=2", "a=4"]),
        (SortTarget::Value, SortOrder::None, ["b=1", "c=2", "a=4"]),
        (SortTarget::Key, SortOrder::Descend, ["c=2", "b=1", "a=4"]),
        (SortTarget::Key, SortOrder::Ascend, ["a=4", "b=1", "c=2"]),
        (SortTarget::Mod, SortOrder::Descend, ["a=4", "c=2", "b=1"]),
        (SortTarget::Create, SortOrder::Descend, ["c=2", "b=1", "a=4"]),
        (SortTarget::Version, SortOrder::Descend, ["a=4", "b=1", "c=2"]),
    ];
    for (target, direction, expected) in order {
        assert_eq!(pairs(&range(&served, sorted(target, direction)).await), expected, "{target:?} {direction:?}");
    }
    let first = range(&served, RangeRequest { limit: 1, ..sorted(SortTarget::Value, SortOrder::Ascend) }).await;
    assert_eq!((pairs(&first), first.more, first.count), (vec!["b=1".to_owned()], true, 3));
    let no_values = RangeRequest { keys_only: true, ..sorted(SortTarget::Value, SortOrder::Descend) };
    assert_eq!(pairs(&range(&served, no_values).await), ["a=", "c=", "b="]);

    let bounds = [
        (RangeRequest { min_mod_revision: 4, ..span("a", "\0") }, vec!["a=4", "c=2"]),
        (RangeRequest { max_mod_revision: 4, ..span("a", "\0") }, vec!["b=1", "c=2"]),
        (RangeRequest { min_create_revision: 3, ..span("a", "\0") }, vec!["b=1", "c=2"]),
        (RangeRequest { max_create_revision: 2, ..span("a", "\0") }, vec!["a=4"]),
    ];
    for (request, expected) in bounds {
        assert_eq!(pairs(&range(&served, request).await), expected);
    }
    let old = range(&served, RangeRequest { revision: 3, ..span("a", "\0") }).await;
    assert_eq!(pairs(&old), ["a=3", "b=1"]);
    assert_eq!(old.header.unwrap().revision, 5, "the header has the store's revision");
}

#[tokio::test]
async fn a_put_returns_and_keeps_what_was_there() {
    let served = serve().await;
    served.put("a", "1").await;
    let put = |request: PutRequest| {
        let mut kv = served.kv();
        async move { kv.put(PutRequest { key: "a".into(), ..request }).await }
    };
    let previous = put(PutRequest { value: "2".into(), prev_kv: true, ..Default::default() }).await.unwrap();
    let previous = previous.into_inner().prev_kv.unwrap();
    assert_eq!((previous.value.as_ref(), previous.version), (b"1".as_ref(), 1));
    put(PutRequest { ignore_value: true, ..Default::default() }).await.unwrap();
    let kv = range(&served, one("a")).await.kvs.remove(0);
    assert_eq!((kv.value.as_ref(), kv.version, kv.create_revision, kv.mod_revision), (b"2".as_ref(), 3, 2, 4));

    let invalid = Code::InvalidArgument;
    let refused = put(PutRequest { ignore_value: true, value: "x".into(), ..Default::default() }).await;
    assert_refused(refused, invalid, "etcdserver: value is provided");
    let refused = put(PutRequest { ignore_lease: true, lease: 7, ..Default::default() }).await;
    assert_refused(refused, invalid, "etcdserver: lease is provided");
    let refused = put(PutRequest { lease: 7, ..Default::default() }).await;
    assert_refused(refused, Code::NotFound, "etcdserver: requested lease not found");
    let big = PutRequest { value: vec![0; 1_600 << 10].into(), ..Default::default() };
    assert_refused(put(big).await, invalid, "etcdserver: request is too large");
    let absent = PutRequest { key: "none".into(), ignore_value: true, ..Default::default() };
    assert_refused(served.kv().put(absent).await, invalid, "etcdserver: key not found");
    let empty = served.kv().put(PutRequest::default()).await;
    assert_refused(empty, invalid, "etcdserver: key is not provided");
}

#[tokio::test]
async fn a_delete_counts_and_returns_what_it_deleted() {
    let served = serve().await;
    for key in ["a", "b", "c"] {
        served.put(key, key).await;
    }
    let request = DeleteRangeRequest { key: "a".into(), range_end: "c".into(), prev_kv: true };
    let deleted = served.kv().delete_range(request.clone()).await.unwrap().into_inner();
    let previous: Vec<_> = deleted.prev_kvs.iter().map(|kv| kv.value.clone()).collect();
    assert_eq!((deleted.deleted, deleted.header.unwrap().revision, previous), (2, 5, vec!["a".into(), "b".into()]));
    let again = served.kv().delete_range(request).await.unwrap().into_inner();
    assert_eq!((again.deleted, again.header.unwrap().revision), (0, 5), "nothing changed");
}

fn compare(key: &str, result: CompareResult, target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        key: key.to_owned().into(),
        result: result.into(),
        target: target.into(),
        target_union: Some(union),
        ..Default::default()
    }
}

fn put_op(key: &str, value: &str) -> RequestOp {
    let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    RequestOp { request: Some(Request::RequestPut(put)) }
}

fn range_op(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Request::RequestRange(request)) }
}

fn delete_op(key: &str, end: &str) -> RequestOp {
    let delete = DeleteRangeRequest { key: key.to_owned().into(), range_end: end.to_owned().into(), prev_kv: true };
    RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

async fn txn(served: &Served, compare: Vec<Compare>, success: Vec<RequestOp>) -> TxnResponse {
    served.kv().txn(TxnRequest { compare, success, failure: vec![] }).await.unwrap().into_inner()
}

#[tokio::test]
async fn a_transaction_compares_every_property() {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    use CompareTarget as Target;
    let served = serve().await;
    served.put("a", "m").await;
    served.put("a", "n").await;
    let cases = [
        (compare("a", Equal, Target::Version, TargetUnion::Version(2)), true),
        (compare("a", Greater, Target::Version, TargetUnion::Version(2)), false),
        (compare("a", Equal, Target::Create, TargetUnion::CreateRevision(2)), true),
        (compare("a", Less, Target::Mod, TargetUnion::ModRevision(4)), true),
        (compare("a", NotEqual, Target::Mod, TargetUnion::ModRevision(3)), false),
        (compare("a", Greater, Target::Value, TargetUnion::Value("m".into())), true),
        (compare("a", Equal, Target::Lease, TargetUnion::Lease(0)), true),
        (compare("none", Equal, Target::Mod, TargetUnion::ModRevision(0)), true),
        (compare("none", Equal, Target::Value, TargetUnion::Value("".into())), false),
        (compare("none", NotEqual, Target::Value, TargetUnion::Value("x".into())), false),
    ];
    for (compare, expected) in cases {
        assert_eq!(txn(&served, vec![compare.clone()], vec![]).await.succeeded, expected, "{compare:?}");
    }
    served.put("b", "o").await;
    let all = |version| Compare {
        range_end: "\0".into(),
        ..compare("a", Equal, Target::Version, TargetUnion::Version(version))
    };
    assert!(!txn(&served, vec![all(2)], vec![]).await.succeeded, "the second key has another version");
    served.put("b", "p").await;
    assert!(txn(&served, vec![all(2)], vec![]).await.succeeded);
}

#[tokio::test]
async fn a_transaction_happens_at_one_revision_and_sees_itself() {
    let served = serve().await;
    served.put("a", "1").await;
    let nested = TxnRequest {
        // Comparisons see the state before the transaction.
        compare: vec![compare("b", CompareResult::Equal, CompareTarget::Version, TargetUnion::Version(0))],
        success: vec![put_op("c", "3"), range_op(span("a", "\0"))],
        failure: vec![],
    };
    let response = txn(
        &served,
        vec![],
        vec![
            range_op(one("b")),
            put_op("b", "2"),
            delete_op("a", ""),
            RequestOp { request: Some(Request::RequestTxn(nested)) },
            range_op(RangeRequest { revision: 2, ..span("a", "\0") }),
        ],
    )
    .await;
    assert_eq!((response.succeeded, response.header.unwrap().revision), (true, 3));
    let answers: Vec<Response> = response.responses.into_iter().map(|op| op.response.unwrap()).collect();
    let Response::ResponseRange(before) = &answers[0] else { panic!("{:?}", answers[0]) };
    assert_eq!((before.kvs.len(), before.header.as_ref().unwrap().revision), (0, 2));
    let Response::ResponseDeleteRange(deleted) = &answers[2] else { panic!("{:?}", answers[2]) };
    assert_eq!(deleted.deleted, 1);
    let Response::ResponseTxn(nested) = &answers[3] else { panic!("{:?}", answers[3]) };
    let Some(Response::ResponseRange(within)) = &nested.responses[1].response else { panic!("{nested:?}") };
    assert_eq!(pairs(within), ["b=2", "c=3"]);
    assert!(within.kvs.iter().all(|kv| kv.mod_revision == 3));
    let Response::ResponseRange(old) = &answers[4] else { panic!("{:?}", answers[4]) };
    assert_eq!(pairs(old), ["a=1"]);
    assert_eq!(pairs(&range(&served, span("a", "\0")).await), ["b=2", "c=3"]);
}

#[tokio::test]
async fn a_transaction_that_fails_changes_nothing() {
    let served = serve().await;
    served.put("a", "1").await;
    let kv = || served.kv();
    let leased = PutRequest { key: "b".into(), lease: 9, ..Default::default() };
    let ops = vec![put_op("a", "2"), RequestOp { request: Some(Request::RequestPut(leased)) }];
    let refused = kv().txn(TxnRequest { success: ops, ..Default::default() }).await;
    assert_refused(refused, Code::NotFound, "etcdserver: requested lease not found");
    let twice = vec![put_op("x", "1"), put_op("x", "2")];
    let refused = kv().txn(TxnRequest { failure: twice, ..Default::default() }).await;
    assert_refused(refused, Code::InvalidArgument, "etcdserver: duplicate key given in txn request");
    let many = (0..129).map(|number| put_op(&format!("k{number}"), "")).collect();
    let refused = kv().txn(TxnRequest { success: many, ..Default::default() }).await;
    assert_refused(refused, Code::InvalidArgument, "etcdserver: too many operations in txn request");
    let future = vec![put_op("a", "2"), range_op(RangeRequest { revision: 3, ..one("a") })];
    let refused = kv().txn(TxnRequest { success: future, ..Default::default() }).await;
    assert_refused(refused, Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
    let kept = range(&served, span("a", "\0")).await;
    assert_eq!((pairs(&kept), kept.header.unwrap().revision), (vec!["a=1".to_owned()], 2));
}

#[tokio::test]
async fn transactions_of_many_clients_lose_no_update() {
    let served = serve().await;
    served.put("count", "0").await;
    let increment = |mut kv: corten_etcd::etcdserverpb::kv_client::KvClient<_>| async move {
        loop {
            let current = kv.range(one("count")).await.unwrap().into_inner().kvs.remove(0);
            let value: u64 = String::from_utf8(current.value.to_vec()).unwrap().parse().unwrap();
            let union = TargetUnion::ModRevision(current.mod_revision);
            let request = TxnRequest {
                compare: vec![compare("count", CompareResult::Equal, CompareTarget::Mod, union)],
                success: vec![put_op("count", &(value + 1).to_string())],
                failure: vec![],
            };
            if kv.txn(request).await.unwrap().into_inner().succeeded {
                return;
            }
        }
    };
    futures::future::join_all((0..20).map(|_| increment(served.kv()))).await;
    assert_eq!(pairs(&range(&served, one("count")).await), ["count=20"]);
}

#[tokio::test]
async fn a_compaction_is_done_once_and_refused_for_the_future() {
    let served = serve().await;
    for value in ["1", "2", "3"] {
        served.put("a", value).await;
    }
    let compact = |revision| {
        let mut kv = served.kv();
        async move { kv.compact(CompactionRequest { revision, physical: true }).await }
    };
    compact(3).await.unwrap();
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(compact(3).await, Code::OutOfRange, compacted);
    assert_refused(compact(99).await, Code::OutOfRange, future);
    let old = served.kv().range(RangeRequest { revision: 2, ..one("a") }).await;
    assert_refused(old, Code::OutOfRange, compacted);
    let future_range = served.kv().range(RangeRequest { revision: 99, ..one("a") }).await;
    assert_refused(future_range, Code::OutOfRange, future);
    assert_eq!(pairs(&range(&served, RangeRequest { revision: 3, ..one("a") }).await), ["a=2"]);
}
