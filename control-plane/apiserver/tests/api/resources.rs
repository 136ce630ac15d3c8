//! The verbs on resources: watches, restarts, concurrent writers.

use crate::server::{TestServer, call, next, send};
use serde_json::{Value, json};

fn config_map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn watches_report_everything_in_order() {
    let s = TestServer::start().await;
    s.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let mut all = s.watch(&format!("{MAPS}?watch=1")).await;
    let mut labelled = s.watch(&format!("{MAPS}?watch=1&labelSelector=x")).await;
    let streaming =
        format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let mut stream = s.watch(&streaming).await;
    assert_eq!(next(&mut all).await, "ADDED a");
    // A client with bookmarks gets one at the end of the state, also without asking for it; a client without them does
    // not.
    let mut marked = s.watch(&format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion=0")).await;
    assert_eq!((next(&mut marked).await, next(&mut marked).await), ("ADDED a".to_owned(), "BOOKMARK true".to_owned()));
    let untold = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let mut untold = s.watch(&format!("{MAPS}?watch=1&{untold}")).await;
    assert_eq!((next(&mut untold).await, next(&mut untold).await), ("ADDED a".to_owned(), "END".to_owned()));
    assert_eq!((next(&mut stream).await, next(&mut stream).await), ("ADDED a".to_owned(), "BOOKMARK true".to_owned()));

    let b = s.post(MAPS, config_map("b", json!({}))).await.expect(201);
    s.patch(&format!("{MAPS}/b"), "merge", json!({ "metadata": { "labels": { "x": "1" } } })).await.expect(200);
    s.patch(&format!("{MAPS}/b"), "merge", json!({ "metadata": { "labels": { "x": null } } })).await.expect(200);
    s.delete(&format!("{MAPS}/b"), None).await.expect(200);
    for expected in ["ADDED b", "MODIFIED b", "MODIFIED b", "DELETED b"] {
        assert_eq!(next(&mut all).await, expected);
        assert_eq!(next(&mut stream).await, expected);
    }
    // Objects enter the selection and leave it.
    assert_eq!((next(&mut labelled).await, next(&mut labelled).await), ("ADDED b".to_owned(), "DELETED b".to_owned()));

    let revision = b["metadata"]["resourceVersion"].as_str().unwrap();
    let mut later = s.watch(&format!("{MAPS}?watch=1&resourceVersion={revision}")).await;
    assert_eq!((next(&mut later).await, next(&mut later).await), ("MODIFIED b".to_owned(), "MODIFIED b".to_owned()));
}

#[tokio::test]
async fn a_watch_ends_after_its_timeout() {
    let s = TestServer::start().await;
    let mut events = s.watch("/api/v1/namespaces/default/secrets?watch=1&timeoutSeconds=1").await;
    assert_eq!(next(&mut events).await, "END");
}

#[tokio::test]
async fn deep_and_big_bodies_are_refused() {
    let s = TestServer::start().await;
    let admin = s.user("a", &["system:masters"]);
    let deep = "[".repeat(100_000);
    let big = "x".repeat(4 * 1024 * 1024);
    for (body, code) in [("\u{0}", 400), (deep.as_str(), 400), (big.as_str(), 413)] {
        let answer = send(&admin, "POST", MAPS, body.to_owned().into(), &[("content-type", "application/json")]).await;
        assert_eq!(answer.code, code, "{:.100}", answer.body.to_string());
    }
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let s = TestServer::start().await;
    s.post(MAPS, config_map("a", json!({ "k": "v" }))).await.expect(201);
    s.post("/api/v1/namespaces/default/secrets", json!({ "metadata": { "name": "s" }, "data": { "k": "dg==" } }))
        .await
        .expect(201);
    let before = s.get(&format!("{MAPS}/a")).await.expect(200);
    let s = s.restart().await;
    assert_eq!(s.get(&format!("{MAPS}/a")).await.expect(200), before);
    assert_eq!(s.get("/api/v1/namespaces/default/secrets/s").await.expect(200)["data"]["k"], "dg==");
    assert_eq!(s.get("/api/v1/secrets").await.expect(200)["items"].as_array().unwrap().len(), 1);
    // A watch resumes where it was before, as far back as the store keeps history.
    let revision: u64 = before["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let mut events = s.watch(&format!("{MAPS}?watch=1&resourceVersion={}", revision - 1)).await;
    assert_eq!(next(&mut events).await, "ADDED a");
    drop(events);
    s.compact(revision).await.unwrap();
    let s = s.restart().await;
    let expired = s.get(&format!("{MAPS}?watch=1&resourceVersion={}", revision - 1)).await;
    assert_eq!((expired.code, &expired.body["reason"]), (410, &json!("Expired")));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_patches_all_count() {
    let s = TestServer::start().await;
    s.post(MAPS, config_map("a", json!({}))).await.expect(201);
    let writers = (0..200).map(|i| {
        let admin = s.user("a", &["system:masters"]);
        tokio::spawn(async move {
            let patch = json!({ "data": { format!("k{i}"): "v" } });
            call(&admin, "PATCH", &format!("{MAPS}/a"), Some(patch), "application/merge-patch+json").await.code
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        assert_eq!(writer.await.unwrap(), 200);
    }
    assert_eq!(s.get(&format!("{MAPS}/a")).await.expect(200)["data"].as_object().unwrap().len(), 200);
}

/// Returns objects that have a status, by collection.
fn with_status() -> Vec<(&'static str, Value)> {
    let template = json!({ "metadata": { "labels": { "a": "b" } },
        "spec": { "containers": [{ "name": "c", "image": "i", "ports": [{ "containerPort": 80 }] }] } });
    let selector = json!({ "matchLabels": { "a": "b" } });
    let pod = json!({ "metadata": { "name": "o", "annotations": { "a": "b" } }, "spec": template["spec"] });
    let named = |spec: Value| json!({ "metadata": { "name": "o", "finalizers": ["example.com/a"] }, "spec": spec });
    vec![
        ("/api/v1/namespaces/default/pods", pod),
        ("/api/v1/nodes", named(json!({ "podCIDR": "10.0.0.0/24" }))),
        ("/api/v1/namespaces", json!({ "metadata": { "name": "o" } })),
        ("/api/v1/namespaces/default/services", named(json!({ "ports": [{ "port": 80 }], "selector": { "a": "b" } }))),
        ("/api/v1/namespaces/default/resourcequotas", named(json!({ "hard": { "pods": "5", "cpu": "0.5" } }))),
        ("/apis/apps/v1/namespaces/default/deployments", named(json!({ "selector": selector, "template": template }))),
        ("/apis/policy/v1/namespaces/default/poddisruptionbudgets", named(json!({ "selector": selector }))),
    ]
}

/// A patch without the spec has the same result as a patch that changes nothing of it.
#[tokio::test]
async fn a_status_is_written_alike_with_and_without_the_rest() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "default" } }))
        .await
        .expect(201);
    let condition = json!({ "type": "Ready", "status": "True", "reason": "R", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let patches = [
        json!({ "status": { "conditions": [condition] } }),
        json!({ "metadata": { "labels": { "x": "y" }, "uid": "another" }, "status": {} }),
        json!({ "metadata": { "labels": { "x": "y" }, "finalizers": null } }),
        json!({ "apiVersion": "v1", "status": null }),
        json!({ "status": { "observedGeneration": -1, "unknown": 1 } }),
        json!({ "status": "wrong" }),
        json!({ "metadata": { "managedFields": [{}] } }),
        json!({}),
    ];
    for (collection, object) in with_status() {
        s.post(collection, object).await.expect(201);
        let path = format!("{collection}/o/status?dryRun=All&fieldValidation=Strict&fieldManager=test");
        for (patch, kind) in patches.iter().flat_map(|patch| ["merge", "strategic"].map(|kind| (patch, kind))) {
            let mut with_spec = patch.clone();
            with_spec["spec"] = json!({});
            let silent = s.patch(&path, kind, patch.clone()).await;
            let with_spec = s.patch(&path, kind, with_spec).await;
            let timeless = |mut answer: Value| {
                // Entries are in the order of their times, and a second may pass between the two.
                if let Some(entries) = answer.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
                    entries.iter_mut().for_each(|entry| entry["time"] = Value::Null);
                    entries.sort_by_cached_key(ToString::to_string);
                }
                // The error of a refused patch shows the patch, or the object in its order: in that these two differ.
                match answer["message"].as_str().and_then(|message| message.rsplit_once("\": ")) {
                    Some((_, why)) => why.to_owned(),
                    None => answer.to_string(),
                }
            };
            assert_eq!(silent.code, with_spec.code, "{collection} {kind} {patch}");
            assert_eq!(timeless(silent.body), timeless(with_spec.body), "{collection} {kind} {patch}");
        }
    }
}

#[tokio::test]
async fn an_external_service_keeps_a_policy_that_only_its_status_shows() {
    let s = TestServer::start().await;
    let services = "/api/v1/namespaces/default/services";
    let path = format!("{services}/a");
    let mut watch = s.watch_text(&format!("{services}?watch=1&fieldSelector=metadata.name=a")).await;
    s.post(services, json!({ "metadata": { "name": "a" }, "spec": { "ports": [{ "port": 80 }] } })).await.expect(201);
    let outside = json!({ "metadata": { "finalizers": ["a/b"] }, "spec": {
        "type": "ExternalName", "externalName": "a.b", "clusterIP": null, "clusterIPs": null } });
    let policy = |service: &Value| service["spec"].get("internalTrafficPolicy").cloned();
    let owned = |service: &Value| service["metadata"]["managedFields"].to_string().contains("f:internalTrafficPolicy");
    let patched = s.patch(&path, "merge", outside).await.expect(200);
    let read = s.get(&path).await.expect(200);
    let list = s.get(&format!("{services}?fieldSelector=metadata.name=a")).await.expect(200);
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let past = format!("{services}?resourceVersion={revision}&resourceVersionMatch=Exact");
    let past = s.get(&format!("{past}&fieldSelector=metadata.name=a")).await.expect(200);
    for shown in [&patched, &read, &list["items"][0], &past["items"][0]] {
        assert_eq!((policy(shown), owned(shown)), (None, true));
    }
    let kept = Some(json!("Cluster"));
    assert_eq!(policy(&s.get(&format!("{path}/status")).await.expect(200)), kept);
    assert_eq!(policy(&s.patch(&format!("{path}/status"), "merge", json!({})).await.expect(200)), kept);
    assert_eq!(policy(&s.delete(&path, None).await.expect(200)), kept, "it is only marked");
    // A client that sends the object it has read removes the policy, and its owner loses it.
    let put = s.put(&path, s.get(&path).await.expect(200)).await.expect(200);
    assert_eq!((policy(&put), owned(&put)), (None, false));
    assert_eq!(policy(&s.get(&format!("{path}/status")).await.expect(200)), None);

    let mut events = String::new();
    while events.lines().count() < 4 {
        let frame = http_body_util::BodyExt::frame(&mut watch).await.unwrap().unwrap();
        events.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let policies: Vec<Option<Value>> = events.iter().map(|event| policy(&event["object"])).collect();
    assert_eq!(policies, [kept, None, None, None]);
}
