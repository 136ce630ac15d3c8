//! Compaction of the history, by the protocol that all API servers on one etcd share.
//!
//! The key `compact_rev_key` holds the revision of the last compaction; its version counts the compactions. A server
//! that changes the key from the version it knows compacts up to the revision of its last round, an interval ago. The
//! others learn the new version, and wait another interval.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_etcd::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use corten_etcd::etcdserverpb::kv_client::KvClient;
use corten_etcd::etcdserverpb::request_op::Request;
use corten_etcd::etcdserverpb::response_op::Response;
use corten_etcd::etcdserverpb::{Compare, PutRequest, RequestOp, TxnRequest, TxnResponse};

use super::Shared;
use super::messages::{get_request, revision, signed};
use crate::{Error, Revision};

/// The key of the protocol, without a prefix: upstream's.
const KEY: &[u8] = b"compact_rev_key";

/// The state of a server between two rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Round {
    /// The version of the key.
    version: i64,
    /// The store's revision at that round.
    revision: Revision,
}

/// Compacts at each interval.
pub(super) async fn run(shared: Arc<Shared>, interval: Duration) {
    let mut round = Round::default();
    loop {
        match turn(&shared, round).await {
            Ok(next) => round = next,
            Err(error) => tracing::warn!(%error, "etcd could not be compacted"),
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

/// Takes part in one round, and compacts if this server is the one to do it.
async fn turn(shared: &Shared, last: Round) -> Result<Round, Error> {
    let request = TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Version.into(),
            key: Bytes::from_static(KEY),
            target_union: Some(TargetUnion::Version(last.version)),
            ..Compare::default()
        }],
        success: vec![RequestOp {
            request: Some(Request::RequestPut(PutRequest {
                key: Bytes::from_static(KEY),
                value: last.revision.to_string().into(),
                ..PutRequest::default()
            })),
        }],
        failure: vec![RequestOp { request: Some(Request::RequestRange(get_request(KEY))) }],
    };
    // A repetition after a lost answer fails its comparison: then the next round compacts.
    let called = shared.members.call(|channel| {
        let request = request.clone();
        async move { KvClient::new(channel).txn(request).await }
    });
    let answer = called.await.answer()?;
    let now = revision(answer.header.as_ref());
    if !answer.succeeded {
        return Ok(Round { version: version(answer), revision: now });
    }
    if last.revision > 0 {
        super::compact(shared, last.revision).await.or_else(|error| match error {
            Error::Compacted { .. } => Ok(()),
            other => Err(other),
        })?;
        tracing::debug!(revision = signed(last.revision), "compacted etcd");
    }
    Ok(Round { version: last.version + 1, revision: now })
}

/// Returns the version of the key that a failed comparison read.
fn version(answer: TxnResponse) -> i64 {
    let read = answer.responses.into_iter().next().and_then(|one| one.response);
    match read {
        Some(Response::ResponseRange(range)) => range.kvs.first().map_or(0, |kv| kv.version),
        _ => 0,
    }
}
