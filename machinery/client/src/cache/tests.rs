//! Tests of a cache against a server that misbehaves. Time is paused, so that backoff costs nothing.

use super::*;
use crate::fake::FakeServer;
use crate::{Caches, ListOptions};
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn caches(server: &FakeServer) -> (Caches, CancellationToken) {
    let shutdown = CancellationToken::new();
    (Caches::new(server.client(), shutdown.clone()), shutdown)
}

async fn next(subscription: &mut Subscription) -> String {
    let change = tokio::time::timeout(Duration::from_secs(600), subscription.next()).await;
    describe(&change.expect("a change within bounds").expect("the cache is open"))
}

fn describe(change: &Change) -> String {
    let data = |object: &Option<Arc<Object>>| match object {
        Some(object) => object.value().pointer("/data/x").and_then(Value::as_str).unwrap_or("?").to_owned(),
        None => "-".to_owned(),
    };
    format!("{} {}->{}", change.key, data(&change.old), data(&change.new))
}

fn owned_by(uid: &str) -> Value {
    json!({"labels": {"app": uid}, "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid}]})
}

#[tokio::test(start_paused = true)]
async fn follows_the_server_in_process_and_as_bytes() {
    for text in [false, true] {
        let server = FakeServer::default();
        server.state().text = text;
        server.put_config_map("a", "one", json!({}), "1");
        let (caches, shutdown) = caches(&server);
        let cache = caches.of::<ConfigMap>();
        cache.synced().await;
        let mut subscription = cache.subscribe();
        assert_eq!(next(&mut subscription).await, "a/one -->1");
        server.put_config_map("a", "one", json!({}), "2");
        assert_eq!(next(&mut subscription).await, "a/one 1->2");
        server.delete_config_map("a", "one");
        assert_eq!(next(&mut subscription).await, "a/one 2->-");
        assert!(cache.is_empty());
        shutdown.cancel();
        assert!(subscription.next().await.is_none());
        caches.ended().await;
    }
}

#[tokio::test(start_paused = true)]
async fn shares_the_servers_bytes_in_process() {
    let server = FakeServer::default();
    server.put_config_map("a", "one", json!({}), "1");
    let (caches, _shutdown) = caches(&server);
    let cache = caches.of::<ConfigMap>();
    cache.synced().await;
    let key = Key::new("a", "one");
    assert!(Arc::ptr_eq(&cache.get(&key).unwrap(), &server.object("configmaps", "a", "one").unwrap()));
    assert!(Arc::ptr_eq(&cache, &caches.of::<ConfigMap>()), "one cache a kind");
    assert!(!Arc::ptr_eq(&cache, &caches.filtered::<ConfigMap>(ListOptions::labels("a=b"))));
    let typed: ConfigMap = cache.typed(&key).unwrap();
    assert_eq!(typed.metadata.resource_version.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn finds_by_namespace_owner_label_and_index() {
    let server = FakeServer::default();
    for (namespace, name, uid) in [("a", "one", "u1"), ("a", "two", "u2"), ("b", "one", "u1"), ("ab", "x", "u3")] {
        server.put_config_map(namespace, name, owned_by(uid), name);
    }
    let (caches, _shutdown) = caches(&server);
    let cache = caches.of::<ConfigMap>();
    cache.add_index("data", |object| vec![object.value()["data"]["x"].as_str().unwrap_or_default().to_owned()]);
    cache.synced().await;
    let keys = |objects: Vec<Arc<Object>>| objects.iter().map(|o| o.key().to_string()).collect::<Vec<_>>();
    assert_eq!(keys(cache.list("a")), ["a/one", "a/two"]);
    assert_eq!(keys(cache.all()), ["a/one", "a/two", "ab/x", "b/one"]);
    assert_eq!(keys(cache.by_owner("u1")), ["a/one", "b/one"]);
    assert_eq!(keys(cache.by_index("data", "one")), ["a/one", "b/one"]);
    assert_eq!(keys(cache.select("", &Selector::parse("app in (u2,u3)").unwrap())), ["a/two", "ab/x"]);
    assert_eq!(cache.typed_list::<ConfigMap>("b").len(), 1);

    let mut subscription = cache.subscribe();
    while subscription.try_next().is_some() {}
    server.put_config_map("a", "one", owned_by("u9"), "moved");
    next(&mut subscription).await;
    assert_eq!(keys(cache.by_owner("u1")), ["b/one"]);
    assert_eq!(keys(cache.by_owner("u9")), ["a/one"]);
    assert_eq!(keys(cache.by_index("data", "moved")), ["a/one"]);
    server.delete_config_map("a", "one");
    next(&mut subscription).await;
    assert!(cache.by_owner("u9").is_empty() && cache.by_index("data", "moved").is_empty());
}

#[tokio::test(start_paused = true)]
async fn resumes_where_a_watch_ended() {
    let server = FakeServer::default();
    server.put_config_map("a", "one", json!({}), "1");
    let (caches, _shutdown) = caches(&server);
    let cache = caches.of::<ConfigMap>();
    let mut subscription = cache.subscribe();
    next(&mut subscription).await;
    server.drop_watches();
    server.put_config_map("a", "one", json!({}), "2");
    server.put_config_map("a", "two", json!({}), "1");
    assert_eq!(next(&mut subscription).await, "a/one 1->2");
    assert_eq!(next(&mut subscription).await, "a/two -->1");
    let requests = server.state().requests.clone();
    assert_eq!(requests.iter().filter(|r| r.contains("sendInitialEvents")).count(), 1, "{requests:?}");
    assert!(requests.last().unwrap().contains("resourceVersion=1"), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn lists_again_when_history_is_gone() {
    let server = FakeServer::default();
    for name in ["gone", "kept", "changed"] {
        server.put_config_map("a", name, json!({}), "1");
    }
    let (caches, _shutdown) = caches(&server);
    let cache = caches.of::<ConfigMap>();
    cache.synced().await;
    let mut subscription = cache.subscribe();
    for _ in 0..3 {
        next(&mut subscription).await;
    }
    server.drop_watches();
    server.delete_config_map("a", "gone");
    server.put_config_map("a", "changed", json!({}), "2");
    server.put_config_map("a", "new", json!({}), "1");
    server.compact();
    let mut changes = vec![next(&mut subscription).await, next(&mut subscription).await, next(&mut subscription).await];
    changes.sort_unstable();
    assert_eq!(changes, ["a/changed 1->2", "a/gone 1->-", "a/new -->1"]);
    assert!(subscription.try_next().is_none(), "what did not change is not told");
}

#[tokio::test(start_paused = true)]
async fn falls_back_to_pages_and_a_watch() {
    for storage in [false, true] {
        let server = FakeServer::default();
        server.state().no_streaming = !storage;
        server.state().no_streaming_storage = storage;
        for n in 0..1203 {
            server.put_config_map("a", &format!("n{n}"), json!({}), "1");
        }
        let (caches, _shutdown) = caches(&server);
        let cache = caches.of::<ConfigMap>();
        cache.synced().await;
        assert_eq!(cache.len(), 1203);
        let mut subscription = cache.subscribe();
        while subscription.try_next().is_some() {}
        server.put_config_map("a", "late", json!({}), "1");
        assert_eq!(next(&mut subscription).await, "a/late -->1");
        let lists = server.state().requests.iter().filter(|r| r.contains("limit=500")).count();
        assert_eq!(lists, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn survives_an_unavailable_server() {
    let server = FakeServer::default();
    server.put_config_map("a", "one", json!({}), "1");
    let (client, cut) = server.cable();
    cut.store(true, std::sync::atomic::Ordering::SeqCst);
    let caches = Caches::new(client, CancellationToken::new());
    let cache = caches.of::<ConfigMap>();
    let early = tokio::time::timeout(Duration::from_secs(20), cache.synced()).await;
    assert!(early.is_err() && !cache.is_synced());
    cut.store(false, std::sync::atomic::Ordering::SeqCst);
    tokio::time::timeout(Duration::from_secs(60), caches.synced()).await.unwrap();
    assert_eq!(cache.len(), 1);
}

fn object(name: &str, revision: u64, data: &str) -> Arc<Object> {
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": data}});
    Arc::new(Object::from_value(&value, revision).unwrap())
}

#[tokio::test]
async fn old_and_repeated_events_are_ignored() {
    let cache = Cache::default();
    let mut subscription = cache.subscribe();
    cache.apply(object("a", 5, "5"), false);
    cache.apply(object("a", 5, "5"), false);
    cache.apply(object("a", 4, "4"), false);
    cache.apply(object("a", 3, "3"), true);
    cache.apply(object("b", 6, "6"), true);
    assert_eq!(next(&mut subscription).await, "a -->5");
    assert!(subscription.try_next().is_none());
    assert_eq!(cache.get(&Key::new("", "a")).unwrap().revision, 5);
}

#[tokio::test]
async fn a_slow_subscriber_receives_merged_changes() {
    let cache = Cache::default();
    cache.apply(object("known", 1, "1"), false);
    let mut subscription = cache.subscribe();
    let mut fast = cache.subscribe();
    assert_eq!(next(&mut subscription).await, "known -->1");
    for revision in 2..=9 {
        cache.apply(object("known", revision, &revision.to_string()), false);
    }
    cache.apply(object("fleeting", 10, "10"), false);
    cache.apply(object("fleeting", 11, "10"), true);
    cache.apply(object("known", 12, "9"), true);
    cache.apply(object("known", 13, "again"), false);
    assert_eq!(next(&mut subscription).await, "known 1->again");
    assert_eq!(next(&mut subscription).await, "fleeting 10->-");
    assert!(subscription.try_next().is_none());
    drop(subscription);
    cache.apply(object("known", 14, "14"), false);
    // The object was deleted and created again in between: `old` is its last state before, which its owner may need.
    assert_eq!(next(&mut fast).await, "known 9->14");
}

#[tokio::test(start_paused = true)]
async fn a_feed_tells_what_a_cache_tells_and_keeps_no_object() {
    let server = FakeServer::default();
    for name in ["gone", "kept", "changed"] {
        server.put_config_map("a", name, json!({}), "1");
    }
    let (caches, shutdown) = caches(&server);
    let Fed { feed, mut subscription } = caches.feed(&crate::Resource::of::<ConfigMap>(), &Arc::default());
    feed.synced().await;
    let kept = server.object("configmaps", "a", "kept").unwrap();
    let held = Arc::strong_count(&kept);
    for expected in ["a/changed -->1", "a/gone -->1", "a/kept -->1"] {
        assert_eq!(next(&mut subscription).await, expected);
    }
    assert!(Arc::strong_count(&kept) < held, "an object that the subscriber took is dropped");
    server.drop_watches();
    server.delete_config_map("a", "gone");
    server.put_config_map("a", "changed", json!({}), "2");
    server.put_config_map("a", "new", json!({}), "1");
    server.compact();
    let mut changes = vec![next(&mut subscription).await, next(&mut subscription).await, next(&mut subscription).await];
    changes.sort_unstable();
    assert_eq!(changes, ["a/changed -->2", "a/gone -->-", "a/new -->1"]);
    server.delete_config_map("a", "new");
    assert_eq!(next(&mut subscription).await, "a/new 1->-");
    assert!(subscription.try_next().is_none(), "what did not change is not told");
    shutdown.cancel();
    assert!(subscription.next().await.is_none());
}
