//! Watches under concurrent writers: a client that lists and watches sees exactly the stored changes, in order.

use std::collections::BTreeMap;

use crate::server::{TestServer, call};
use corten_apiserver::WatchEvent;
use futures::{FutureExt, StreamExt};
use http_body_util::BodyExt;
use serde_json::json;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: usize = 6;
const ROUNDS: usize = 40;

/// Runs one writer: it creates, changes and deletes objects of its own.
async fn write(client: corten_apiserver::InProcess, writer: usize) {
    for round in 0..ROUNDS {
        let name = format!("w{writer}-{}", round % 4);
        let path = format!("{MAPS}/{name}");
        let body = json!({ "metadata": { "name": name }, "data": { "round": round.to_string() } });
        let created = call(&client, "POST", MAPS, Some(body.clone()), "application/json").await;
        match (created.code, round % 3) {
            (201, _) => {}
            (409, 0) => assert_eq!(call(&client, "DELETE", &path, None, "").await.code, 200),
            (409, _) => assert_eq!(call(&client, "PUT", &path, Some(body), "application/json").await.code, 200),
            other => panic!("{other:?}"),
        }
    }
}

/// Lists, watches from the list's revision, and replays until it has seen `last`.
async fn replay(server: &TestServer, mut last: tokio::sync::watch::Receiver<u64>) -> BTreeMap<String, u64> {
    let list = server.get(MAPS).await.expect(200);
    let revision: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let number = |item: &serde_json::Value| item["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let name = |item: &serde_json::Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    let mut state: BTreeMap<String, u64> =
        list["items"].as_array().unwrap().iter().map(|item| (name(item), number(item))).collect();
    let mut events = server.watch(&format!("{MAPS}?watch=1&resourceVersion={revision}")).await;
    let mut seen = revision;
    loop {
        let event = tokio::select! {
            event = events.next() => event.expect("the watch goes on"),
            changed = last.wait_for(|last| *last != 0 && *last <= seen) => { changed.unwrap(); return state }
        };
        let object = match &event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => object,
            other => panic!("{other:?}"),
        };
        assert!(object.revision > seen, "{} after {seen}", object.revision);
        seen = object.revision;
        let name = object.header.name.clone();
        match event {
            WatchEvent::Added(_) => assert_eq!(state.insert(name, seen), None),
            WatchEvent::Modified(_) => assert!(state.insert(name, seen).is_some()),
            _ => assert!(state.remove(&name).is_some()),
        }
    }
}

/// More watchers than are woken at once.
const MANY: usize = 60;

/// Reads an encoded watch until an object called `end` comes: each event as type, name and revision.
async fn read_text(mut body: corten_apiserver::HttpBody) -> Vec<(String, String, u64)> {
    let (mut rest, mut events) = (Vec::new(), Vec::new());
    loop {
        let frame = body.frame().await.expect("the watch goes on").unwrap();
        rest.extend_from_slice(frame.data_ref().unwrap());
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            let event: serde_json::Value = serde_json::from_slice(&line).unwrap();
            let metadata = &event["object"]["metadata"];
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            events.push((
                text(&event["type"]),
                text(&metadata["name"]),
                text(&metadata["resourceVersion"]).parse().unwrap(),
            ));
            if metadata["name"] == "end" {
                assert!(rest.is_empty());
                return events;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_watchers_get_the_same_events() {
    let server = TestServer::start().await;
    let list = server.get(MAPS).await.expect(200);
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut readers = Vec::new();
    for number in 0..MANY {
        // Some select everything by a label that no object has, and some watch all namespaces.
        let path = match number % 6 {
            0 => format!("{MAPS}?watch=1&resourceVersion={revision}&labelSelector=!none"),
            1 => format!("/api/v1/configmaps?watch=1&resourceVersion={revision}&allowWatchBookmarks=true"),
            _ => format!("{MAPS}?watch=1&resourceVersion={revision}"),
        };
        let body = server.watch_text(&path).await;
        readers.push(tokio::spawn(read_text(body)));
    }
    let writers = (0..WRITERS).map(|writer| tokio::spawn(write(server.user("w", &["system:masters"]), writer)));
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    server.post(MAPS, json!({ "metadata": { "name": "end" } })).await.expect(201);
    let all = futures::future::join_all(readers);
    let all = tokio::time::timeout(std::time::Duration::from_secs(300), all).await.expect("all watches see the end");
    let all: Vec<Vec<(String, String, u64)>> = all.into_iter().map(Result::unwrap).collect();
    let own = |events: &[(String, String, u64)]| -> Vec<(String, String, u64)> {
        let own = |(_, name, _): &&(String, String, u64)| name.starts_with('w') || name == "end";
        events.iter().filter(own).cloned().collect()
    };
    let first = own(&all[2]);
    assert!(first.is_sorted_by(|a, b| a.2 < b.2), "in order, and none twice");
    assert!(first.len() > WRITERS * ROUNDS / 2);
    for (number, events) in all.iter().enumerate() {
        assert_eq!(own(events), first, "watcher {number}");
    }
}

/// Returns the types of the rest of a watch's events.
async fn types(mut body: corten_apiserver::HttpBody) -> Vec<String> {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        text.extend_from_slice(frame.unwrap().data_ref().unwrap());
        assert!(text.len() < 1 << 20, "it never ends");
    }
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let event = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap();
    lines.map(|line| event(line)["type"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_falls_behind_gets_one_error() {
    let server = TestServer::start().await;
    let list = server.get(MAPS).await.expect(200);
    let path = format!("{MAPS}?watch=1&resourceVersion={}", list["metadata"]["resourceVersion"].as_str().unwrap());
    let mut behind = Vec::new();
    for _ in 0..MANY {
        let mut body = server.watch_text(&path).await;
        assert!(body.frame().now_or_never().is_none(), "nothing has happened yet");
        behind.push(body);
    }
    // More than a window holds.
    let filling = "x".repeat(48 * 1024);
    for round in 0..150 {
        let body = json!({ "metadata": { "name": format!("big-{}", round % 3) }, "data": { "round": round.to_string(), "filling": filling } });
        let path = format!("{MAPS}/big-{}", round % 3);
        let code = if round < 3 { server.post(MAPS, body).await.code } else { server.put(&path, body).await.code };
        assert!(matches!(code, 200 | 201), "{code}");
    }
    for body in behind {
        let events = tokio::time::timeout(std::time::Duration::from_secs(300), types(body)).await.expect("it ends");
        assert_eq!(events, ["ERROR"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replay_ends_in_the_stored_state() {
    let server = TestServer::start().await;
    let (last, receiver) = tokio::sync::watch::channel(0u64);
    let writing = async {
        let writers = (0..WRITERS).map(|writer| tokio::spawn(write(server.user("w", &["system:masters"]), writer)));
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        // The revision of a last write is the end of the replays.
        let end = server.post(MAPS, json!({ "metadata": { "name": "end" } })).await.expect(201);
        last.send_replace(end["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap());
    };
    let watching = async {
        let mut replays = Vec::new();
        for _ in 0..5 {
            replays.push(replay(&server, receiver.clone()));
            tokio::task::yield_now().await;
        }
        futures::future::join_all(replays).await
    };
    let both = async { tokio::join!(writing, watching).1 };
    let states = tokio::time::timeout(std::time::Duration::from_secs(300), both).await.expect("all replays end");
    let list = server.get(MAPS).await.expect(200);
    let stored: BTreeMap<String, u64> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| {
            (
                i["metadata"]["name"].as_str().unwrap().to_owned(),
                i["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap(),
            )
        })
        .collect();
    for state in states {
        assert_eq!(state, stored);
    }
}

/// More changes than the window of a resource holds, of objects of this size.
const BEYOND_WINDOW: usize = 160;
const BIG: usize = 40_000;

/// Returns the next event that is not a modification: a deletion may be announced by one.
async fn next_presence(events: &mut futures::stream::BoxStream<'static, WatchEvent>) -> String {
    loop {
        let event = crate::server::next(events).await;
        if !event.starts_with("MODIFIED") {
            return event;
        }
    }
}

/// Watches of one node and of one name get their own changes, in order, also after more changes of other objects than the
/// window holds: those do not make them late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_one_node_outlive_the_changes_of_others() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let server = TestServer::start().await;
    let account = json!({"metadata": {"name": "default"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let pod = |name: &str, node: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]},
        })
    };
    let mut of_node = server.watch(&format!("{PODS}?watch=1&fieldSelector=spec.nodeName=n1")).await;
    let mut of_name = server.watch(&format!("{PODS}?watch=1&fieldSelector=metadata.name=web")).await;
    server.post(PODS, pod("web", "n1")).await.expect(201);
    server.post(PODS, pod("other", "n2")).await.expect(201);
    let other = format!("{PODS}/other");
    for round in 0..BEYOND_WINDOW {
        let annotation = json!({"metadata": {"annotations": {"round": format!("{round:0BIG$}")}}});
        server.patch(&other, "merge", annotation).await.expect(200);
    }
    server.post(PODS, pod("late", "n1")).await.expect(201);
    server.delete(&format!("{PODS}/web"), Some(json!({"gracePeriodSeconds": 0}))).await.expect(200);
    let expected = ["ADDED web", "ADDED late", "DELETED web"];
    for event in expected {
        assert_eq!(next_presence(&mut of_node).await, event);
    }
    for event in ["ADDED web", "DELETED web"] {
        assert_eq!(next_presence(&mut of_name).await, event);
    }
    server.post(PODS, pod("unbound", "")).await.expect(201);
    let binding = json!({"metadata": {"name": "unbound"}, "target": {"kind": "Node", "name": "n1"}});
    server.post(&format!("{PODS}/unbound/binding"), binding).await.expect(201);
    assert_eq!(next_presence(&mut of_node).await, "ADDED unbound");
    server.delete(&format!("{PODS}/unbound"), Some(json!({"gracePeriodSeconds": 0}))).await.expect(200);
    assert_eq!(next_presence(&mut of_node).await, "DELETED unbound");
}
