//! Tests of watches: several on one stream, their ids, filters, previous values, fragments, progress and compaction.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::time::Duration;

use corten_etcd::etcdserverpb::watch_create_request::FilterType;
use corten_etcd::etcdserverpb::watch_request::RequestUnion;
use corten_etcd::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use corten_etcd::mvccpb::event::EventType;
use corten_etcd_server::Limits;
use corten_store::{Expect, Op, Store};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use support::{PATIENCE, Served, serve, serve_with};

/// One watch stream of a client.
struct Stream {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Stream {
    async fn open(served: &Served) -> Stream {
        let (requests, stream) = mpsc::channel(16);
        let answers = served.watch().watch(ReceiverStream::new(stream)).await.unwrap().into_inner();
        Stream { requests, answers }
    }

    async fn send(&self, union: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(union) }).await.unwrap();
    }

    async fn next(&mut self) -> WatchResponse {
        tokio::time::timeout(PATIENCE, self.answers.message()).await.unwrap().unwrap().unwrap()
    }

    /// Creates a watch and returns the answer.
    async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.send(RequestUnion::CreateRequest(request)).await;
        let answer = self.next().await;
        assert!(answer.created, "{answer:?}");
        answer
    }

    async fn request_progress(&self) {
        self.send(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    }
}

fn prefix(key: &'static str, end: &'static str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), range_end: end.into(), ..Default::default() }
}

/// Returns the events of an answer as `type key@revision`.
fn shown(answer: &WatchResponse) -> Vec<String> {
    let show = |event: &corten_etcd::mvccpb::Event| {
        let kv = event.kv.as_ref().unwrap();
        format!("{} {}@{}", event.r#type().as_str_name(), String::from_utf8_lossy(&kv.key), kv.mod_revision)
    };
    answer.events.iter().map(show).collect()
}

fn revision(answer: &WatchResponse) -> i64 {
    answer.header.as_ref().unwrap().revision
}

#[tokio::test]
async fn watches_of_one_stream_have_ids_and_their_own_events() {
    let served = serve().await;
    served.put("a", "0").await;
    let mut stream = Stream::open(&served).await;
    let first = stream.create(prefix("a", "")).await;
    let second = stream.create(prefix("b", "c")).await;
    let named = stream.create(WatchCreateRequest { watch_id: 7, ..prefix("c", "\0") }).await;
    assert_eq!((first.watch_id, second.watch_id, named.watch_id, revision(&first)), (0, 1, 7, 2));
    let duplicate = stream.create(WatchCreateRequest { watch_id: 7, ..prefix("x", "") }).await;
    assert_eq!((duplicate.watch_id, duplicate.canceled), (-1, true));
    assert_eq!(duplicate.cancel_reason, "mvcc: duplicate watch ID provided");
    let empty = stream.create(prefix("c", "b")).await;
    assert_eq!((empty.watch_id, empty.canceled), (-1, true));

    served.put("a", "1").await;
    served.put("ab", "not watched").await;
    served.put("bb", "1").await;
    served.put("d", "1").await;
    for (id, event) in [(0, "PUT a@3"), (1, "PUT bb@5"), (7, "PUT d@6")] {
        let answer = stream.next().await;
        assert_eq!((answer.watch_id, shown(&answer)), (id, vec![event.to_owned()]));
    }
    stream.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 1 })).await;
    let cancelled = stream.next().await;
    assert_eq!((cancelled.watch_id, cancelled.canceled, cancelled.created), (1, true, false));
    served.put("bb", "2").await;
    served.put("a", "2").await;
    assert_eq!(shown(&stream.next().await), ["PUT a@8"]);
}

#[tokio::test]
async fn a_watch_from_the_past_gets_the_history_with_previous_values_and_filters() {
    let served = serve().await;
    served.put("a", "1").await;
    served.put("a", "2").await;
    served.kv().delete_range(DeleteRangeRequest { key: "a".into(), ..Default::default() }).await.unwrap();
    let mut stream = Stream::open(&served).await;
    stream.create(WatchCreateRequest { start_revision: 2, prev_kv: true, ..prefix("a", "") }).await;
    let answers = [stream.next().await, stream.next().await, stream.next().await];
    assert_eq!(answers.iter().flat_map(shown).collect::<Vec<_>>(), ["PUT a@2", "PUT a@3", "DELETE a@4"]);
    let previous: Vec<Option<String>> = answers
        .iter()
        .map(|answer| answer.events[0].prev_kv.as_ref())
        .map(|kv| kv.map(|kv| String::from_utf8(kv.value.to_vec()).unwrap()))
        .collect();
    assert_eq!(previous, [None, Some("1".to_owned()), Some("2".to_owned())]);

    let mut stream = Stream::open(&served).await;
    let filters = vec![FilterType::Noput.into()];
    stream.create(WatchCreateRequest { start_revision: 2, filters, ..prefix("a", "") }).await;
    let answer = stream.next().await;
    assert_eq!((shown(&answer), answer.events[0].r#type()), (vec!["DELETE a@4".to_owned()], EventType::Delete));
    assert_eq!(answer.events[0].prev_kv, None);
}

#[tokio::test]
async fn a_compacted_watch_is_cancelled_with_the_revision() {
    let served = serve().await;
    for value in ["1", "2", "3"] {
        served.put("a", value).await;
    }
    served.kv().compact(CompactionRequest { revision: 4, physical: false }).await.unwrap();
    let mut stream = Stream::open(&served).await;
    stream.create(WatchCreateRequest { start_revision: 2, ..prefix("a", "") }).await;
    let answer = stream.next().await;
    assert_eq!((answer.watch_id, answer.canceled, answer.compact_revision), (0, true, 4));
    // At the compacted revision itself, the keys that were put then are left.
    stream.create(WatchCreateRequest { start_revision: 4, ..prefix("a", "") }).await;
    assert_eq!(shown(&stream.next().await), ["PUT a@4"]);
    let negative = stream.create(WatchCreateRequest { start_revision: -1, ..prefix("a", "") }).await;
    assert_eq!((negative.watch_id, negative.canceled), (-1, true));
}

#[tokio::test]
async fn requested_progress_comes_after_all_events() {
    let served = serve().await;
    let mut stream = Stream::open(&served).await;
    stream.request_progress().await;
    stream.create(prefix("a", "b")).await;
    stream.create(prefix("b", "c")).await;
    for number in 0..50 {
        served.put(&format!("a{number}"), "").await;
    }
    let last = served.put("elsewhere", "").await;
    stream.request_progress().await;
    for number in 0..50 {
        assert_eq!(shown(&stream.next().await), [format!("PUT a{number}@{}", number + 2)]);
    }
    let progress = stream.next().await;
    assert_eq!((progress.watch_id, progress.events.len(), revision(&progress)), (-1, 0, last));
    // Nothing happened since: the same revision is reported again.
    stream.request_progress().await;
    let progress = stream.next().await;
    assert_eq!((progress.watch_id, revision(&progress)), (-1, last));
    // A watch of the future has no progress to report.
    stream.create(WatchCreateRequest { start_revision: last + 10, ..prefix("a", "b") }).await;
    stream.request_progress().await;
    served.put("b1", "").await;
    assert_eq!(shown(&stream.next().await), [format!("PUT b1@{}", last + 1)]);
}

#[tokio::test]
async fn an_idle_watch_is_notified_of_progress() {
    let limits = Limits { progress: Duration::from_millis(20), ..Limits::default() };
    let served = serve_with(limits, |config| config).await;
    let mut stream = Stream::open(&served).await;
    stream.create(prefix("a", "")).await;
    stream.create(WatchCreateRequest { progress_notify: true, ..prefix("a", "") }).await;
    let last = served.put("elsewhere", "").await;
    loop {
        let answer = stream.next().await;
        assert_eq!((answer.watch_id, answer.events.len()), (1, 0));
        if revision(&answer) == last {
            break;
        }
    }
}

#[tokio::test]
async fn a_big_revision_is_fragmented_if_asked_for() {
    let served = serve_with(Limits { request_bytes: 1000, ..Limits::default() }, |config| config).await;
    let mut whole = Stream::open(&served).await;
    whole.create(prefix("a", "b")).await;
    let mut parts = Stream::open(&served).await;
    parts.create(WatchCreateRequest { fragment: true, ..prefix("a", "b") }).await;
    let puts = (0..10).map(|number| Op::put(format!("a{number}"), vec![b'v'; 300], Expect::Any));
    served.store.commit(puts.collect()).await.unwrap();
    assert_eq!(whole.next().await.events.len(), 10);
    let mut events = 0;
    loop {
        let answer = parts.next().await;
        assert!(answer.events.len() < 4, "{}", answer.events.len());
        events += answer.events.len();
        if !answer.fragment {
            break;
        }
    }
    assert_eq!(events, 10);
}

#[tokio::test]
async fn a_client_that_reads_slowly_misses_nothing() {
    // The store gives up a watcher that is ten batches behind, and keeps the history.
    let retain = corten_store::Retain { least_bytes: 1 << 30, most_bytes: 1 << 30, ..Default::default() };
    let configure = |config| corten_store::Config { watch_buffer: 10, retain, ..config };
    let served = serve_with(Limits::default(), configure).await;
    let mut stream = Stream::open(&served).await;
    stream.create(prefix("a", "b")).await;
    let value = "v".repeat(20_000);
    for _ in 0..500 {
        served.put("a", &value).await;
    }
    stream.request_progress().await;
    for number in 0..500 {
        assert_eq!(shown(&stream.next().await), [format!("PUT a@{}", number + 2)]);
    }
    let progress = stream.next().await;
    assert_eq!((progress.watch_id, revision(&progress)), (-1, 501));
}

#[tokio::test]
async fn watches_of_a_stream_are_limited() {
    let served = serve_with(Limits { watches: 2, ..Limits::default() }, |config| config).await;
    let mut stream = Stream::open(&served).await;
    stream.create(prefix("a", "")).await;
    stream.create(prefix("b", "")).await;
    let refused = stream.create(prefix("c", "")).await;
    assert_eq!((refused.watch_id, refused.canceled), (-1, true));
    assert!(refused.cancel_reason.contains("at most 2 watches"), "{}", refused.cancel_reason);
}
