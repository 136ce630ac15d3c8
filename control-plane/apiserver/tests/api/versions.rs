//! Field ownership in a custom resource with several versions, which need not have the same fields.

use crate::server::TestServer;
use serde_json::{Value, json};

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ends.example.com";
const APPLY: &str = "application/apply-patch+yaml";

/// Returns a version whose spec has these fields, and a status subresource if wanted.
fn version(name: &str, stored: bool, has_status: bool, fields: &[&str]) -> Value {
    let fields: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!({ "type": "string" }))).collect();
    let spec = json!({ "type": "object", "properties": fields });
    let status = json!({ "type": "object", "properties": { "phase": { "type": "string" } } });
    let mut version = json!({ "name": name, "served": true, "storage": stored, "schema": { "openAPIV3Schema": {
        "type": "object", "properties": { "spec": spec, "status": status } } } });
    if has_status {
        version["subresources"] = json!({ "status": {} });
    }
    version
}

async fn define(server: &TestServer, versions: &[Value]) {
    let definition = json!({
        "metadata": { "name": "ends.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "names": { "plural": "ends", "kind": "End" },
                  "versions": versions } });
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    served(server, "v1", 200).await;
}

/// Waits until a version is served, or no longer is.
async fn served(server: &TestServer, version: &str, code: u16) {
    for _ in 0..20_000 {
        if server.get(&format!("/apis/example.com/{version}/ends")).await.code == code {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{version} never answers {code}");
}

fn object(version: &str, spec: Value) -> Value {
    json!({ "apiVersion": format!("example.com/{version}"), "kind": "End", "metadata": { "name": "a" }, "spec": spec })
}

fn path(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/ends")
}

fn of(version: &str, manager: &str) -> String {
    format!("{}/a?fieldManager={manager}", path(version))
}

/// Returns the managers, their versions, and their fields of the spec and of the status.
fn managers(object: &Value) -> Vec<(String, String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
    let version = |entry: &Value| text(entry, "apiVersion").replace("example.com/", "");
    entries.map(|entry| (text(entry, "manager"), version(entry), entry["fieldsV1"].clone())).collect()
}

#[tokio::test]
async fn a_field_that_another_managers_version_lacks_is_an_error() {
    let server = TestServer::start().await;
    define(&server, &[version("v1", true, true, &["a", "s"]), version("v2", false, true, &["b", "s"])]).await;
    server.post(&format!("{}?fieldManager=one", path("v1")), object("v1", json!({ "s": "1" }))).await.expect(201);
    // Both versions have it, so both managers stay.
    let both = server
        .patch(&format!("{}&force=true", of("v2", "two")), APPLY, object("v2", json!({ "s": "2" })))
        .await
        .expect(200);
    assert_eq!(managers(&both).len(), 2, "{both}");
    // The second manager's version lacks the new field: an apply fails, and an update drops all managers.
    let message = server.patch(&of("v1", "three"), APPLY, object("v1", json!({ "a": "1" }))).await.message(500);
    assert_eq!(message, "failed to convert new object: .spec.a: field not declared in schema");
    let update = json!({ "spec": { "a": "1" } });
    let updated = server.patch(&of("v1", "three"), "merge", update).await.expect(200);
    assert_eq!((managers(&updated), &updated["spec"]), (vec![], &json!({ "a": "1", "s": "2" })));
}

#[tokio::test]
async fn managers_of_a_removed_version_are_an_error() {
    let server = TestServer::start().await;
    let (first, second) = (version("v1", true, true, &["s"]), version("v2", false, true, &["s"]));
    define(&server, &[first.clone(), second.clone()]).await;
    server.post(&format!("{}?fieldManager=two", path("v2")), object("v2", json!({ "s": "1" }))).await.expect(201);
    // A version that is only not served any more still exists.
    let mut unserved = second;
    unserved["served"] = false.into();
    let versions = |versions: &[Value]| json!({ "spec": { "versions": versions } });
    server.patch(DEFINITION, "merge", versions(&[first.clone(), unserved])).await.expect(200);
    served(&server, "v2", 404).await;
    let applied = server.patch(&of("v1", "one"), APPLY, object("v1", json!({ "s": "1" }))).await.expect(200);
    assert_eq!(managers(&applied).len(), 2, "{applied}");
    let spoken = server.patch(&of("v2", "one"), APPLY, object("v2", json!({}))).await;
    assert_eq!((spoken.code, spoken.body), (404, json!("404 page not found\n")));

    server.patch(DEFINITION, "merge", versions(&[first])).await.expect(200);
    let gone = "request to convert CR to an invalid group/version: example.com/v2";
    for _ in 0..20_000 {
        let answer = server.patch(&of("v1", "one"), APPLY, object("v1", json!({ "s": "1" }))).await;
        if answer.code == 500 {
            assert_eq!(answer.message(500), gone);
            let updated = server.patch(&of("v1", "one"), "merge", json!({ "spec": { "s": "3" } })).await.expect(200);
            return assert_eq!(managers(&updated), []);
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the version is never gone");
}

#[tokio::test]
async fn reset_fields_are_taken_from_managers_of_other_versions() {
    let server = TestServer::start().await;
    define(&server, &[version("v1", true, true, &["s"]), version("v2", false, false, &["s"])]).await;
    let mut made = object("v2", json!({ "s": "1" }));
    made["status"] = json!({ "phase": "p" });
    server.post(&format!("{}?fieldManager=two", path("v2")), made).await.expect(201);
    // The second version has no status subresource, so upstream has no reset fields of a status there.
    let mut status = object("v1", json!({ "s": "2" }));
    status["status"] = json!({ "phase": "p" });
    let current = server.get(&format!("{}/a", path("v1"))).await.expect(200);
    status["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    let written = server.put(&format!("{}/a/status?fieldManager=one", path("v1")), status).await.expect(200);
    assert_eq!(written["spec"], json!({ "s": "1" }));
    let left = json!({ "f:spec": {}, "f:status": { ".": {}, "f:phase": {} } });
    assert_eq!(managers(&written), [("two".to_owned(), "v2".to_owned(), left)]);
    // Nor has it any for another version in a write of the main resource, which has another status.
    let other = json!({ "spec": { "s": "1" }, "status": { "phase": "q" } });
    let written = server.patch(&of("v1", "one"), "merge", other).await.expect(200);
    assert_eq!(written["status"], json!({ "phase": "p" }));
    let left = json!({ "f:spec": {}, "f:status": {} });
    assert_eq!(managers(&written), [("two".to_owned(), "v2".to_owned(), left)]);
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_stored_in_the_version_with_fewer_fields() {
    let server = TestServer::start().await;
    define(&server, &[version("v1", true, true, &["a", "s"]), version("v2", false, true, &["s"])]).await;
    server.post(&path("v1"), object("v1", json!({ "a": "1", "s": "1" }))).await.expect(201);
    let read = server.get(&format!("{}/a", path("v2"))).await.expect(200);
    assert_eq!(read["spec"], json!({ "s": "1" }));
    server.put(&format!("{}/a", path("v2")), read).await.expect(200);
    let read = server.get(&format!("{}/a", path("v1"))).await.expect(200);
    assert_eq!(read["spec"], json!({ "s": "1" }));
}

#[tokio::test]
async fn a_write_of_the_status_defaults_nothing_else() {
    let server = TestServer::start().await;
    let mut second = version("v2", false, true, &["s"]);
    let spec = "/schema/openAPIV3Schema/properties/spec/properties";
    second.pointer_mut(spec).unwrap()["d"] = json!({ "type": "string", "default": "x" });
    define(&server, &[version("v1", true, true, &["s"]), second]).await;
    server.post(&path("v1"), object("v1", json!({ "s": "1" }))).await.expect(201);
    let status = json!({ "status": { "phase": "p" } });
    let written = server.patch(&format!("{}/a/status", path("v2")), "merge", status).await.expect(200);
    assert_eq!((&written["spec"], &written["metadata"]["generation"]), (&json!({ "s": "1" }), &json!(1)));
}

#[tokio::test]
async fn a_scale_that_the_storage_version_lacks_is_written_nevertheless() {
    let server = TestServer::start().await;
    let mut scaled = version("v1", false, true, &[]);
    let spec = "/schema/openAPIV3Schema/properties/spec/properties";
    *scaled.pointer_mut(spec).unwrap() = json!({ "n": { "type": "integer" } });
    scaled["subresources"]["scale"] = json!({ "specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n" });
    define(&server, &[scaled, version("v2", true, true, &["s"])]).await;
    server.post(&path("v1"), object("v1", json!({}))).await.expect(201);
    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "a" },
                        "spec": { "replicas": 3 } });
    let written = server.put(&format!("{}/a/scale", path("v1")), scale).await.expect(200);
    assert_eq!(written["spec"], json!({}));
    let message = server.get(&format!("{}/a/scale", path("v1"))).await.message(500);
    assert!(message.ends_with("the spec replicas field \".spec.n\" does not exist"), "{message}");
    assert_eq!(server.get(&format!("{}/a", path("v1"))).await.expect(200)["metadata"]["generation"], 2);
}

#[tokio::test]
async fn an_object_written_in_another_version_has_the_present_defaults() {
    let server = TestServer::start().await;
    let versions = |default: Value| {
        let mut stored = version("v1", true, true, &["a", "d"]);
        stored["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["d"]["default"] = default;
        json!([stored, version("v2", false, true, &["a", "d"])])
    };
    define(&server, versions("one".into()).as_array().unwrap()).await;
    // A write in the storage version is stored with all defaults, a write in another version as it was converted.
    for (name, version) in [("a", "v1"), ("b", "v2")] {
        let mut new = object(version, json!({ "a": "x" }));
        new["metadata"]["name"] = name.into();
        let made = server.post(&path(version), new).await.expect(201);
        assert_eq!(made["spec"], json!({ "a": "x", "d": "one" }));
    }
    let change = json!({ "spec": { "versions": versions("two".into()) } });
    server.patch(DEFINITION, "merge", change).await.expect(200);
    let defaults = async |version: &str| -> Vec<Value> {
        let list = server.get(&path(version)).await.expect(200);
        list["items"].as_array().unwrap().iter().map(|item| item["spec"]["d"].clone()).collect()
    };
    for _ in 0..20_000 {
        if defaults("v1").await[1] == "two" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    for version in ["v1", "v2"] {
        assert_eq!(defaults(version).await, ["one", "two"]);
        assert_eq!(server.get(&format!("{}/b", path(version))).await.expect(200)["spec"]["d"], "two");
    }
    // A write that changes nothing stores the defaults: also in the other version, but only once.
    let patch = async || server.patch(&format!("{}/b", path("v2")), "merge", json!({})).await.expect(200);
    let before = server.get(&format!("{}/b", path("v1"))).await.expect(200);
    let (first, second) = (patch().await, patch().await);
    assert_ne!(first["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
}
