//! Versions of custom resources, converted by a webhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::hook::{Act, Hook};
use crate::server::{TestServer, next};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Converts `spec.hostPort` of v1 to `spec.host` and `spec.port` of v2, and back.
fn converted(object: &Value, wanted: &str) -> Value {
    let mut object = object.clone();
    let had = object["apiVersion"].clone();
    object["apiVersion"] = wanted.into();
    if had != wanted {
        let spec = object["spec"].as_object_mut().unwrap();
        if wanted.ends_with("/v2") {
            let joined = spec.remove("hostPort").unwrap();
            let (host, port) = joined.as_str().unwrap().split_once(':').unwrap();
            spec.insert("host".to_owned(), host.into());
            spec.insert("port".to_owned(), port.into());
        } else {
            let text = |v: Option<Value>| v.unwrap().as_str().unwrap().to_owned();
            let joined = format!("{}:{}", text(spec.remove("host")), text(spec.remove("port")));
            spec.insert("hostPort".to_owned(), joined.into());
        }
    }
    object
}

fn review(request: &Value, objects: Vec<Value>) -> Act {
    Act::Answer(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "response": { "uid": request["request"]["uid"], "convertedObjects": objects, "result": { "status": "Success" } },
    }))
}

fn definition(client: &Value, stored: &str) -> Value {
    let version = |name: &str| {
        json!({ "name": name, "served": true, "storage": name == stored, "schema": { "openAPIV3Schema": {
            "type": "object", "properties": { "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } } })
    };
    json!({
        "metadata": { "name": "ends.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "ends", "singular": "end", "kind": "End", "listKind": "EndList" },
            "versions": [version("v1"), version("v2")],
            "conversion": { "strategy": "Webhook",
                            "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": client } },
        },
    })
}

async fn define(server: &TestServer, definition: Value) {
    server.post(DEFINITIONS, definition).await.expect(201);
    established(server).await;
}

async fn established(server: &TestServer) {
    server.until("/apis/example.com/v2/ends", 200).await;
}

fn path(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/ends")
}

/// Starts a webhook that converts.
async fn converting() -> Hook {
    Hook::start(|_, request| {
        let wanted = request["request"]["desiredAPIVersion"].as_str().unwrap();
        let objects = request["request"]["objects"].as_array().unwrap();
        review(request, objects.iter().map(|object| converted(object, wanted)).collect())
    })
    .await
}

#[tokio::test]
async fn every_version_shows_the_same_objects() {
    let server = TestServer::start().await;
    let hook = converting().await;
    define(&server, definition(&hook.client("/convert"), "v1")).await;
    let first = json!({ "apiVersion": "example.com/v1", "kind": "End", "metadata": { "name": "a", "labels": { "l": "x" } },
                        "spec": { "hostPort": "h:1" } });
    server.post(&path("v1"), first).await.expect(201);
    assert_eq!(hook.calls().len(), 0, "the stored version needs no conversion");
    let second = json!({ "apiVersion": "example.com/v2", "kind": "End", "metadata": { "name": "b" },
                         "spec": { "host": "i", "port": "2" } });
    let made = server.post(&path("v2"), second).await.expect(201);
    assert_eq!((&made["apiVersion"], &made["spec"]), (&json!("example.com/v2"), &json!({ "host": "i", "port": "2" })));
    let read = server.get(&format!("{}/a", path("v2"))).await.expect(200);
    assert_eq!(read["spec"], json!({ "host": "h", "port": "1" }));
    assert_eq!(read["metadata"]["labels"]["l"], "x");
    // A list converts each object once.
    hook.calls();
    for calls in [2, 0] {
        let list = server.get(&path("v2")).await.expect(200);
        let specs: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["spec"]["host"]).collect();
        assert_eq!((specs, hook.calls().len()), (vec![&json!("h"), &json!("i")], calls));
    }
    let mut events = server.watch(&format!("{}?watch=1", path("v2"))).await;
    assert_eq!((next(&mut events).await, next(&mut events).await), ("ADDED a".to_owned(), "ADDED b".to_owned()));
    let patched = server.patch(&format!("{}/a", path("v2")), "merge", json!({ "spec": { "port": "9" } })).await;
    assert_eq!(patched.expect(200)["spec"], json!({ "host": "h", "port": "9" }));
    assert_eq!(next(&mut events).await, "MODIFIED a");
    assert_eq!(server.get(&format!("{}/a", path("v1"))).await.expect(200)["spec"], json!({ "hostPort": "h:9" }));
}

#[tokio::test]
async fn the_storage_version_may_change() {
    let server = TestServer::start().await;
    let hook = converting().await;
    define(&server, definition(&hook.client("/convert"), "v1")).await;
    let old = json!({ "apiVersion": "example.com/v1", "kind": "End", "metadata": { "name": "a" }, "spec": { "hostPort": "h:1" } });
    server.post(&path("v1"), old).await.expect(201);
    let change = json!([
        { "op": "replace", "path": "/spec/versions/0/storage", "value": false },
        { "op": "replace", "path": "/spec/versions/1/storage", "value": true },
    ]);
    let changed = server.patch(&format!("{DEFINITIONS}/ends.example.com"), "json", change).await.expect(200);
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
    // An object that was stored before is still read in both versions, and the next write stores it in the new one.
    for _ in 0..2 {
        assert_eq!(server.get(&format!("{}/a", path("v1"))).await.expect(200)["spec"], json!({ "hostPort": "h:1" }));
        let read = server.get(&format!("{}/a", path("v2"))).await.expect(200);
        assert_eq!(read["spec"], json!({ "host": "h", "port": "1" }));
        server.put(&format!("{}/a", path("v2")), read).await.expect(200);
    }
    let new = json!({ "apiVersion": "example.com/v2", "kind": "End", "metadata": { "name": "b" }, "spec": { "host": "i", "port": "2" } });
    server.post(&path("v2"), new).await.expect(201);
    let list = server.get(&path("v1")).await.expect(200);
    let specs: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["spec"]["hostPort"]).collect();
    assert_eq!(specs, [&json!("h:1"), &json!("i:2")]);
}

#[tokio::test]
async fn a_webhook_that_fails_or_returns_another_object_fails_the_request() {
    let server = TestServer::start().await;
    let lies = Arc::new(AtomicBool::new(false));
    let lying = Arc::clone(&lies);
    let hook = Hook::start(move |_, request| {
        if !lying.load(Ordering::SeqCst) {
            let failed =
                json!({ "uid": request["request"]["uid"], "result": { "status": "Failed", "message": "not today" } });
            return Act::Answer(
                json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": failed }),
            );
        }
        let mut object = converted(&request["request"]["objects"][0], "example.com/v2");
        object["metadata"]["name"] = "another".into();
        review(request, vec![object])
    })
    .await;
    define(&server, definition(&hook.client("/convert"), "v1")).await;
    let object = json!({ "apiVersion": "example.com/v1", "kind": "End", "metadata": { "name": "a" }, "spec": { "hostPort": "h:1" } });
    server.post(&path("v1"), object).await.expect(201);
    let status = server.get(&format!("{}/a", path("v2"))).await.expect(500);
    assert_eq!(status["message"], "conversion webhook for example.com/v1, Kind=End failed: not today");
    assert_eq!((status.get("reason"), status.get("details")), (None, None));
    let message = server.get(&path("v2")).await.message(429);
    let why = "conversion webhook for example.com/v1, Kind=End failed: not today";
    assert_eq!(message, format!("storage is (re)initializing: failed to list example.com/v2, Kind=End: {why}"));
    // A page of everything is read as far as it goes.
    assert_eq!(server.get(&format!("{}?limit=1", path("v2"))).await.message(500), why);
    lies.store(true, Ordering::SeqCst);
    let message = server.get(&format!("{}/a", path("v2"))).await.message(500);
    assert!(message.contains("must have the same name: a != another"), "{message}");
    // Objects that need no conversion are still served.
    server.get(&format!("{}/a", path("v1"))).await.expect(200);
}

#[tokio::test]
async fn objects_that_cannot_be_converted_end_watches_and_are_not_deleted() {
    let server = TestServer::start().await;
    let hook = Hook::start(|_, request| {
        let wanted = request["request"]["desiredAPIVersion"].as_str().unwrap();
        let object = &request["request"]["objects"][0];
        if object["metadata"]["annotations"]["fails"] == wanted {
            return Act::Raw(500, "not today");
        }
        review(request, vec![converted(object, wanted)])
    })
    .await;
    define(&server, definition(&hook.client("/convert"), "v1")).await;
    for name in ["a", "b"] {
        let object = json!({ "apiVersion": "example.com/v1", "kind": "End", "metadata": { "name": name }, "spec": { "hostPort": "h:1" } });
        server.post(&path("v1"), object).await.expect(201);
    }
    let fail = async |version: Value| {
        let patch = json!({ "metadata": { "annotations": { "fails": version } } });
        server.patch(&format!("{}/a", path("v1")), "merge", patch).await.expect(200)
    };
    let mut events = server.watch(&format!("{}?watch=1", path("v2"))).await;
    assert_eq!((next(&mut events).await, next(&mut events).await), ("ADDED a".to_owned(), "ADDED b".to_owned()));
    fail(json!("example.com/v2")).await;
    assert_eq!(next(&mut events).await, "END");
    // Selected or not, one object keeps all from being listed, but not from being read by name.
    for query in ["", "?watch=1", "?watch=1&resourceVersion=0", "?fieldSelector=metadata.name=b"] {
        assert_eq!(server.get(&format!("{}{query}", path("v2"))).await.code, 429, "{query}");
    }
    server.get(&format!("{}/b", path("v2"))).await.expect(200);
    server.get(&path("v1")).await.expect(200);
    fail(json!("example.com/v1")).await;
    server.get(&path("v2")).await.expect(200);
    server.delete(&format!("{}/a", path("v2")), None).await.expect(500);
    server.get(&format!("{}/a", path("v1"))).await.expect(200);
    fail(Value::Null).await;
    server.delete(&format!("{}/a", path("v2")), None).await.expect(200);
}

/// Returns the next event's type, and its object's spec.
async fn next_spec(events: &mut futures::stream::BoxStream<'static, corten_apiserver::WatchEvent>) -> (String, Value) {
    use corten_apiserver::WatchEvent::{Added, Deleted, Modified};
    let waited = tokio::time::timeout(std::time::Duration::from_secs(300), futures::StreamExt::next(events)).await;
    match waited.expect("no event in time") {
        Some(Added(object)) => ("ADDED".to_owned(), object.value()["spec"].clone()),
        Some(Modified(object)) => ("MODIFIED".to_owned(), object.value()["spec"].clone()),
        Some(Deleted(object)) => ("DELETED".to_owned(), object.value()["spec"].clone()),
        other => panic!("not about an object: {other:?}"),
    }
}

#[tokio::test]
async fn objects_are_selected_by_the_fields_of_the_requested_version() {
    let server = TestServer::start().await;
    let hook = converting().await;
    let mut definition = definition(&hook.client("/convert"), "v1");
    for (at, field) in [(0, "hostPort"), (1, "host")] {
        let version = &mut definition["spec"]["versions"][at];
        version["selectableFields"] = json!([{ "jsonPath": format!(".spec.{field}") }]);
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
            json!({ field: { "type": "string" } });
    }
    define(&server, definition).await;
    for (name, joined) in [("a", "h:1"), ("b", "i:1"), ("c", "h:2")] {
        let object = json!({ "apiVersion": "example.com/v1", "kind": "End", "metadata": { "name": name },
                             "spec": { "hostPort": joined } });
        server.post(&path("v1"), object).await.expect(201);
    }
    let names = |list: Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let select = |version: &str, selector: &str| format!("{}?fieldSelector={selector}", path(version));
    assert_eq!(names(server.get(&select("v1", "spec.hostPort=h:2")).await.expect(200)), ["c"]);
    assert_eq!(names(server.get(&select("v2", "spec.host=h")).await.expect(200)), ["a", "c"]);
    let page = server.get(&format!("{}&limit=1", select("v2", "spec.host=h"))).await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!(names(page), ["a"]);
    let rest = server.get(&format!("{}&limit=1&continue={token}", select("v2", "spec.host=h"))).await.expect(200);
    assert_eq!((&rest["metadata"]["continue"], names(rest.clone())), (&json!(""), vec!["c".to_owned()]));
    let message = server.get(&select("v2", "spec.hostPort=h:1")).await.message(400);
    assert!(message.contains("spec.hostPort"), "{message}");

    // A watch reports objects that enter and leave the selection, in its own version.
    let mut events = server.watch(&format!("{}&watch=1", select("v2", "spec.host=h"))).await;
    let spec = |host: &str, port: &str| json!({ "host": host, "port": port });
    assert_eq!(next_spec(&mut events).await, ("ADDED".to_owned(), spec("h", "1")));
    assert_eq!(next_spec(&mut events).await, ("ADDED".to_owned(), spec("h", "2")));
    for (name, joined) in [("b", "h:1"), ("b", "h:3"), ("a", "x:1"), ("c", "h:2")] {
        let patch = json!({ "spec": { "hostPort": joined } });
        server.patch(&format!("{}/{name}", path("v1")), "merge", patch).await.expect(200);
    }
    server.delete(&format!("{}/c", path("v1")), None).await.expect(200);
    assert_eq!(next_spec(&mut events).await, ("ADDED".to_owned(), spec("h", "1")));
    assert_eq!(next_spec(&mut events).await, ("MODIFIED".to_owned(), spec("h", "3")));
    assert_eq!(next_spec(&mut events).await, ("DELETED".to_owned(), spec("h", "1")));
    assert_eq!(next_spec(&mut events).await, ("DELETED".to_owned(), spec("h", "2")));
}

#[tokio::test]
async fn managers_of_another_version_are_compared_through_the_webhook() {
    let server = TestServer::start().await;
    let hook = converting().await;
    let mut definition = definition(&hook.client("/convert"), "v1");
    let stored = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    definition.pointer_mut(stored).unwrap()["properties"] = json!({ "mode": { "type": "string", "default": "d" } });
    define(&server, definition).await;
    let first = json!({ "apiVersion": "example.com/v1", "kind": "End", "metadata": { "name": "a" },
                        "spec": { "hostPort": "h:1", "other": "x" } });
    server.post(&format!("{}?fieldManager=one", path("v1")), first).await.expect(201);
    let second = json!({ "apiVersion": "example.com/v2", "kind": "End", "metadata": { "name": "a" },
                         "spec": { "host": "i" } });
    let apply = format!("{}/a?fieldManager=two&force=true", path("v2"));
    let applied = server.patch(&apply, "application/apply-patch+yaml", second).await.expect(200);
    let owned = |object: &Value, manager: &str| {
        let managers = object["metadata"]["managedFields"].as_array().unwrap();
        managers.iter().find(|entry| entry["manager"] == manager).map(|entry| entry["fieldsV1"]["f:spec"].clone())
    };
    // The manager of hostPort no longer owns it after another version changed the host.
    assert_eq!(owned(&applied, "one"), Some(json!({ ".": {}, "f:mode": {}, "f:other": {} })));
    assert_eq!(owned(&applied, "two"), Some(json!({ "f:host": {} })));
    // A write in another version gets the defaults of the storage version.
    let third = json!({ "apiVersion": "example.com/v2", "kind": "End", "metadata": { "name": "b" },
                        "spec": { "host": "j", "port": "1" } });
    let made = server.post(&path("v2"), third).await.expect(201);
    assert_eq!(made["spec"], json!({ "host": "j", "port": "1", "mode": "d" }));
}
