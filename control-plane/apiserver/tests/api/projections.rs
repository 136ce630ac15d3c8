//! PodAddresses: the fields that a projection of pods shows on every path, and that nothing else is shown.

use crate::server::{TestServer, next, send};
use corten_apiserver::{Config, KubeletClient, WatchEvent};
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::{Value, json};

const ADDRESSES: &str = "/apis/network.corten.dev/v1/podaddresses";
const IN_SHOP: &str = "/apis/network.corten.dev/v1/namespaces/shop/podaddresses";
const PODS: &str = "/api/v1/namespaces/shop/pods";
/// Strings that no reader of addresses may see.
const SECRET: &str = "hunter2";

/// Starts a server that has nodes.
async fn start() -> TestServer {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
    let kubelet = KubeletClient { ca: certificate.clone(), retired: None, certificate, key: key.serialize_pem() };
    let server = TestServer::with(Config { kubelet: Some(kubelet), ..crate::server::config() }).await;
    server.post("/api/v1/namespaces", json!({ "metadata": { "name": "shop" } })).await.expect(201);
    let account = json!({ "metadata": { "name": "default" } });
    server.post("/api/v1/namespaces/shop/serviceaccounts", account).await.expect(201);
    server
}

fn pod(name: &str, app: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": app }, "annotations": { "note": SECRET } },
        "spec": {
            "nodeName": "n1",
            "volumes": [{ "name": "v", "hostPath": { "path": format!("/{SECRET}") } }],
            "containers": [{
                "name": "c", "image": format!("registry/{SECRET}"), "command": [SECRET],
                "env": [{ "name": "PASSWORD", "value": SECRET }],
                "ports": [{ "name": "http", "containerPort": 80 }],
            }],
        },
    })
}

async fn create(server: &TestServer, name: &str, app: &str) {
    server.post(PODS, pod(name, app)).await.expect(201);
    let status =
        json!({ "phase": "Running", "message": SECRET, "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }] });
    let status = json!({ "status": status });
    server.patch(&format!("{PODS}/{name}/status"), "merge", status).await.expect(200);
}

#[track_caller]
fn names(list: &Value) -> Vec<&str> {
    assert!(!list.to_string().contains(SECRET), "{list}");
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn reads_show_addresses_and_nothing_else_of_a_pod() {
    let server = start().await;
    create(&server, "a", "web").await;
    create(&server, "b", "db").await;

    let one = server.get(&format!("{IN_SHOP}/a")).await.expect(200);
    let stored = server.get(&format!("{PODS}/a")).await.expect(200);
    for field in ["uid", "resourceVersion", "labels", "creationTimestamp"] {
        assert_eq!(one["metadata"][field], stored["metadata"][field], "{field}");
    }
    assert_eq!(one["metadata"].as_object().unwrap().len(), 6, "{one}");
    let mut rest = one.clone();
    rest.as_object_mut().unwrap().remove("metadata");
    let expected = json!({
        "apiVersion": "network.corten.dev/v1", "kind": "PodAddress", "nodeName": "n1", "phase": "Running",
        "podIPs": [{ "ip": "10.0.0.1" }], "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
    });
    assert_eq!(rest, expected);

    let all = server.get(ADDRESSES).await.expect(200);
    assert_eq!((names(&all), &all["kind"]), (vec!["a", "b"], &json!("PodAddressList")));
    assert_eq!(all["items"][0], one);
    assert_eq!(names(&server.get(&format!("{IN_SHOP}?labelSelector=app=db")).await.expect(200)), ["b"]);
    assert_eq!(names(&server.get(&format!("{ADDRESSES}?fieldSelector=metadata.name=a")).await.expect(200)), ["a"]);
    let first = server.get(&format!("{ADDRESSES}?limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{ADDRESSES}?limit=1&continue={token}")).await.expect(200);
    assert_eq!((names(&first), names(&second)), (vec!["a"], vec!["b"]));
    let revision = all["metadata"]["resourceVersion"].as_str().unwrap();
    let past = format!("{ADDRESSES}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(server.get(&past).await.expect(200)["items"], all["items"]);
    assert_eq!(server.get(&format!("{IN_SHOP}/none")).await.code, 404);
}

#[tokio::test]
async fn other_forms_of_a_response_show_no_more() {
    let server = start().await;
    create(&server, "a", "web").await;
    let admin = server.user("admin", &["system:masters"]);
    for form in [
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/yaml",
    ] {
        for path in [ADDRESSES.to_owned(), format!("{ADDRESSES}?includeObject=Object")] {
            let answer = send(&admin, "GET", &path, bytes::Bytes::new(), &[("accept", form)]).await;
            let text = answer.expect(200).to_string();
            assert!(text.contains("\"a\"") || text.contains("name: a"), "{form}: {text}");
            assert!(!text.contains(SECRET), "{form}: {text}");
        }
    }
    for path in [format!("{IN_SHOP}/a/status"), format!("{IN_SHOP}/a/log"), format!("{IN_SHOP}/a/exec")] {
        assert_eq!(server.get(&path).await.code, 404, "{path}");
    }
}

/// Returns the events of a watch up to one.
async fn until(events: &mut BoxStream<'static, WatchEvent>, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|event| event != last) {
        seen.push(next(events).await);
    }
    seen
}

#[tokio::test]
async fn watches_follow_the_pods_and_show_no_more() {
    let server = start().await;
    create(&server, "a", "web").await;
    let streamed = "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut pods = server.watch(&format!("{PODS}?{streamed}")).await;
    let mut all = server.watch(&format!("{IN_SHOP}?{streamed}")).await;
    let mut web = server.watch(&format!("{ADDRESSES}?watch=1&labelSelector=app=web")).await;
    let mut shown = server.watch(&format!("{ADDRESSES}?watch=1")).await;
    let labels = json!({ "metadata": { "labels": { "app": "db" } } });
    server.patch(&format!("{PODS}/a"), "merge", labels).await.expect(200);
    server.delete(&format!("{PODS}/a"), Some(json!({ "gracePeriodSeconds": 0 }))).await.expect(200);
    create(&server, "b", "web").await;
    let seen = until(&mut all, "ADDED b").await;
    assert_eq!(seen, until(&mut pods, "ADDED b").await);
    assert_eq!(seen[..3], ["ADDED a", "BOOKMARK true", "MODIFIED a"]);
    assert_eq!(until(&mut web, "ADDED b").await, ["ADDED a", "DELETED a", "ADDED b"]);
    for _ in 0..seen.len() {
        let event = tokio::time::timeout(crate::server::PATIENCE, shown.next()).await.unwrap();
        let (WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) = event.unwrap()
        else {
            panic!("no object");
        };
        let text = String::from_utf8(object.wire().to_vec()).unwrap();
        assert!(text.starts_with("{\"apiVersion\":\"network.corten.dev/v1\",\"kind\":\"PodAddress\""), "{text}");
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[tokio::test]
async fn addresses_cannot_be_written_and_their_group_cannot_be_taken() {
    let server = start().await;
    create(&server, "a", "web").await;
    let address = server.get(&format!("{IN_SHOP}/a")).await.expect(200);
    assert_eq!(server.post(IN_SHOP, address.clone()).await.code, 405);
    assert_eq!(server.put(&format!("{IN_SHOP}/a"), address).await.code, 405);
    let patch = json!({ "podIPs": [{ "ip": "10.0.0.9" }] });
    assert_eq!(server.patch(&format!("{IN_SHOP}/a"), "merge", patch).await.code, 405);
    assert_eq!(server.delete(&format!("{IN_SHOP}/a"), None).await.code, 405);
    assert_eq!(server.delete(IN_SHOP, None).await.code, 405);

    let names = json!({ "plural": "podaddresses", "kind": "PodAddress" });
    let schema = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let version = json!({ "name": "v1", "served": true, "storage": true, "schema": schema });
    let definition = json!({
        "metadata": { "name": "podaddresses.network.corten.dev" },
        "spec": { "group": "network.corten.dev", "scope": "Namespaced", "names": names, "versions": [version] },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.post(definitions, definition).await.expect(201);
    // CustomResourceDefinitions are reconciled in order: once the next is served, this one was reconciled.
    let names = json!({ "plural": "others", "kind": "Other" });
    let other = json!({
        "metadata": { "name": "others.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version] },
    });
    server.post(definitions, other).await.expect(201);
    server.until("/apis/example.com/v1/others", 200).await;
    let all = server.get(ADDRESSES).await.expect(200);
    assert_eq!((all["items"].as_array().unwrap().len(), &all["items"][0]["nodeName"]), (1, &json!("n1")));
}

#[tokio::test]
async fn discovery_and_openapi_have_the_kind() {
    let server = start().await;
    let resources = server.get("/apis/network.corten.dev/v1").await.expect(200);
    assert_eq!(resources["resources"].as_array().unwrap().len(), 1);
    assert_eq!(resources["resources"][0]["verbs"], json!(["get", "list", "watch"]));
    let document = server.get("/openapi/v3/apis/network.corten.dev/v1").await.expect(200);
    let kind = &document["components"]["schemas"]["dev.corten.network.v1.PodAddress"]["properties"];
    assert_eq!(kind["nodeName"]["type"], "string", "{kind}");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.values().all(|path| path.get("post").is_none() && path.get("delete").is_none()), "{paths:?}");
}
