//! The verbs on resources: stored objects, responses and errors.

use crate::server::{TestServer, call, next, send};
use serde_json::{Value, json};

fn config_map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn an_object_is_created_updated_and_deleted() {
    let s = TestServer::start().await;
    let created = s.post(MAPS, config_map("a", json!({ "k": "1" }))).await.expect(201);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert!(created["metadata"]["uid"].as_str().is_some_and(|u| u.len() == 36));
    assert_eq!(s.get(&format!("{MAPS}/a")).await.expect(200), created);

    assert_eq!(s.post(MAPS, config_map("a", json!({}))).await.message(409), "configmaps \"a\" already exists");
    let mut both = config_map("a", json!({}));
    both["metadata"]["generateName"] = json!("a");
    let refused = s.post(MAPS, both).await.expect(409);
    let message = "configmaps \"a\" already exists, the server was not able to generate a unique name for the object";
    assert_eq!((&refused["message"], &refused["details"]["retryAfterSeconds"]), (&json!(message), &json!(1)));
    let mut update = created.clone();
    update["data"]["k"] = "2".into();
    let updated = s.put(&format!("{MAPS}/a"), update.clone()).await.expect(200);
    assert_ne!(updated["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    assert_eq!(updated["metadata"]["uid"], created["metadata"]["uid"]);
    let conflict = s.put(&format!("{MAPS}/a"), update).await.message(409);
    assert_eq!(
        conflict,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    // A write that changes nothing is not a write.
    let same = s.put(&format!("{MAPS}/a"), updated.clone()).await.expect(200);
    assert_eq!(same, updated);

    let deleted = s.delete(&format!("{MAPS}/a"), None).await.expect(200);
    assert_eq!(
        (&deleted["kind"], &deleted["status"], &deleted["details"]["kind"]),
        (&json!("Status"), &json!("Success"), &json!("configmaps"))
    );
    assert_eq!(s.get(&format!("{MAPS}/a")).await.message(404), "configmaps \"a\" not found");
    assert_eq!(s.delete(&format!("{MAPS}/a"), None).await.code, 404);
}

#[tokio::test]
async fn errors_are_upstreams() {
    let s = TestServer::start().await;
    let post = async |path: &str, body: Value| s.post(path, body).await;
    let cases = [
        (
            post("/api/v1/namespaces/none/configmaps", config_map("a", json!({}))).await,
            404,
            "namespaces \"none\" not found",
        ),
        (
            post(MAPS, json!({ "kind": "ConfigMap", "apiVersion": "v2", "metadata": { "name": "a" } })).await,
            400,
            r#"ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            post(MAPS, json!({ "metadata": { "name": "a", "namespace": "other" } })).await,
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            post(MAPS, json!({ "metadata": { "name": "a", "resourceVersion": "1" } })).await,
            500,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            post(MAPS, json!({ "metadata": { "name": "a", "resourceVersion": "1" }, "data": { "": "" } })).await,
            422,
            "ConfigMap \"a\" is invalid: data[]: Invalid value: \"\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
        ),
        (s.get("/api/v1/nothing").await, 404, "the server could not find the requested resource"),
        (
            s.put(&format!("{MAPS}/b"), config_map("a", json!({}))).await,
            400,
            "the name of the object (a) does not match the name on the URL (b)",
        ),
        (s.put(&format!("{MAPS}/a"), config_map("a", json!({}))).await, 404, "configmaps \"a\" not found"),
        (s.get("/api/v1/pods?fieldSelector=spec.nothing%3Dx").await, 400, "field label not supported: spec.nothing"),
    ];
    for (answer, code, message) in cases {
        assert_eq!(answer.message(code), message);
    }
}

#[tokio::test]
async fn unknown_fields_are_dropped_or_refused() {
    let s = TestServer::start().await;
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "datas": {} });
    let strict = s.post(&format!("{MAPS}?fieldValidation=Strict"), body.clone()).await.message(400);
    assert!(
        strict.ends_with("cannot be handled as a ConfigMap: strict decoding error: unknown field \"datas\""),
        "{strict}"
    );
    let twice = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "name": "b"},
                    "odd": 1, "odd": {"x": 1, "x": 2}, "immutable": true, "immutable": true}"#;
    let strict = s.raw("POST", &format!("{MAPS}?fieldValidation=Strict"), twice).await.message(400);
    let complaints = r#"duplicate field "metadata.name", unknown field "odd", duplicate field "immutable""#;
    assert!(
        strict.ends_with(&format!("strict decoding error: {complaints}")),
        "an unknown field is reported once: {strict}"
    );
    let warned = s.post(MAPS, body.clone()).await;
    assert_eq!(warned.warnings(), [r#"299 - "unknown field \"datas\"""#]);
    assert!(warned.expect(201).get("datas").is_none());
    let mut other = body;
    other["metadata"]["name"] = "b".into();
    assert_eq!(
        s.get(&format!("{MAPS}/a?export=1")).await.message(400),
        "the export parameter, deprecated since v1.14, is no longer supported"
    );
    s.get(&format!("{MAPS}/a?export=false")).await.expect(200);
    let ignored = s.post(&format!("{MAPS}?fieldValidation=Ignore"), other).await;
    assert!(ignored.warnings().is_empty());
}

#[tokio::test]
async fn names_are_generated() {
    let s = TestServer::start().await;
    let body = json!({ "metadata": { "generateName": "web-" } });
    let name = s.post(MAPS, body.clone()).await.expect(201)["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("web-") && name.len() == 9, "{name}");
    let other = s.post(MAPS, body).await.expect(201)["metadata"]["name"].as_str().unwrap().to_owned();
    assert_ne!(name, other);
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let s = TestServer::start().await;
    s.post(&format!("{MAPS}?dryRun=All"), config_map("a", json!({}))).await.expect(201);
    assert_eq!(s.get(&format!("{MAPS}/a")).await.code, 404);
    s.post(MAPS, config_map("a", json!({ "k": "1" }))).await.expect(201);
    assert_eq!(s.post(&format!("{MAPS}?dryRun=All"), config_map("a", json!({}))).await.code, 409);
    s.patch(&format!("{MAPS}/a?dryRun=All"), "merge", json!({ "data": { "k": "2" } })).await.expect(200);
    s.delete(&format!("{MAPS}/a?dryRun=All"), None).await.expect(200);
    assert_eq!(s.get(&format!("{MAPS}/a")).await.expect(200)["data"]["k"], "1");
}

#[tokio::test]
async fn patches_of_three_types() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/a");
    s.post(MAPS, config_map("a", json!({ "x": "1", "y": "1" }))).await.expect(201);
    let merged = s.patch(&path, "merge", json!({ "data": { "x": null, "z": "3" } })).await.expect(200);
    assert_eq!(merged["data"], json!({ "y": "1", "z": "3" }));
    let patched =
        s.patch(&path, "json", json!([{ "op": "replace", "path": "/data/y", "value": "2" }])).await.expect(200);
    assert_eq!(patched["data"]["y"], "2");
    let labelled = s.patch(&path, "strategic", json!({ "metadata": { "labels": { "a": "b" } } })).await.expect(200);
    assert_eq!(labelled["metadata"]["labels"]["a"], "b");
    let refused = s.patch(&path, "application/apply-patch+cbor", json!({})).await;
    assert_eq!(refused.code, 415);
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "data": { "x": "9" } });
    assert_eq!(s.patch(&path, "merge", stale).await.code, 409);
}

#[tokio::test]
async fn lists_are_filtered_and_paged_at_one_revision() {
    let s = TestServer::start().await;
    for i in 0..5 {
        let mut body = config_map(&format!("m{i}"), json!({}));
        body["metadata"]["labels"] = json!({ "odd": (i % 2).to_string() });
        s.post(MAPS, body).await.expect(201);
    }
    let odd = s.get(&format!("{MAPS}?labelSelector=odd%3D1")).await.expect(200);
    assert_eq!(odd["items"].as_array().unwrap().len(), 2);
    let one = s.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dm3")).await.expect(200);
    assert_eq!(one["items"][0]["metadata"]["name"], "m3");

    let first = s.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    let revision = first["metadata"]["resourceVersion"].clone();
    // The second page does not see changes after the first.
    s.delete(&format!("{MAPS}/m4"), None).await.expect(200);
    s.post(MAPS, config_map("m9", json!({}))).await.expect(201);
    let mut names: Vec<String> = Vec::new();
    let mut page = first;
    loop {
        assert_eq!(page["metadata"]["resourceVersion"], revision);
        names.extend(
            page["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        page = s.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4"]);
    let exact =
        s.get(&format!("{MAPS}?resourceVersion={}&resourceVersionMatch=Exact", revision.as_str().unwrap())).await;
    assert_eq!(exact.expect(200)["items"].as_array().unwrap().len(), 5);
}

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
async fn finalizers_and_propagation_delay_a_deletion() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/a");
    let mut body = config_map("a", json!({}));
    body["metadata"]["finalizers"] = json!(["example.com/wait"]);
    s.post(MAPS, body).await.expect(201);
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground" });
    let marked = s.delete(&path, Some(options)).await.expect(200);
    assert_eq!(marked["metadata"]["finalizers"], json!(["example.com/wait", "foregroundDeletion"]));
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    s.patch(&path, "merge", json!({ "metadata": { "finalizers": null } })).await.expect(200);
    assert_eq!(s.get(&path).await.code, 404);

    s.post(MAPS, config_map("b", json!({}))).await.expect(201);
    let wrong = json!({ "preconditions": { "uid": "other" } });
    assert_eq!(s.delete(&format!("{MAPS}/b"), Some(wrong)).await.code, 409);
    s.delete(MAPS, None).await.expect(200);
    assert_eq!(s.get(MAPS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn status_and_the_rest_are_written_separately() {
    let s = TestServer::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let body = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "a": "b" } },
                  "template": { "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } } },
        "status": { "replicas": 9 } });
    let created = s.post(path, body).await.expect(201);
    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(created.pointer("/status/replicas"), None);
    assert_eq!(created["spec"]["strategy"]["type"], "RollingUpdate");
    let path = format!("{path}/d");
    let status = json!({ "spec": { "replicas": 7 }, "status": { "replicas": 2, "observedGeneration": 1 } });
    let after = s.patch(&format!("{path}/status"), "merge", status).await.expect(200);
    assert_eq!((&after["spec"]["replicas"], &after["status"]["replicas"]), (&json!(2), &json!(2)));
    assert_eq!(after["metadata"]["generation"], 1);
    let both = json!({ "spec": { "replicas": 3 }, "status": { "replicas": 8 } });
    let after = s.patch(&path, "merge", both).await.expect(200);
    assert_eq!((&after["spec"]["replicas"], &after["status"]["replicas"]), (&json!(3), &json!(2)));
    assert_eq!(after["metadata"]["generation"], 2);

    let scale = s.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(3), &json!("a=b")));
    let scaled = s.patch(&format!("{path}/scale"), "merge", json!({ "spec": { "replicas": 5 } })).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    assert_eq!(s.get(&path).await.expect(200)["spec"]["replicas"], 5);
    // A client that scales up gets the warnings of the pods.
    let ports = json!([{ "containerPort": 80 }, { "containerPort": 80 }]);
    let containers = json!([{ "name": "c", "image": "i", "ports": ports }]);
    let doubled = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
    s.patch(&path, "merge", doubled).await.expect(200);
    for (replicas, warnings) in [(6, 1), (6, 0)] {
        let scaled = s.patch(&format!("{path}/scale"), "merge", json!({ "spec": { "replicas": replicas } })).await;
        assert_eq!((scaled.code, scaled.warnings().len()), (200, warnings));
    }
}

#[tokio::test]
async fn one_resource_in_two_versions() {
    let s = TestServer::start().await;
    let event = json!({ "metadata": { "name": "e" }, "involvedObject": { "kind": "Pod", "name": "p", "namespace": "default" },
                        "reason": "R", "message": "hello", "type": "Normal" });
    s.post("/api/v1/namespaces/default/events", event).await.expect(201);
    let other = s.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200);
    assert_eq!((&other["note"], &other["apiVersion"]), (&json!("hello"), &json!("events.k8s.io/v1")));
    assert_eq!(other["regarding"]["name"], "p");
    let list = s.get("/apis/events.k8s.io/v1/events").await.expect(200);
    assert_eq!((&list["kind"], &list["items"][0]["note"]), (&json!("EventList"), &json!("hello")));
}

#[tokio::test]
async fn tables_and_partial_metadata_are_views() {
    let s = TestServer::start().await;
    let admin = s.user("a", &["system:masters"]);
    let table = send(
        &admin,
        "GET",
        "/api/v1/namespaces",
        Default::default(),
        &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")],
    )
    .await;
    let table = table.expect(200);
    assert_eq!((&table["kind"], &table["columnDefinitions"][0]["name"]), (&json!("Table"), &json!("Name")));
    let description = table["columnDefinitions"][1]["description"].as_str().unwrap_or_default();
    assert!(!description.is_empty(), "{table}");
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][1]), (&json!("default"), &json!("Active")));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let partial =
        send(&admin, "GET", "/api/v1/namespaces", Default::default(), &[("accept", accept)]).await.expect(200);
    assert_eq!(partial["kind"], "PartialObjectMetadataList");
    assert_eq!(partial["items"][0].get("spec"), None);
    let watched = http::Request::get("/api/v1/namespaces?watch=1").header("accept", accept);
    let watched = admin.call(watched.body(Default::default()).unwrap()).await;
    assert_eq!(watched.headers()["content-type"], "application/json");
    let events = http_body_util::BodyExt::collect(watched.into_body().into_http()).await.unwrap().to_bytes();
    assert!(events.is_empty(), "no event is a list: {events:?}");
    let refused = send(&admin, "GET", "/api/v1/namespaces", Default::default(), &[("accept", "image/png")]).await;
    assert_eq!(refused.code, 406);
}

#[tokio::test]
async fn bad_bodies_are_refused_and_nothing_breaks() {
    let s = TestServer::start().await;
    let admin = s.user("a", &["system:masters"]);
    let deep = "[".repeat(100_000);
    let big = "x".repeat(4 * 1024 * 1024);
    for (body, code) in
        [("", 400), ("{", 400), ("[]", 400), ("null", 422), ("\u{0}", 400), (deep.as_str(), 400), (big.as_str(), 413)]
    {
        let answer = send(&admin, "POST", MAPS, body.to_owned().into(), &[("content-type", "application/json")]).await;
        assert_eq!(answer.code, code, "{:.100}", answer.body.to_string());
    }
    let wrong = json!({ "metadata": { "name": 5 }, "data": [] });
    assert_eq!(s.post(MAPS, wrong).await.code, 400);
    let answer = send(&admin, "POST", MAPS, "x".into(), &[("content-type", "text/plain")]).await;
    assert_eq!(answer.code, 415);
    let yaml = "metadata:\n  name: m\ndata:\n  mode: \"0644\"\n";
    let answer = send(&admin, "POST", MAPS, yaml.into(), &[("content-type", "application/yaml")]).await;
    assert_eq!(answer.expect(201)["data"]["mode"], "0644");
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
async fn a_slow_deletion_is_accepted_with_orphan_dependents() {
    let s = TestServer::start().await;
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let path = format!("{MAPS}/m");
    s.post(MAPS, json!({ "metadata": { "name": "m", "finalizers": ["a.b/c"] } })).await.expect(201);
    s.delete(&path, Some(json!({ "apiVersion": "a/b/c" }))).await.expect(400);
    s.delete(&path, Some(json!({ "orphanDependents": false }))).await.expect(202);
    s.delete(&path, Some(json!({ "propagationPolicy": "Background" }))).await.expect(200);
}

/// A list that is always written is stored as null when it is empty: to send it so is no change of the desired state.
#[tokio::test]
async fn an_empty_value_raises_no_generation() {
    let s = TestServer::start().await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({ "metadata": { "name": "e" }, "addressType": "IPv4" });
    let made = s.post(slices, slice).await.expect(201);
    assert_eq!((&made["metadata"]["generation"], &made["endpoints"]), (&json!(1), &json!(null)));
    for (endpoints, generation) in [(json!([]), 1), (json!([{ "addresses": ["10.0.0.1"] }]), 2)] {
        let changed = s.patch(&format!("{slices}/e"), "merge", json!({ "endpoints": endpoints })).await.expect(200);
        assert_eq!(changed["metadata"]["generation"], generation, "{changed}");
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

#[tokio::test]
async fn list_options_are_checked_for_every_list() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "a" } })).await.expect(201);
    // A list of the present waits until the cache has it.
    s.get(MAPS).await.expect(200);
    // A selection by name is present, also in pages of a revision.
    for (query, items) in
        [("limit=1&resourceVersion=1", 0), ("limit=1&resourceVersion=1&fieldSelector=metadata.name%3Da", 1)]
    {
        let list = s.get(&format!("{MAPS}?{query}")).await.expect(200);
        assert_eq!(list["items"].as_array().map_or(0, Vec::len), items, "{query}");
    }
    let odd = "resourceVersionMatch=Exact";
    assert_eq!(s.get(&format!("/api/v1/componentstatuses?{odd}")).await.code, 422);
    let error = s.delete(&format!("{MAPS}?watch=1&sendInitialEvents=true"), None).await.message(422);
    assert!(error.ends_with("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"), "{error}");
    let error = s.get(&format!("{MAPS}?continue=x")).await.message(400);
    assert_eq!(error, "invalid continue token: continue key is not valid: illegal base64 data at input byte 0");
}
