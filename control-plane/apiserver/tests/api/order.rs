//! The order of a request's checks: path, method, media types, options, body, object.
//!
//! Every row was observed in upstream's API server.

use crate::server::{TestServer, send};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn paths_are_checked_before_methods_and_methods_before_media_types() {
    let s = TestServer::start().await;
    let admin = s.user("admin", &["system:masters"]);
    let not_found = "the server could not find the requested resource";
    let not_allowed = "the server does not allow this method on the requested resource";
    let kinds = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let unspoken = format!("406: Not Acceptable\n\nAvailable representations: {kinds}");
    let (html, patch) = ("text/html", "application/merge-patch+json");
    for (method, path, accept, content_type, code, message) in [
        ("GET", format!("{PODS}/x/status/deeper"), html, html, 404, not_found),
        ("DELETE", format!("{PODS}/x/status"), html, html, 405, not_allowed),
        ("PUT", MAPS.to_owned(), html, html, 405, not_allowed),
        ("PATCH", format!("{MAPS}/x"), html, html, 415, "415: Unsupported Media Type"),
        ("PATCH", format!("{MAPS}/x"), html, patch, 406, &unspoken),
        ("PUT", format!("{MAPS}/x"), html, html, 406, &unspoken),
        ("PATCH", format!("{MAPS}/x"), "*/*", patch, 404, "configmaps \"x\" not found"),
    ] {
        let headers = [("accept", accept), ("content-type", content_type)];
        let answer = send(&admin, method, &path, "{}".into(), &headers).await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, Some(message)), "{method} {path}");
    }
}

#[tokio::test]
async fn bodies_of_other_kinds_are_refused() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "a" } })).await.expect(201);
    let meta = "in scheme \"pkg/apis/meta/internalversion/scheme/register.go:27\"";
    for (version, kind, message) in [
        ("v1", "Status", "converting (v1.Status) to (v1.DeleteOptions): unknown conversion".to_owned()),
        (
            "foo/v1",
            "CreateOptions",
            "converting (v1.CreateOptions) to (v1.DeleteOptions): unknown conversion".to_owned(),
        ),
        ("v1", "Pod", format!("no kind \"Pod\" is registered for version \"v1\" {meta}")),
    ] {
        let body = json!({ "apiVersion": version, "kind": kind });
        assert_eq!(s.delete(&format!("{MAPS}/a"), Some(body)).await.message(400), message);
    }
    let apis = "/apis/apiregistration.k8s.io/v1/apiservices";
    for (path, version, kind, message) in [
        (MAPS, "foo/v1", "Status", "converting (v1.Status) to (core.ConfigMap): unknown conversion"),
        (MAPS, "v1", "List", "converting (v1.List) to (core.ConfigMap): unknown conversion"),
        (DEPLOYMENTS, "apps/__internal", "Foo", "is registered for the internal version of group \"apps\" in scheme"),
        (apis, "v1", "Pod", "no kind \"Pod\" is registered for version \"v1\" in scheme \"pkg/apiserver/scheme/"),
        (
            DEPLOYMENTS,
            "apps/__internal",
            "Deployment",
            "the API version in the data (apps/__internal) does not match the expected API version (apps/v1)",
        ),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            "v1",
            "Event",
            "the API version in the data (v1) does not match the expected API version (events.k8s.io/v1)",
        ),
    ] {
        let body = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "x" } });
        let error = s.post(path, body).await.message(400);
        assert!(error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn labels_come_from_the_template_for_every_writer() {
    let s = TestServer::start().await;
    let path = "/api/v1/namespaces/default/replicationcontrollers";
    let controller = json!({ "apiVersion": "v1", "kind": "ReplicationController", "metadata": { "name": "r" },
        "spec": { "template": { "metadata": { "labels": { "a": "b" } },
                                "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
    s.post(path, controller.clone()).await.expect(201);
    let status = format!("{path}/r/status");
    let labels = json!({ "a": "b" });
    let taken = s.patch(&status, "merge", json!({ "metadata": { "labels": null } })).await.expect(200);
    assert_eq!(taken["metadata"]["labels"], labels);
    let written = s.put(&status, controller).await.expect(200);
    assert_eq!(written["metadata"]["labels"], labels);
    let bare = json!({ "apiVersion": "v1", "kind": "ReplicationController", "metadata": { "name": "r" } });
    assert_eq!(s.put(&status, bare).await.expect(200)["metadata"]["labels"], labels, "as it is read again");

    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } });
    let job = json!({ "metadata": { "name": "No!" }, "spec": { "template": template } });
    let refused = s.post("/apis/batch/v1/namespaces/default/jobs", job).await.expect(422);
    let fields: Vec<&Value> = refused["details"]["causes"].as_array().unwrap().iter().map(|c| &c["field"]).collect();
    assert_eq!(fields, ["metadata.name", "spec.template.labels", "spec.template.labels"]);
}

#[tokio::test]
async fn an_absent_object_is_created_or_refused_by_its_status() {
    let s = TestServer::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |ports: Value| json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" }, "spec": { "ports": ports } });
    let status = format!("{services}/s/status");
    let refused = s.put(&status, service(json!([]))).await.message(422);
    assert_eq!(refused, "Service \"s\" is invalid: spec.ports: Required value");
    let applied = format!("{status}?fieldManager=m");
    assert_eq!(s.patch(&applied, "application/apply-patch+yaml", service(json!([]))).await.code, 422);
    assert_eq!(s.patch(&status, "merge", json!({})).await.code, 404);
    s.put(&status, service(json!([{ "port": 80 }]))).await.expect(201);
    let maps = s.put(&format!("{DEPLOYMENTS}/x/status"), json!({ "metadata": { "name": "x" } })).await;
    assert_eq!(maps.message(404), "deployments.apps \"x\" not found");

    let other = json!({ "metadata": { "name": "s", "uid": "u" } });
    let conflict = s.put(&format!("{services}/s"), other.clone()).await.message(409);
    let key = "Operation cannot be fulfilled on services \"s\": StorageError: invalid object, Code: 4, Key: /registry/services/specs/default/s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: ";
    assert!(conflict.starts_with(key), "{conflict}");
    s.delete(&format!("{services}/s"), None).await.expect(200);
    assert_eq!(s.put(&format!("{services}/s"), other).await.message(409), key);
}

#[tokio::test]
async fn list_options_are_checked_before_delete_options() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "a" } })).await.expect(201);
    let broken = "couldn't get version/kind; json parse error: unexpected end of JSON input";
    let list = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
    for (query, code, message) in [
        ("resourceVersionMatch=Exact", 422, list),
        ("limit=x", 400, "strconv.ParseInt: parsing \"x\": invalid syntax"),
        ("resourceVersion=abc", 400, broken),
        ("continue=abc", 400, broken),
    ] {
        let answer = s.raw("DELETE", &format!("{MAPS}?{query}"), "{").await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, Some(message)), "{query}");
    }
    let revision = s.get(MAPS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    s.compact(revision).await.unwrap();
    let gone = s.delete(&format!("{MAPS}?resourceVersion=1"), Some(json!({}))).await;
    assert_eq!(gone.message(410), "The resourceVersion for the provided list is too old.");
}

#[tokio::test]
async fn daemon_sets_count_changes_of_their_templates() {
    let s = TestServer::start().await;
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let set = |name: &str, count: &str| {
        json!({ "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": name, "annotations": { "deprecated.daemonset.template.generation": count } },
            "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": {
                "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } } } })
    };
    let why = |count: &str, what: &str| format!("strconv.ParseInt: parsing {count:?}: {what}");
    let of_body = "DaemonSet in version \"v1\" cannot be handled as a DaemonSet: ";
    for (count, what) in
        [("x", "invalid syntax"), (" 5", "invalid syntax"), ("99999999999999999999", "value out of range")]
    {
        let refused = s.post(sets, set("d", count)).await.message(400);
        assert_eq!(refused, format!("{of_body}{}", why(count, what)));
    }
    assert_eq!(
        s.post(sets, set("d", "+007")).await.expect(201)["metadata"]["annotations"],
        json!({ "deprecated.daemonset.template.generation": "7" })
    );
    let path = format!("{sets}/d");
    let syntax = why("x", "invalid syntax");
    let patch = json!({ "metadata": { "annotations": { "deprecated.daemonset.template.generation": "x" } } });
    assert_eq!(s.put(&path, set("d", "x")).await.message(400), format!("{of_body}{syntax}"));
    assert!(s.patch(&path, "merge", patch.clone()).await.message(422).ends_with(&syntax));
    assert_eq!(s.patch(&format!("{path}/status"), "strategic", patch).await.message(500), syntax);
    let applied =
        s.patch(&format!("{path}?fieldManager=m&force=1"), "application/apply-patch+yaml", set("d", "x")).await;
    let about = "failed to convert to unversioned (/d; apps/v1, Kind=DaemonSet): ";
    assert_eq!(applied.message(500), format!("{about}{syntax}"));
}
