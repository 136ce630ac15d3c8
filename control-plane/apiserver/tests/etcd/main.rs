//! API servers over a real etcd: the form of stored objects, and several servers on one store. A program of its own,
//! because it needs etcd; without one its tests print that they are skipped.

// In a test, a panic is the report.
#![allow(clippy::unwrap_used)]

#[path = "../../../store/tests/support/etcd.rs"]
#[allow(dead_code, reason = "this program uses its part")]
mod etcd;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use corten_apiserver::{Body, Config, InProcess, Server, StorageMediaType, User, WatchEvent};
use corten_store::{Expect, Op, Store};
use etcd::EtcdCluster;
use futures::StreamExt;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(300);
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

/// One of several API servers.
struct ApiServer {
    server: Arc<Server>,
    admin: InProcess,
}

/// Returns the settings of the server with this number; those of one cluster share their keys.
fn config(number: u8, key: &str) -> Config {
    Config {
        advertise_address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, number)),
        hostname: Some(format!("server-{number}")),
        service_account_keys: vec![key.to_owned()],
        encryption_keys: vec![corten_apiserver::EncryptionKey::first([3; 32])],
        storage_media_type: StorageMediaType::Protobuf,
        // No controller makes the account of a namespace here.
        disabled_admission_plugins: vec!["ServiceAccount".to_owned()],
        ..Config::default()
    }
}

impl ApiServer {
    async fn start(cluster: &EtcdCluster, config: Config) -> ApiServer {
        let server = Server::new(config, cluster.open().await).await.unwrap();
        let admin = server.in_process(User::new("admin", &["system:masters"]));
        ApiServer { server, admin }
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let bytes = if body.is_null() { String::new() } else { body.to_string() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let (parts, body) = self.admin.call(request.body(bytes.into()).unwrap()).await.into_parts();
        let Body::Full(bytes) = body else { panic!("not a whole body") };
        (parts.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (code, body) = self.call("GET", path, Value::Null).await;
        assert_eq!(code, 200, "{path}: {body}");
        body
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (code, body) = self.call("POST", path, body).await;
        assert_eq!(code, 201, "{path}: {body}");
        body
    }

    async fn watch(&self, path: &str) -> futures::stream::BoxStream<'static, WatchEvent> {
        let request = http::Request::get(path).body(bytes::Bytes::new()).unwrap();
        match self.admin.call(request).await.into_body() {
            Body::Watch(watch) => watch.events(),
            other => panic!("not a watch: {other:?}"),
        }
    }
}

fn key() -> String {
    rcgen::KeyPair::generate().unwrap().serialize_pem()
}

fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }] } })
}

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, held).await.is_ok(), "{what} in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_shows_the_writes_of_another_at_once() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let key = key();
    let one = ApiServer::start(&cluster, config(1, &key)).await;
    let other = ApiServer::start(&cluster, config(2, &key)).await;
    let mut events = other.watch("/api/v1/namespaces/default/pods?watch=1&resourceVersion=0").await;
    for number in 0..20 {
        let name = format!("pod-{number}");
        let created = one.post(PODS, pod(&name)).await;
        // Every read of the other server is at least as new as the acknowledged write.
        let read = other.get(&format!("{PODS}/{name}")).await;
        assert_eq!(read["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
        assert_eq!(other.get(PODS).await["items"].as_array().unwrap().len(), number + 1);
        let event = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap();
        assert!(matches!(event, WatchEvent::Added(object) if object.header.name == name));
    }
    // A write with a version that the other server replaced conflicts.
    let mut stale = one.get(&format!("{PODS}/pod-0")).await;
    let mut newer = stale.clone();
    newer["metadata"]["labels"] = json!({ "a": "b" });
    assert_eq!(other.call("PUT", &format!("{PODS}/pod-0"), newer).await.0, 200);
    stale["metadata"]["labels"] = json!({ "a": "c" });
    assert_eq!(one.call("PUT", &format!("{PODS}/pod-0"), stale).await.0, 409);
    // A revision that only another key has does not keep a list waiting.
    let store = cluster.open().await;
    store.commit(vec![Op::put("elsewhere", "x", Expect::Any)]).await.unwrap();
    assert_eq!(one.get(PODS).await["items"].as_array().unwrap().len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_never_give_a_port_or_an_address_twice() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let key = key();
    let one = ApiServer::start(&cluster, config(1, &key)).await;
    let other = ApiServer::start(&cluster, config(2, &key)).await;
    let service = |name: String| json!({ "metadata": { "name": name }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
    let creates = (0..24).map(|number| {
        let server = if number % 2 == 0 { &one } else { &other };
        server.post(SERVICES, service(format!("s-{number}")))
    });
    let created = futures::future::join_all(creates).await;
    let ports: BTreeSet<i64> =
        created.iter().filter_map(|service| service["spec"]["ports"][0]["nodePort"].as_i64()).collect();
    let addresses: BTreeSet<&str> =
        created.iter().filter_map(|service| service["spec"]["clusterIP"].as_str()).collect();
    assert_eq!((ports.len(), addresses.len()), (24, 24));
    // A port is free again once its Service is deleted, and not before.
    let port = *ports.first().unwrap();
    let holder = created.iter().find(|service| service["spec"]["ports"][0]["nodePort"] == port).unwrap();
    let holder = holder["metadata"]["name"].as_str().unwrap();
    let mut wanted = service("again".to_owned());
    wanted["spec"]["ports"][0]["nodePort"] = port.into();
    assert_eq!(other.call("POST", SERVICES, wanted.clone()).await.0, 422);
    assert_eq!(one.call("DELETE", &format!("{SERVICES}/{holder}"), Value::Null).await.0, 200);
    other.post(SERVICES, wanted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_are_stored_where_and_as_upstream_stores_them() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let server = ApiServer::start(&cluster, Config { encryption_keys: Vec::new(), ..config(1, &key()) }).await;
    server.post(PODS, pod("a")).await;
    server.post("/api/v1/namespaces/default/secrets", json!({ "metadata": { "name": "s" } })).await;
    let crd = json!({
        "metadata": { "name": "tests.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "names": { "kind": "Test", "plural": "tests" },
                  "versions": [{ "name": "v1", "served": true, "storage": true,
                                 "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] },
    });
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await;
    let tests = "/apis/example.com/v1/namespaces/default/tests";
    let custom =
        json!({ "apiVersion": "example.com/v1", "kind": "Test", "metadata": { "name": "t" }, "spec": { "x": 1 } });
    until("the custom resource", async || server.call("POST", tests, custom.clone()).await.0 == 201).await;
    let store = cluster.open().await;
    let stored = async |key: &str| store.get(key.as_bytes()).await.unwrap().1.unwrap_or_else(|| panic!("{key}")).value;
    for key in [
        "/registry/pods/default/a",
        "/registry/secrets/default/s",
        "/registry/services/specs/default/kubernetes",
        "/registry/services/endpoints/default/kubernetes",
        "/registry/masterleases/127.0.0.1",
    ] {
        assert!(stored(key).await.starts_with(b"k8s\0"), "{key}");
    }
    assert!(stored("/registry/example.com/tests/default/t").await.starts_with(b"{"));

    // Objects of another writer, in JSON, in YAML and in an older version, are read like all others.
    let older = json!({ "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "h", "namespace": "default", "uid": "1" },
        "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "d" }, "maxReplicas": 3 } });
    let yaml =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml, namespace: default, uid: '2'}\ndata: {a: b}\n";
    for (key, value) in [
        ("/registry/horizontalpodautoscalers/default/h", older.to_string()),
        ("/registry/configmaps/default/from-yaml", yaml.to_owned()),
    ] {
        store.commit(vec![Op::put(key, value, Expect::Absent)]).await.unwrap();
    }
    let scaler = server.get("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h").await;
    assert_eq!(scaler["spec"]["minReplicas"], 1, "it has its defaults: {scaler}");
    assert_eq!(server.get("/api/v1/namespaces/default/configmaps/from-yaml").await["data"]["a"], "b");
    // A change of such an object is written in today's form.
    let change = json!({ "metadata": { "labels": { "l": "1" } } });
    let patch = http::Request::patch("/api/v1/namespaces/default/configmaps/from-yaml")
        .header("content-type", "application/merge-patch+json")
        .body(change.to_string().into())
        .unwrap();
    assert_eq!(server.admin.call(patch).await.status(), 200);
    assert!(stored("/registry/configmaps/default/from-yaml").await.starts_with(b"k8s\0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_endpoints_of_the_api_are_the_servers_that_serve() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let key = key();
    let one = ApiServer::start(&cluster, config(1, &key)).await;
    let other = ApiServer::start(&cluster, config(2, &key)).await;
    let endpoints = async || {
        let endpoints = one.get("/api/v1/namespaces/default/endpoints/kubernetes").await;
        let addresses = endpoints["subsets"][0]["addresses"].as_array().cloned().unwrap_or_default();
        let slice = one.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").await;
        assert_eq!(endpoints["subsets"].as_array().map(Vec::len), Some(1), "they are never empty");
        let in_slice = slice["endpoints"].as_array().cloned().unwrap_or_default();
        let of = |list: &[Value], pointer: &str| -> Vec<String> {
            list.iter().filter_map(|one| one.pointer(pointer)?.as_str().map(str::to_owned)).collect()
        };
        (of(&addresses, "/ip"), of(&in_slice, "/addresses/0"))
    };
    let both = vec!["127.0.0.1".to_owned(), "127.0.0.2".to_owned()];
    until("both servers", async || endpoints().await == (both.clone(), both.clone())).await;
    let leases = one.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").await;
    let is_identity = |lease: &&Value| {
        lease["metadata"]["labels"]["apiserver.kubernetes.io/identity"] == "kube-apiserver"
            || lease["metadata"]["labels"]["apicore.kubernetes.io/identity"] == "kube-apiserver"
    };
    assert_eq!(leases["items"].as_array().unwrap().iter().filter(is_identity).count(), 2);
    // A server that stops leaves the endpoints while it still serves, and is not ready.
    other.server.announce_shutdown().await;
    assert_eq!(endpoints().await, (both[..1].to_vec(), both[..1].to_vec()));
    assert_eq!(other.call("GET", "/readyz", Value::Null).await.0, 500);
    assert_eq!(other.call("GET", PODS, Value::Null).await.0, 200);
    // The last server stays: clients that find it again need its address.
    one.server.announce_shutdown().await;
    assert_eq!(endpoints().await.0, both[..1]);
}
