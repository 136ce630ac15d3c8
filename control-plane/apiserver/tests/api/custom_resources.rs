//! Custom resources take the path of built-in ones, from their CustomResourceDefinition to its deletion.

use crate::server::{TestServer, next, send};
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

/// Waits until a path answers with this code.
async fn until(s: &TestServer, path: &str, code: u16) -> Value {
    for _ in 0..20_000 {
        let answer = s.get(path).await;
        if answer.code == code {
            return answer.body;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{path} does not answer {code}");
}

/// Waits for the first event with an established CustomResourceDefinition, and returns it.
async fn until_established(events: &mut futures::stream::BoxStream<'static, WatchEvent>) -> Value {
    loop {
        let event = tokio::time::timeout(std::time::Duration::from_secs(300), events.next()).await.unwrap();
        let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event.unwrap() else { continue };
        let value = object.value();
        let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
        if conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True") {
            return value;
        }
    }
}

#[tokio::test]
async fn a_crd_whose_kind_is_discovered_is_updated_without_a_conflict() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, "/apis/example.com/v1", 200).await;
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let found = s.get(&path).await.expect(200);
    assert_eq!(found["status"]["acceptedNames"]["kind"], "Widget");
    s.put(&path, found).await.expect(200);
}

#[tokio::test]
async fn a_crd_makes_a_resource() {
    let s = TestServer::start().await;
    assert_eq!(s.get(WIDGETS).await.code, 404);
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    let established = until_established(&mut definitions).await;
    assert_eq!(established["status"]["acceptedNames"]["kind"], "Widget");
    // An established kind is served and discovered by then, without waiting.
    s.get(WIDGETS).await.expect(200);
    let groups = s.get("/apis").await.expect(200);
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "example.com"), "{groups}");
    let resources = s.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(s.raw("POST", "/apis/example.com/v1", "").await.expect(200), resources, "whatever the method");
    assert_eq!(
        (&resources["resources"][0]["name"], &resources["resources"][0]["shortNames"]),
        (&json!("widgets"), &json!(["wd"]))
    );
    let parts = [&resources["resources"][1]["name"], &resources["resources"][2]["name"]];
    assert_eq!(parts, ["widgets/status", "widgets/scale"]);

    let mut events = s.watch(&format!("{WIDGETS}?watch=1")).await;
    let body = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" },
                       "spec": { "size": 2, "odd": 1 }, "status": { "size": 9 } });
    let created = s.post(WIDGETS, body.clone()).await.expect(201);
    assert_eq!((&created["spec"], created.get("status")), (&json!({ "size": 2, "color": "red" }), None));
    assert_eq!(next(&mut events).await, "ADDED w");
    let mut wrong = body;
    wrong["metadata"]["name"] = "x".into();
    wrong["spec"] = json!({ "size": 0 });
    assert!(s.post(WIDGETS, wrong).await.message(422).contains("should be greater than or equal to 1"));

    let other = s.get("/apis/example.com/v1beta1/namespaces/default/widgets/w").await.expect(200);
    assert_eq!((&other["apiVersion"], &other["spec"]["size"]), (&json!("example.com/v1beta1"), &json!(2)));
    let path = format!("{WIDGETS}/w");
    let patched = s.patch(&path, "merge", json!({ "spec": { "size": 3 }, "status": { "size": 3 } })).await.expect(200);
    assert_eq!((&patched["metadata"]["generation"], patched.get("status")), (&json!(2), None));
    assert_eq!(s.patch(&path, "strategic", json!({})).await.code, 415);
    s.patch(&format!("{path}/status"), "merge", json!({ "status": { "size": 3 } })).await.expect(200);
    assert_eq!(s.get(&format!("{path}/scale")).await.expect(200)["status"]["replicas"], 3);
    // In a body, a null where none may be is dropped; in an apply, it is an error.
    let mut null = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "n" } });
    null["spec"] = json!({ "size": null });
    let missing = s.post(WIDGETS, null.clone()).await.message(422);
    assert!(missing.ends_with("is invalid: spec.size: Required value"), "{missing}");
    let refused =
        s.patch(&format!("{WIDGETS}/n?fieldManager=m"), "application/apply-patch+yaml", null).await.message(422);
    let wrong = "spec.size: Invalid value: \"null\": spec.size in body must be of type integer: \"null\"";
    assert!(refused.contains(wrong), "{refused}");
    // A scale without a resourceVersion means any, and its uid is not compared.
    let scale = json!({ "metadata": { "name": "w", "uid": "another" }, "spec": { "replicas": 2 } });
    s.put(&format!("{path}/scale?dryRun=All"), scale).await.expect(200);
    let admin = s.user("a", &["system:masters"]);
    let table =
        send(&admin, "GET", WIDGETS, Default::default(), &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")])
            .await;
    assert_eq!(table.expect(200)["rows"][0]["cells"], json!(["w", 3]));
    let bare = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "bare" } });
    s.post(WIDGETS, bare).await.expect(201);
    let why = "Internal error occurred: the spec replicas field \".spec.size\" does not exist";
    assert_eq!(s.get(&format!("{WIDGETS}/bare/scale")).await.message(500), why);
    let message = "the spec replicas field \".spec.size\" cannot be empty";
    assert_eq!(s.patch(&format!("{WIDGETS}/bare/scale"), "merge", json!({})).await.message(400), message);
    // Upstream cannot convert a scale that an apply would change.
    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "w" }, "spec": { "replicas": 4 } });
    let scaled =
        s.patch(&format!("{path}/scale?fieldManager=m&force=true"), "application/apply-patch+yaml", scale).await;
    let why = "failed to convert new object (/w; autoscaling/v1, Kind=Scale) to proper version: request to convert CR to an \
               invalid group/version: autoscaling/v1";
    assert_eq!(scaled.message(500), why);
    assert_eq!(s.get(&format!("{path}/nope")).await.message(404), "widgets.example.com \"w\" not found");
    let elsewhere = s.get("/apis/example.com/v1/widgets/w").await;
    assert_eq!((elsewhere.code, elsewhere.body), (404, json!("404 page not found\n")));
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

/// An apply of fields below a schema without properties is pruned, but raises the generation.
#[tokio::test]
async fn pruned_fields_of_an_apply_raise_the_generation() {
    let s = TestServer::start().await;
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object" } } });
    let mut plain = definition();
    plain["spec"]["versions"] = json!([{ "name": "v1", "served": true, "storage": true,
        "subresources": { "status": {} }, "schema": { "openAPIV3Schema": schema } }]);
    s.post(DEFINITIONS, plain).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let widget = |spec: Value| json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": spec });
    s.post(WIDGETS, widget(json!({}))).await.expect(201);
    for (spec, generation) in [(json!({ "a": 1 }), 2), (json!({}), 2), (json!({ "b": { "c": 1 } }), 3)] {
        let path = format!("{WIDGETS}/w?fieldManager=m");
        let applied = s.patch(&path, "application/apply-patch+yaml", widget(spec)).await.expect(200);
        assert_eq!((&applied["spec"], &applied["metadata"]["generation"]), (&json!({}), &json!(generation)));
    }
}

#[tokio::test]
async fn a_resource_survives_a_restart_and_is_deleted_with_its_crd() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let widget =
        json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": 1 } });
    s.post(WIDGETS, widget).await.expect(201);
    let s = s.restart().await;
    s.get(&format!("{WIDGETS}/w")).await.expect(200);
    assert_eq!(s.get(WIDGETS).await.expect(200)["items"].as_array().unwrap().len(), 1);
    s.delete(&format!("{DEFINITIONS}/widgets.example.com"), None).await.expect(200);
    until(&s, &format!("{DEFINITIONS}/widgets.example.com"), 404).await;
    until(&s, WIDGETS, 404).await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    assert_eq!(until(&s, WIDGETS, 200).await["items"], json!([]));
}

#[tokio::test]
async fn a_crd_waits_for_the_finalizers_of_its_objects() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, WIDGETS, 200).await;
    for (name, finalizers) in [("held", json!(["example.com/hold"])), ("free", json!([]))] {
        let metadata = json!({ "name": name, "finalizers": finalizers });
        let widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata,
                             "spec": { "size": 1 } });
        s.post(WIDGETS, widget).await.expect(201);
    }
    let path = format!("{DEFINITIONS}/widgets.example.com");
    s.delete(&path, None).await.expect(200);
    until(&s, &format!("{WIDGETS}/free"), 404).await;
    let mut conditions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    loop {
        let event = tokio::time::timeout(std::time::Duration::from_secs(300), conditions.next()).await.unwrap();
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
    until(&s, &path, 404).await;
    until(&s, WIDGETS, 404).await;
}

#[tokio::test]
async fn unknown_fields_are_warned_of_or_refused() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let body = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w", "odd": 1 },
                       "spec": { "size": 1, "odd": 1 } });
    let strict = s.post(&format!("{WIDGETS}?fieldValidation=Strict"), body.clone()).await.message(400);
    assert_eq!(
        strict,
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"metadata.odd\", unknown field \"spec.odd\""
    );
    let warned = s.post(WIDGETS, body).await;
    assert_eq!(
        warned.warnings(),
        [r#"299 - "unknown field \"metadata.odd\"""#, r#"299 - "unknown field \"spec.odd\"""#]
    );
    assert_eq!(warned.expect(201)["metadata"].get("odd"), None);
    // A custom resource must have its type.
    let unselectable = s.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1")).await.message(400);
    assert_eq!(unselectable, "field label not supported: spec.size");
    let untold = s.post(WIDGETS, json!({ "metadata": { "name": "x" } })).await.message(400);
    assert!(untold.contains("Object 'Kind' is missing in '{\"metadata\""), "{untold}");
    let unversioned = s.post(WIDGETS, json!({ "kind": "Widget", "metadata": { "name": "x" } })).await.message(400);
    assert_eq!(unversioned, "the API version in the data () does not match the expected API version (example.com/v1)");
    let admin = s.user("a", &["system:masters"]);
    let yaml = "\napiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: w\nspec:\n  size: 1\n  size: 2\n";
    let path = format!("{WIDGETS}/w?fieldManager=me&force=true&fieldValidation=Strict");
    let refused = send(&admin, "PATCH", &path, yaml.into(), &[("content-type", "application/apply-patch+yaml")]).await;
    assert_eq!(
        refused.message(400),
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 8: key \"size\" \
         already set in map"
    );
    // Duplicate and unknown fields are reported before another kind.
    let other = r#"{"apiVersion": "example.com/v1", "kind": "Other", "kind": "Other", "metadata": {"name": "x"}}"#;
    let path = format!("{WIDGETS}?fieldValidation=Strict");
    let refused = send(&admin, "POST", &path, other.into(), &[("content-type", "application/json")]).await;
    assert_eq!(
        refused.message(400),
        "Other in version \"v1\" cannot be handled as a Other: strict decoding error: duplicate field \"kind\""
    );
    // Without strict validation, another decoder reports the error.
    let kindless = r#"{"apiVersion": "example.com/v1", "metadata": {"name": "x"}}"#;
    let path = format!("{WIDGETS}?fieldValidation=Ignore");
    let refused = send(&admin, "POST", &path, kindless.into(), &[("content-type", "application/json")]).await;
    assert_eq!(
        refused.message(400),
        format!("Widget in version \"v1\" cannot be handled as a Widget: Object 'Kind' is missing in '{kindless}'")
    );
    let named = r#"{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": 5}}"#;
    let path = format!("{WIDGETS}/absent?fieldManager=me");
    let refused = send(&admin, "PATCH", &path, named.into(), &[("content-type", "application/apply-patch+yaml")]).await;
    assert!(refused.message(500).contains(".metadata.name: expected string"));
}

#[tokio::test]
async fn numbers_are_values() {
    let s = TestServer::start().await;
    let mut definitions = s.watch(&format!("{DEFINITIONS}?watch=1")).await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until_established(&mut definitions).await;
    let widget = |generation: &str, size: &str| {
        format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Widget","metadata":{{"name":"a","generation":{generation}}},"spec":{{"size":{size}}}}}"#
        )
    };
    let path = &format!("{WIDGETS}?dryRun=All");
    s.raw("POST", path, &widget("1e5", "1")).await.expect(201);
    s.raw("POST", path, &widget("-0", "1")).await.expect(201);
    let beyond = s.raw("POST", path, &widget("1", "1E400")).await.message(400);
    assert!(beyond.ends_with("json: cannot unmarshal number 1E400 into Go value of type float64"), "{beyond}");
}

#[tokio::test]
async fn crds_are_published() {
    let s = TestServer::start().await;
    let name = "com.example.v1.Widget";
    assert_eq!(s.get("/openapi/v2").await.expect(200)["definitions"].get(name), None);
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let index = s.get("/openapi/v3").await.expect(200);
    assert!(index["paths"]["apis/example.com/v1"].is_object() && index["paths"]["apis/apps/v1"].is_object());
    let document = s.get("/openapi/v3/apis/example.com/v1").await.expect(200);
    let schema = &document["components"]["schemas"][name];
    assert_eq!(schema["properties"]["spec"]["properties"]["size"], json!({ "type": "integer", "minimum": 1 }));
    assert!(schema["properties"]["metadata"]["description"].as_str().is_some_and(|d| d.starts_with("Standard object")));
    let old = s.get("/openapi/v2").await.expect(200);
    assert_eq!(old["definitions"][name]["x-kubernetes-group-version-kind"][0]["kind"], "Widget");
    assert!(old["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
    assert!(old["paths"]["/apis/example.com/v1beta1/namespaces/{namespace}/widgets"].is_object());
    assert!(old["paths"]["/api/v1/pods"].is_object());
    s.delete(&format!("{DEFINITIONS}/widgets.example.com"), None).await.expect(200);
    until(&s, WIDGETS, 404).await;
    assert_eq!(s.get("/openapi/v2").await.expect(200)["definitions"].get(name), None);
}

/// Returns the CustomResourceDefinition with rules on its spec.
fn with_rules(rules: Value) -> Value {
    let mut definition = definition();
    for version in definition["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] = rules.clone();
        version["selectableFields"] = json!([{ "jsonPath": ".spec.color" }]);
    }
    definition
}

#[tokio::test]
async fn rules_validate_objects() {
    let s = TestServer::start().await;
    let wrong = with_rules(json!([{ "rule": "self.sise < 10" }]));
    let message = s.post(DEFINITIONS, wrong).await.message(422);
    assert!(message.contains("undefined field 'sise'"), "{message}");
    let rules = json!([{ "rule": "self.size < 10", "messageExpression": "'size is %d'.format([self.size])" },
                       { "rule": "self.color == oldSelf.color", "message": "color is immutable", "fieldPath": ".color" }]);
    s.post(DEFINITIONS, with_rules(rules)).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let widget = |size: i64| json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": size } });
    let message = s.post(WIDGETS, widget(10)).await.message(422);
    assert_eq!(message, "Widget.example.com \"w\" is invalid: spec: Invalid value: size is 10");
    s.post(WIDGETS, widget(9)).await.expect(201);
    let path = format!("{WIDGETS}/w");
    let message = s.patch(&path, "merge", json!({ "spec": { "color": "blue" } })).await.message(422);
    assert_eq!(message, "Widget.example.com \"w\" is invalid: spec.color: Invalid value: color is immutable");
    s.patch(&path, "merge", json!({ "spec": { "size": 8 } })).await.expect(200);
    let selected = s.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await.expect(200);
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    let selected = s.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.expect(200);
    assert_eq!(selected["items"].as_array().unwrap().len(), 0);
}

/// Replaces the schema of `spec.color`, and waits until it is served.
async fn redefine(s: &TestServer, color: Value) {
    let change: Vec<Value> = (0..2)
        .map(|at| {
            let path = format!("/spec/versions/{at}/schema/openAPIV3Schema/properties/spec/properties/color");
            json!({ "op": "add", "path": path, "value": color })
        })
        .collect();
    s.patch(&format!("{DEFINITIONS}/widgets.example.com"), "json", json!(change)).await.expect(200);
}

/// Waits until an object has this spec.
async fn until_spec(s: &TestServer, path: &str, spec: Value) -> Value {
    let mut last = Value::Null;
    for _ in 0..20_000 {
        last = s.get(path).await.expect(200);
        if last["spec"] == spec {
            return last;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{path} is {}", last["spec"]);
}

#[tokio::test]
async fn stored_objects_are_read_with_the_present_schema() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, WIDGETS, 200).await;
    redefine(&s, json!({ "type": "string" })).await;
    let path = format!("{WIDGETS}/w");
    let body =
        json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": { "size": 2 } });
    for _ in 0..20_000 {
        // The CustomResourceDefinition without the default is served soon.
        let made = s.post(WIDGETS, body.clone()).await.expect(201);
        if made["spec"].get("color").is_none() {
            break;
        }
        s.delete(&path, None).await.expect(200);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let stored = until_spec(&s, &path, json!({ "size": 2 })).await;

    redefine(&s, json!({ "type": "string", "default": "blue" })).await;
    let defaulted = json!({ "size": 2, "color": "blue" });
    let read = until_spec(&s, &path, defaulted.clone()).await;
    assert_eq!(read["metadata"], stored["metadata"], "nothing was written");
    assert_eq!(s.get(WIDGETS).await.expect(200)["items"][0]["spec"], defaulted);
    let other = s.get("/apis/example.com/v1beta1/namespaces/default/widgets/w").await.expect(200);
    assert_eq!((&other["apiVersion"], &other["spec"]), (&json!("example.com/v1beta1"), &defaulted));
    let mut events = s.watch(&format!("{WIDGETS}?watch=1")).await;
    let seen = tokio::time::timeout(std::time::Duration::from_secs(300), futures::StreamExt::next(&mut events)).await;
    match seen.expect("no event in time") {
        Some(corten_apiserver::WatchEvent::Added(object)) => assert_eq!(object.value()["spec"], defaulted),
        other => panic!("{other:?}"),
    }

    // The default is part of an update's old object, and an update that changes nothing else writes it.
    let patched = s.patch(&path, "json", json!([{ "op": "test", "path": "/spec/color", "value": "blue" }])).await;
    let patched = patched.expect(200);
    assert_ne!(patched["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"]);
    let again = s.patch(&path, "merge", json!({})).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"]);
    redefine(&s, json!({ "type": "string", "default": "green" })).await;
    until_spec(&s, &path, defaulted).await;

    // Fields that the schema no longer has are not shown.
    let gone: Vec<Value> = (0..2)
        .map(|at| {
            let path = format!("/spec/versions/{at}/schema/openAPIV3Schema/properties/spec/properties/color");
            json!({ "op": "remove", "path": path })
        })
        .collect();
    s.patch(&format!("{DEFINITIONS}/widgets.example.com"), "json", json!(gone)).await.expect(200);
    until_spec(&s, &path, json!({ "size": 2 })).await;
}

#[tokio::test]
async fn objects_of_a_removed_version_cannot_be_read() {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let widget = |name: &str, version: &str| {
        json!({ "apiVersion": format!("example.com/{version}"), "kind": "Widget", "metadata": { "name": name },
                "spec": { "size": 2 } })
    };
    s.post(WIDGETS, widget("w", "v1")).await.expect(201);
    let path = format!("{DEFINITIONS}/widgets.example.com");
    let store =
        |at: usize, is: bool| json!({ "op": "replace", "path": format!("/spec/versions/{at}/storage"), "value": is });
    s.patch(&path, "json", json!([store(0, false), store(1, true)])).await.expect(200);
    let stored = json!({ "status": { "storedVersions": ["v1beta1"] } });
    s.patch(&format!("{path}/status"), "merge", stored).await.expect(200);
    s.patch(&path, "json", json!([{ "op": "remove", "path": "/spec/versions/0" }])).await.expect(200);
    until(&s, WIDGETS, 404).await;

    let widgets = WIDGETS.replace("v1", "v1beta1");
    let one = format!("{widgets}/w");
    let why = "request to convert CR from an invalid group/version: example.com/v1";
    let busy = format!("storage is (re)initializing: failed to list example.com/v1beta1, Kind=Widget: {why}");
    let patch = json!({ "spec": { "size": 3 } });
    assert_eq!(s.get(&one).await.message(500), why);
    assert_eq!(s.put(&one, widget("w", "v1beta1")).await.message(500), why);
    assert_eq!(s.patch(&one, "merge", patch).await.message(500), why);
    assert_eq!(s.delete(&one, None).await.message(500), why);
    assert_eq!(s.delete(&widgets, None).await.message(500), why);
    assert_eq!(s.get(&format!("{widgets}?limit=1")).await.message(500), why);
    // The others cannot be listed, but each can be read.
    s.post(&widgets, widget("x", "v1beta1")).await.expect(201);
    s.get(&format!("{widgets}/x")).await.expect(200);
    for query in [
        "",
        "?resourceVersion=0",
        "?watch=1",
        "?watch=1&resourceVersion=1",
        "?labelSelector=a",
        "?limit=1&labelSelector=a",
    ] {
        let answer = s.get(&format!("{widgets}{query}")).await;
        assert_eq!(answer.headers["retry-after"], "1", "{query}");
        assert_eq!(answer.message(429), busy, "{query}");
    }
    // Unreadable objects are deleted with their CustomResourceDefinition.
    s.delete(&path, None).await.expect(200);
    until(&s, &path, 404).await;
}

/// Returns a CustomResourceDefinition with these fields at its root.
fn with_fields(fields: Value) -> Value {
    let mut definition = definition();
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    for version in versions {
        for (name, schema) in fields.as_object().unwrap() {
            version["schema"]["openAPIV3Schema"]["properties"][name] = schema.clone();
        }
    }
    definition
}

#[tokio::test]
async fn a_resource_that_is_not_of_its_type_has_no_owners() {
    let s = TestServer::start().await;
    let odd = json!({ "type": "object", "x-kubernetes-int-or-string": true });
    let free = json!({ "x-kubernetes-preserve-unknown-fields": true });
    s.post(DEFINITIONS, with_fields(json!({ "odd": odd, "free": free }))).await.expect(201);
    until(&s, WIDGETS, 200).await;
    let widget = |fields: Value| {
        let mut widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" } });
        widget.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        widget
    };
    let made = s.post(WIDGETS, widget(json!({ "odd": 1, "spec": { "size": 1 } }))).await.expect(201);
    assert_eq!(made["metadata"].get("managedFields"), None);
    let path = format!("{WIDGETS}/w?fieldManager=me");
    let applied = |fields: Value| s.patch(&path, "application/apply-patch+yaml", widget(fields));
    let why = "failed to create manager for existing fields: failed to convert new object (default/w; example.com/v1, Kind=Widget) to smd typed: .odd: expected map, got &{1}";
    assert_eq!(applied(json!({ "spec": { "size": 1 } })).await.message(500), why);
    s.patch(&format!("{WIDGETS}/w"), "merge", json!({ "odd": null })).await.expect(200);
    let new = applied(json!({ "spec": { "size": 1 }, "free": null })).await.expect(200);
    assert_eq!(new.get("free"), None, "a null that the schema does not forbid is stored, and not read again");
    // A writer of the status owns the other fields that it sends, though it changes nothing of them.
    let status = json!({ "free": "x", "spec": { "size": 7 }, "status": { "size": 2 } });
    let patched = s.patch(&format!("{WIDGETS}/w/status"), "merge", status).await.expect(200);
    assert_eq!((patched.get("free"), &patched["spec"]["size"]), (None, &json!(1)));
    let managers = patched["metadata"]["managedFields"].as_array().unwrap();
    let by_status = managers.iter().find(|entry| entry["subresource"] == "status").unwrap();
    assert_eq!(by_status["fieldsV1"], json!({ "f:free": {}, "f:status": { ".": {}, "f:size": {} } }));
    // A status that is applied as null is dropped.
    let none = widget(json!({ "status": null }));
    let path = format!("{WIDGETS}/v/status?fieldManager=me");
    let mut other = widget(json!({ "spec": { "size": 1 } }));
    other["metadata"]["name"] = "v".into();
    s.post(WIDGETS, other).await.expect(201);
    let mut none = none;
    none["metadata"]["name"] = "v".into();
    assert_eq!(s.patch(&path, "application/apply-patch+yaml", none).await.expect(200).get("status"), None);
}
