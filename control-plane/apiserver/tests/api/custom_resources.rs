//! Custom resources take the path of built-in ones, from their CustomResourceDefinition to its deletion.

use crate::server::TestServer;
use corten_apiserver::WatchEvent;
use futures::StreamExt;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn definition() -> Value {
    let schema = json!({ "type": "object", "properties": {
        "spec": { "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer", "minimum": 1 }, "color": { "type": "string", "default": "red" } } },
        "status": { "type": "object", "properties": { "size": { "type": "integer" } } } } });
    let version = |name: &str, storage: bool| {
        json!({
        "name": name, "served": true, "storage": storage, "schema": { "openAPIV3Schema": schema },
        "subresources": { "status": {}, "scale": { "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size" } },
        "additionalPrinterColumns": [{ "name": "Size", "type": "integer", "jsonPath": ".spec.size" }] })
    };
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "widgets.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "versions": [version("v1", true), version("v1beta1", false)],
            "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"] } } })
}

/// Waits for the first event with an established CustomResourceDefinition.
async fn until_established(events: &mut futures::stream::BoxStream<'static, WatchEvent>) {
    loop {
        let event = tokio::time::timeout(crate::server::PATIENCE, events.next()).await.unwrap();
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event.unwrap() else { continue };
        let value = object.value();
        let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
        if conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True") {
            return;
        }
    }
}

#[tokio::test]
async fn an_established_kind_is_served_and_discovered_at_once() {
    let s = TestServer::start().await;
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until_established(&mut definitions).await;
    s.get(WIDGETS).await.expect(200);
    let groups = s.get("/apis").await.expect(200);
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "example.com"), "{groups}");
}

#[tokio::test]
async fn empty_values_at_the_root_of_a_schema_are_kept() {
    let s = TestServer::start().await;
    let version = json!({ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": { "type": "object" } } });
    let mut plain = definition();
    plain["spec"]["versions"] = json!([version]);
    s.post(DEFINITIONS, plain).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com?dryRun=All");
    for (field, empty, at_root, below) in [
        ("allOf", json!([]), 422, 200),
        ("enum", json!([]), 422, 200),
        ("definitions", json!({}), 422, 200),
        ("dependencies", json!({}), 422, 422),
        ("x-kubernetes-list-map-keys", json!([]), 422, 200),
        ("additionalProperties", json!(false), 422, 200),
        ("required", json!([]), 200, 200),
        ("items", json!([]), 200, 200),
        ("$ref", json!(""), 422, 422),
        ("additionalItems", json!({}), 422, 422),
        ("id", json!(""), 200, 200),
        ("anyOf", json!(null), 200, 200),
    ] {
        let root = json!({ "type": "object", field: empty });
        let inner = json!({ "type": "object", "properties": { "spec": root } });
        let item = json!({ "type": "object", "properties": { "l": { "type": "array", "items": root } } });
        for (schema, code) in [(&root, at_root), (&inner, below), (&item, below)] {
            let patch = json!({ "spec": { "versions": [{ "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} }, "schema": { "openAPIV3Schema": schema } }] } });
            let patched = s.patch(&path, "merge", patch).await;
            assert_eq!(patched.code, code, "{schema}: {}", patched.body);
        }
    }
}

#[tokio::test]
async fn a_resource_survives_a_restart_and_is_deleted_with_its_crd() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    s.until(WIDGETS, 200).await;
    let widget =
        json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": 1 } });
    s.post(WIDGETS, widget).await.expect(201);
    let s = s.restart().await;
    s.get(&format!("{WIDGETS}/w")).await.expect(200);
    assert_eq!(s.get(WIDGETS).await.expect(200)["items"].as_array().unwrap().len(), 1);
    s.delete(&format!("{DEFINITIONS}/widgets.example.com"), None).await.expect(200);
    s.until(&format!("{DEFINITIONS}/widgets.example.com"), 404).await;
    s.until(WIDGETS, 404).await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    assert_eq!(s.until(WIDGETS, 200).await["items"], json!([]));
}

#[tokio::test]
async fn a_crd_waits_for_the_finalizers_of_its_objects() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    s.until(WIDGETS, 200).await;
    for (name, finalizers) in [("held", json!(["example.com/hold"])), ("free", json!([]))] {
        let metadata = json!({ "name": name, "finalizers": finalizers });
        let widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata,
                             "spec": { "size": 1 } });
        s.post(WIDGETS, widget).await.expect(201);
    }
    let path = format!("{DEFINITIONS}/widgets.example.com");
    s.delete(&path, None).await.expect(200);
    s.until(&format!("{WIDGETS}/free"), 404).await;
    let mut conditions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    loop {
        let event = tokio::time::timeout(crate::server::PATIENCE, conditions.next()).await.unwrap();
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event.unwrap() else { panic!("it went") };
        if object.value()["status"].to_string().contains("InstanceDeletionInProgress") {
            break;
        }
    }
    // A watch keeps its server alive.
    drop(conditions);
    let s = s.restart().await;
    let marked = s.get(&format!("{WIDGETS}/held")).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    assert_eq!(marked["metadata"]["generation"], 2);
    let new = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "new" },
                      "spec": { "size": 1 } });
    let refused = s.post(WIDGETS, new).await.message(403);
    let why = "create not allowed while custom resource definition is terminating";
    assert_eq!(refused, format!("widgets.example.com \"new\" is forbidden: {why}"));
    s.patch(&format!("{WIDGETS}/held"), "merge", json!({ "metadata": { "finalizers": null } })).await.expect(200);
    s.until(&path, 404).await;
    s.until(WIDGETS, 404).await;
}
