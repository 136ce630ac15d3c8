//! Deletions: events of a pod's deletion, deletions at the same time, compacted revisions.

use crate::server::TestServer;
use corten_apiserver::WatchEvent;
use futures::StreamExt;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn named(mut object: Value, name: &str, finalizers: &[&str]) -> Value {
    object["metadata"] = json!({"name": name, "finalizers": finalizers});
    object
}

/// A watcher sees a pod marked before it is removed, also without a grace period.
#[tokio::test]
async fn pods_are_marked_first() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = s.post(PODS, named(pod, "p", &[])).await.body;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = s.watch(&format!("{PODS}?watch=1&resourceVersion={version}")).await;
    s.delete(&format!("{PODS}/p"), None).await;
    let mut seen = Vec::new();
    while let Some(WatchEvent::Modified(object) | WatchEvent::Deleted(object)) = events.next().await {
        let metadata = object.value()["metadata"].clone();
        assert_eq!(metadata["deletionGracePeriodSeconds"], 0, "{metadata}");
        seen.push(metadata["generation"].clone());
        if seen.len() == 2 {
            break;
        }
    }
    assert_eq!(seen, [json!(2), json!(2)]);
}

/// The pod garbage collector deletes marked pods without a node. It may do so between the two steps of the request that
/// marked the pod, more than once: that request still succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_others_finish_succeeds() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let at = format!("{PODS}/p");
    let now = format!("{at}?gracePeriodSeconds=0");
    let collect = || async {
        loop {
            let pod = s.get(&at).await;
            if pod.code == 404 {
                return;
            }
            if pod.body["metadata"]["deletionTimestamp"].is_null() {
                tokio::task::yield_now().await;
            } else {
                s.delete(&now, None).await;
            }
        }
    };
    for _ in 0..100 {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(s.post(PODS, pod).await.code, 201);
        let (deleted, _) = tokio::join!(s.delete(&now, None), futures::future::join_all((0..4).map(|_| collect())));
        assert_eq!(deleted.code, 200, "{:?}", deleted.body);
    }
}

#[tokio::test]
async fn a_collection_of_a_compacted_revision_is_not_deleted() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "a" } })).await.expect(201);
    let revision = s.get(MAPS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    s.compact(revision).await.unwrap();
    let gone = s.delete(&format!("{MAPS}?resourceVersion=1"), Some(json!({}))).await;
    assert_eq!(gone.message(410), "The resourceVersion for the provided list is too old.");
}
