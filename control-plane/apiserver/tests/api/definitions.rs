//! The life of CustomResourceDefinitions, and objects in several of their versions.

use crate::server::{TestServer, next};
use corten_apiserver::WatchEvent;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/widgets";

fn version(name: &str, schema: &Value) -> Value {
    json!({ "name": name, "served": true, "storage": false, "schema": { "openAPIV3Schema": schema },
            "subresources": { "status": {} } })
}

/// Returns a CustomResourceDefinition; the last version is stored.
fn definition(mut versions: Vec<Value>) -> Value {
    versions.last_mut().unwrap()["storage"] = true.into();
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": { "group": "example.com", "scope": "Cluster", "versions": versions, "names":
            { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" } } })
}

fn widget(version: &str, rest: Value) -> Value {
    let mut object = json!({ "apiVersion": format!("example.com/{version}"), "kind": "Widget",
                             "metadata": { "name": "w" } });
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

/// Waits for the next object of a watch with this condition.
async fn until(events: &mut BoxStream<'static, WatchEvent>, kind: &str, status: &str, reason: &str) -> Value {
    loop {
        let event = tokio::time::timeout(crate::server::PATIENCE, events.next()).await.unwrap();
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event.unwrap() else { continue };
        let value = object.value();
        let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
        let is_it = |c: &Value| c["type"] == kind && c["status"] == status && c["reason"] == reason;
        if conditions.into_iter().flatten().any(is_it) {
            return value;
        }
    }
}

/// Creates the CustomResourceDefinition of widgets, and returns a watch of CustomResourceDefinitions.
async fn define(s: &TestServer, definition: Value) -> BoxStream<'static, WatchEvent> {
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    s.post(DEFINITIONS, definition).await.expect(201);
    until(&mut definitions, "Established", "True", "InitialNamesAccepted").await;
    definitions
}

fn plain() -> Value {
    json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
        "size": { "type": "integer" } } } } })
}

#[tokio::test]
async fn a_watch_ends_when_its_crd_changes() {
    let s = TestServer::start().await;
    let _definitions = define(&s, definition(vec![version("v1", &plain())])).await;
    let mut events = s.watch(&format!("{WIDGETS}?watch=1")).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    s.patch(&path, "merge", json!({ "metadata": { "labels": { "a": "b" } } })).await.expect(200);
    s.post(WIDGETS, widget("v1", json!({}))).await.expect(201);
    assert_eq!(crate::server::next(&mut events).await, "ADDED w");
    let added = json!([{ "op": "add", "path": "/spec/versions/0", "value": version("v2", &plain()) }]);
    s.patch(&path, "json", added).await.expect(200);
    let end = tokio::time::timeout(crate::server::PATIENCE, events.next()).await.unwrap();
    assert!(end.is_none(), "no event, but the end");
}

#[tokio::test]
async fn a_watch_ends_with_its_crd_after_all_events() {
    let s = TestServer::start().await;
    let _definitions = define(&s, definition(vec![version("v1", &plain())])).await;
    s.post(WIDGETS, widget("v1", json!({}))).await.expect(201);
    let mut watch = s.watch(&format!("{WIDGETS}?watch=1")).await;
    s.delete(&format!("{DEFINITIONS}/widgets.example.com"), None).await.expect(200);
    for expected in ["ADDED w", "DELETED w", "END"] {
        assert_eq!(next(&mut watch).await, expected);
    }
}

#[tokio::test]
async fn no_object_outlives_its_crd() {
    let s = TestServer::start().await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    for round in 0..6 {
        let (scope, collection) = match round % 2 {
            0 => ("Cluster", WIDGETS),
            _ => ("Namespaced", "/apis/example.com/v1/namespaces/default/widgets"),
        };
        let mut wanted = definition(vec![version("v1", &plain())]);
        wanted["spec"]["scope"] = scope.into();
        let _definitions = define(&s, wanted).await;
        assert_eq!(s.get(WIDGETS).await.expect(200)["items"], json!([]), "round {round}");
        // Objects are created until the server refuses them.
        let create = async {
            for number in 0.. {
                let mut object = widget("v1", json!({}));
                object["metadata"]["name"] = format!("w{number}").into();
                if s.post(collection, object).await.code == 404 {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        let delete = async {
            s.delete(&path, None).await.expect(200);
            while s.get(&path).await.code != 404 {
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(create, delete);
    }
}
