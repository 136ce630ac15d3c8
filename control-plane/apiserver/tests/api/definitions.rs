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
        let event = tokio::time::timeout(std::time::Duration::from_secs(300), events.next()).await.unwrap();
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
    let end = tokio::time::timeout(std::time::Duration::from_secs(300), events.next()).await.unwrap();
    assert!(end.is_none(), "no event, but the end");
}

#[tokio::test]
async fn a_crd_with_finalizers_is_served() {
    let s = TestServer::start().await;
    let mut held = definition(vec![version("v1", &plain())]);
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    let mut definitions = define(&s, held).await;
    let mut object = widget("v1", json!({}));
    object["metadata"]["finalizers"] = json!(["example.com/held"]);
    s.post(WIDGETS, object).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    s.delete(&path, None).await.expect(200);
    until(&mut definitions, "Terminating", "True", "InstanceDeletionInProgress").await;
    // While its objects are deleted, no new ones can be created.
    let mut new = widget("v1", json!({ "spec": 5 }));
    new["metadata"]["name"] = "new".into();
    let refused = s.post(WIDGETS, new.clone()).await.message(403);
    let wanted =
        "widgets.example.com \"new\" is forbidden: create not allowed while custom resource definition is terminating";
    assert_eq!(refused, wanted);
    let resources = s.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(resources["resources"][0]["verbs"], json!(["delete", "deletecollection", "get", "list", "watch"]));
    s.patch(&format!("{WIDGETS}/w"), "merge", json!({ "metadata": { "finalizers": null } })).await.expect(200);
    let done = until(&mut definitions, "Terminating", "False", "InstanceDeletionCompleted").await;
    assert_eq!(done["metadata"]["finalizers"], json!(["example.com/held"]));
    // Afterwards it is served like any other, until its finalizer is removed.
    s.post(WIDGETS, new.clone()).await.expect(422);
    new["spec"] = json!({ "size": 1 });
    s.post(WIDGETS, new).await.expect(201);
    s.patch(&path, "merge", json!({ "metadata": { "finalizers": null } })).await.expect(200);
    s.get(&path).await.expect(404);
}

#[tokio::test]
async fn a_crd_is_established_with_a_valid_ca_bundle() {
    const NONE: &str = "Cg==";
    let s = TestServer::start().await;
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    let with = |bundle: Value| {
        json!({ "strategy": "Webhook", "webhook": { "conversionReviewVersions": ["v1"],
            "clientConfig": { "url": "https://example.com/c", "caBundle": bundle } } })
    };
    let mut wrong = definition(vec![version("v1", &plain())]);
    wrong["spec"]["conversion"] = with(NONE.into());
    s.post(DEFINITIONS, wrong).await.expect(201);
    let changed = until(&mut definitions, "Established", "False", "InvalidCABundle").await;
    assert_eq!(changed["status"]["conditions"][1]["message"], "The conversion webhook CABundle is invalid");
    // It is known, but its webhook cannot be trusted with its objects.
    let heard = s.get(WIDGETS).await.message(500);
    assert_eq!(heard, "Internal error occurred: error resolving resource");
    let group = s.get("/apis/example.com").await.expect(200);
    assert_eq!(group["versions"], json!([{ "groupVersion": "example.com/v1", "version": "v1" }]));
    assert_eq!(s.get("/apis/example.com/v1").await.code, 404);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let change = |bundle: Value| s.patch(&path, "merge", json!({ "spec": { "conversion": with(bundle) } }));
    change("eno=".into()).await.expect(200);
    change(Value::Null).await.expect(200);
    until(&mut definitions, "Established", "True", "InitialNamesAccepted").await;
    // An established one keeps valid certificates.
    let refused = change(NONE.into()).await.message(422);
    let wanted = "spec.conversion.webhookClientConfig.caBundle: Invalid value: \"Cg==\": unable to load root certificates: unable to parse bytes as PEM block";
    assert!(refused.ends_with(wanted), "{refused}");
}

/// A part that the request does not write gets no defaults of the request's version.
#[tokio::test]
async fn the_part_that_is_not_written_gets_no_defaults() {
    let s = TestServer::start().await;
    let schema = |default: &Value| {
        let part = json!({ "type": "object", "properties": { "a": { "type": "string" }, "c": default } });
        json!({ "type": "object", "properties": { "spec": part, "status": part } })
    };
    let (text, defaulted) = (json!({ "type": "string" }), json!({ "type": "string", "default": "C" }));
    let _definitions = define(&s, definition(vec![version("v1", &schema(&text)), version("v2", &schema(&text))])).await;
    s.post(WIDGETS, widget("v1", json!({ "spec": { "a": "b" } }))).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let versions = definition(vec![version("v1", &schema(&defaulted)), version("v2", &schema(&text))]);
    s.patch(&path, "merge", json!({ "spec": versions["spec"] })).await.expect(200);
    let (object, status) = (format!("{WIDGETS}/w"), format!("{WIDGETS}/w/status"));
    // The server sees the change of the CustomResourceDefinition after a while.
    loop {
        let answer =
            s.patch(&format!("{object}?dryRun=All"), "merge", json!({ "spec": { "a": "d" } })).await.expect(200);
        if answer["spec"]["c"] == "C" {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut now = s.get(&object).await.expect(200);
    assert_eq!(now["spec"], json!({ "a": "b" }));
    now["status"] = json!({});
    let written = s.put(&status, now).await.expect(200);
    assert_eq!((&written["spec"], &written["status"]), (&json!({ "a": "b" }), &json!({ "c": "C" })));
    let written = s.patch(&status, "merge", json!({ "status": { "a": "e" } })).await.expect(200);
    assert_eq!((&written["spec"], &written["status"]), (&json!({ "a": "b" }), &json!({ "a": "e", "c": "C" })));
    let written = s.patch(&object, "merge", json!({ "spec": { "a": "f" } })).await.expect(200);
    assert_eq!(written["spec"], json!({ "a": "f", "c": "C" }));
}

#[tokio::test]
async fn defaults_of_metadata_are_restricted_to_its_fields() {
    let s = TestServer::start().await;
    let text = |default: &str| json!({ "type": "string", "default": default });
    let metadata = json!({ "type": "object", "default": {}, "properties": {
        "name": text("a"), "odd": text("b") } });
    let by_field = json!({ "type": "object", "x-kubernetes-embedded-resource": true, "properties": {
        "apiVersion": text("g/v1"), "kind": text("K"), "metadata": metadata } });
    let embedded = json!({ "type": "object", "x-kubernetes-embedded-resource": true,
        "x-kubernetes-preserve-unknown-fields": true,
        "default": { "apiVersion": "g/v1", "kind": "K", "metadata": { "name": "a", "odd": "b" } } });
    let schema = json!({ "type": "object", "properties": { "whole": embedded, "fields": by_field } });
    let created = s.post(DEFINITIONS, definition(vec![version("v1", &schema)])).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    until(&mut definitions, "Established", "True", "InitialNamesAccepted").await;
    let created = s.post(WIDGETS, widget("v1", json!({ "fields": {} }))).await.expect(201);
    let wanted = json!({ "apiVersion": "g/v1", "kind": "K", "metadata": { "name": "a" } });
    assert_eq!((&created["whole"], &created["fields"]), (&wanted, &wanted));
}

#[tokio::test]
async fn a_crd_in_a_built_in_group_is_not_reachable() {
    let s = TestServer::start().await;
    let of_networking = |plural: &str, kind: &str, versions: Vec<Value>| {
        let mut definition = definition(versions);
        definition["metadata"] = json!({ "name": format!("{plural}.networking.k8s.io"),
            "annotations": { "api-approved.kubernetes.io": "unapproved, for a test" } });
        definition["spec"]["group"] = "networking.k8s.io".into();
        definition["spec"]["names"] = json!({ "plural": plural, "kind": kind });
        definition
    };
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    for definition in [
        of_networking("routes", "Route", vec![version("v1", &plain()), version("v7", &plain())]),
        of_networking("ingresses", "Ingress", vec![version("v1", &plain())]),
    ] {
        s.post(DEFINITIONS, definition).await.expect(201);
        until(&mut definitions, "Established", "True", "InitialNamesAccepted").await;
    }
    // They are discovered, but no request reaches them.
    let group = s.get("/apis/networking.k8s.io").await.expect(200);
    assert!(group["versions"].as_array().unwrap().iter().any(|version| version["version"] == "v7"), "{group}");
    let own = s.get("/apis/networking.k8s.io/v1").await.expect(200);
    let named = |name: &str| own["resources"].as_array().unwrap().iter().filter(|r| r["name"] == name).count();
    assert_eq!((named("ingresses"), named("routes")), (1, 0));
    for path in ["v7", "v7/routes", "v1/routes", "v1/routes/r"] {
        s.get(&format!("/apis/networking.k8s.io/{path}")).await.expect(404);
    }
    let route = json!({ "apiVersion": "networking.k8s.io/v7", "kind": "Route", "metadata": { "name": "r" } });
    s.post("/apis/networking.k8s.io/v7/routes", route).await.expect(404);
    s.get("/apis/networking.k8s.io/v1/ingresses").await.expect(200);
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
