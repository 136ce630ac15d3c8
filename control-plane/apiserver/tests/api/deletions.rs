//! The responses and effects of deletions, as upstream's API server has them: dry runs, finalizers, repeated deletions.

use crate::server::TestServer;
use corten_apiserver::WatchEvent;
use futures::StreamExt;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const NAMESPACES: &str = "/api/v1/namespaces";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BACKGROUND: &str = "dryRun=All&propagationPolicy=Background";

fn deployment() -> Value {
    json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn named(mut object: Value, name: &str, finalizers: &[&str]) -> Value {
    object["metadata"] = json!({"name": name, "finalizers": finalizers});
    object
}

/// A dry run of a removal after an update stops before there is an object to show.
#[tokio::test]
async fn dry_runs_of_objects_that_only_dependents_hold() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    for (path, object, wanted) in [
        (MAPS, json!({"data": {"a": "b"}}), json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}})),
        (
            DEPLOYMENTS,
            deployment(),
            json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {}, "spec": {"replicas": 0,
                "selector": null, "template": {"metadata": {}, "spec": {"containers": null}}, "strategy": {}},
                "status": {}}),
        ),
        (
            PODS,
            pod,
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {}, "spec": {"containers": null}, "status": {}}),
        ),
    ] {
        assert_eq!(s.post(path, named(object, "x", &["orphan"])).await.code, 201, "{path}");
        let at = format!("{path}/x");
        if path == PODS {
            s.delete(&format!("{at}?gracePeriodSeconds=0"), None).await;
        }
        assert_eq!(s.delete(&format!("{at}?{BACKGROUND}"), None).await.body, wanted);
        let version = s.get(&at).await.body["metadata"]["resourceVersion"].clone();
        let options = json!({"propagationPolicy": "Background", "preconditions": {"resourceVersion": version}});
        assert_eq!(s.delete(&at, Some(options)).await.code, 409, "the change comes between");
        let gone = s.delete(&format!("{at}?propagationPolicy=Background"), None).await.body;
        // A removed object is shown by the kinds that return it.
        let wanted = if path == PODS { json!(["orphan"]) } else { Value::Null };
        assert_eq!(gone["metadata"]["finalizers"], wanted, "{gone}");
        assert_eq!(s.get(&at).await.code, 404, "{path}");
    }
    s.post(MAPS, named(json!({}), "y", &[])).await;
    assert_eq!(s.delete(&format!("{MAPS}/y?{BACKGROUND}"), None).await.body["kind"], "Status");
}

#[tokio::test]
async fn an_object_that_is_being_deleted_stays_as_it_is() {
    let s = TestServer::start().await;
    s.post(NAMESPACES, named(json!({}), "n", &["x.io/a"])).await;
    let at = format!("{NAMESPACES}/n");
    let first = s.delete(&at, None).await.body;
    assert_eq!(
        (&first["status"]["phase"], &first["metadata"]["finalizers"]),
        (&json!("Terminating"), &json!(["x.io/a"]))
    );
    for query in ["propagationPolicy=Foreground", "propagationPolicy=Orphan", "gracePeriodSeconds=5"] {
        assert_eq!(s.delete(&format!("{at}?{query}"), None).await.body, first, "{query}");
    }
    // Once its content is deleted it is removed as any other.
    s.put(&format!("{at}/finalize"), json!({"metadata": {"name": "n", "finalizers": ["x.io/a"]}, "spec": {}})).await;
    let marked = s.delete(&at, None).await.body;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);

    s.post(NAMESPACES, named(json!({}), "o", &[])).await;
    let old = s.delete(&format!("{NAMESPACES}/o?orphanDependents=false"), None).await;
    assert_eq!((old.code, &old.body["metadata"]["finalizers"]), (202, &json!(["foregroundDeletion"])));

    let definition = json!({"spec": {"group": "g.io", "scope": "Namespaced", "names": {"plural": "bars", "kind": "Bar"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    s.post(DEFINITIONS, named(definition, "bars.g.io", &["orphan"])).await;
    let first = s.delete(&format!("{DEFINITIONS}/bars.g.io?{BACKGROUND}"), None).await.body;
    let cleanup = corten_api::CUSTOM_RESOURCE_CLEANUP;
    assert_eq!(first["metadata"]["finalizers"], json!(["orphan", cleanup]), "its dependents are its own to end");
}

/// Namespaces and CustomResourceDefinitions have errors of their own for preconditions.
#[tokio::test]
async fn preconditions() {
    let s = TestServer::start().await;
    s.post(MAPS, named(json!({}), "x", &[])).await;
    let options = json!({"preconditions": {"uid": "u"}});
    for (path, wanted) in [
        (
            format!("{NAMESPACES}/default"),
            "Operation cannot be fulfilled on namespaces \"default\": Precondition failed: UID in precondition: u, UID in object meta: ",
        ),
        (
            format!("{MAPS}/x"),
            "Operation cannot be fulfilled on ConfigMap \"x\": the UID in the precondition (u) does not match the UID in record (",
        ),
    ] {
        let answer = s.delete(&path, Some(options.clone())).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert!(answer.code == 409 && message.starts_with(wanted), "{message}");
    }
}

/// Of several unreadable options, the first is reported.
#[tokio::test]
async fn options_are_checked_in_the_order_of_the_body() {
    let s = TestServer::start().await;
    let policy = "json: cannot unmarshal number into Go struct field DeleteOptions.propagationPolicy of type \
                  v1.DeletionPropagation";
    let dry_run = "json: cannot unmarshal string into Go struct field DeleteOptions.dryRun of type []string";
    for (body, wanted) in [
        (r#"{"propagationPolicy": 5, "dryRun": "All"}"#, policy),
        (r#"{"dryRun": "All", "propagationPolicy": 5}"#, dry_run),
    ] {
        let answer = s.raw("DELETE", &format!("{MAPS}/x"), body).await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (400, Some(wanted)));
    }
}

/// An Event has no dependents.
#[tokio::test]
async fn events_have_no_dependents() {
    let s = TestServer::start().await;
    let event = json!({"involvedObject": {"namespace": "default"}});
    assert_eq!(s.post(EVENTS, named(event, "e", &["orphan"])).await.code, 201);
    s.delete(&format!("{EVENTS}/e?propagationPolicy=Foreground"), None).await;
    assert_eq!(s.get(&format!("{EVENTS}/e")).await.code, 404);
}

/// A watcher sees a pod marked before it is removed, also without a grace period.
#[tokio::test]
async fn pods_are_marked_first() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = s.post(PODS, named(pod, "p", &[])).await.body;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = s.watch(&format!("{PODS}?watch=1&resourceVersion={version}")).await;
    s.delete(&format!("{PODS}/p"), None).await;
    let mut seen = Vec::new();
    while let Some(WatchEvent::Modified(object) | WatchEvent::Deleted(object)) = events.next().await {
        let metadata = object.value()["metadata"].clone();
        assert_eq!(metadata["deletionGracePeriodSeconds"], 0, "{metadata}");
        seen.push(metadata["generation"].clone());
        if seen.len() == 2 {
            break;
        }
    }
    assert_eq!(seen, [json!(2), json!(2)]);
}

/// An object that was created with a deletion timestamp is removed by the next write, also by one that changes nothing.
#[tokio::test]
async fn a_write_removes_an_object_that_nothing_holds() {
    let s = TestServer::start().await;
    let marked = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "m", "deletionTimestamp": "2020-01-01T00:00:00Z"}});
    let path = format!("{MAPS}/m");
    s.patch(&format!("{path}?fieldManager=a"), "application/apply-patch+yaml", marked).await.expect(201);
    s.patch(&path, "merge", json!({})).await.expect(200);
    s.get(&path).await.expect(404);
}

#[tokio::test]
async fn a_collection_is_deleted_in_order_until_a_refusal() {
    let s = TestServer::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["a", "b", "c"] {
        s.post(maps, json!({ "metadata": { "name": name, "labels": { "of": "us" } } })).await.expect(201);
    }
    let uid = s.get(&format!("{maps}/a")).await.expect(200)["metadata"]["uid"].clone();
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": { "uid": uid } });
    s.delete(&format!("{maps}?labelSelector=of%3Dus"), Some(options)).await.expect(409);
    for (name, code) in [("a", 404), ("b", 200), ("c", 200)] {
        s.get(&format!("{maps}/{name}")).await.expect(code);
    }
}

/// The pod garbage collector deletes marked pods without a node. It may do so between the two steps of the request that
/// marked the pod, more than once: that request still succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_others_finish_succeeds() {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let at = format!("{PODS}/p");
    let now = format!("{at}?gracePeriodSeconds=0");
    let collect = || async {
        loop {
            let pod = s.get(&at).await;
            if pod.code == 404 {
                return;
            }
            if pod.body["metadata"]["deletionTimestamp"].is_null() {
                tokio::task::yield_now().await;
            } else {
                s.delete(&now, None).await;
            }
        }
    };
    for _ in 0..100 {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(s.post(PODS, pod).await.code, 201);
        let (deleted, _) = tokio::join!(s.delete(&now, None), futures::future::join_all((0..4).map(|_| collect())));
        assert_eq!(deleted.code, 200, "{:?}", deleted.body);
    }
}
