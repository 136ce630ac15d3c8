//! API servers over a real etcd: the form of stored objects, and several servers on one store. A program of its own,
//! because it needs etcd; without one its tests print that they are skipped.

// In a test, a panic is the report.
#![allow(clippy::unwrap_used)]

#[path = "../../../store/tests/support/etcd.rs"]
#[allow(dead_code, reason = "this program uses its part")]
mod etcd;
mod rolling_restart;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use corten_apiserver::{Body, Config, InProcess, Server, StorageMediaType, StoreOverride, Stores, User, WatchEvent};
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
    let is_identity =
        |lease: &&Value| lease["metadata"]["labels"]["apiserver.kubernetes.io/identity"] == "kube-apiserver";
    until("two identities", async || {
        let leases = one.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").await;
        leases["items"].as_array().unwrap().iter().filter(is_identity).count() == 2
    })
    .await;
    // A server that stops leaves the endpoints while it still serves, and is not ready.
    other.server.announce_shutdown().await;
    assert_eq!(endpoints().await, (both[..1].to_vec(), both[..1].to_vec()));
    assert_eq!(other.call("GET", "/readyz", Value::Null).await.0, 500);
    assert_eq!(other.call("GET", PODS, Value::Null).await.0, 200);
    // The last server stays: clients that find it again need its address.
    one.server.announce_shutdown().await;
    assert_eq!(endpoints().await.0, both[..1]);
}

/// Starts a server whose Events and Leases are in a second etcd.
async fn with_overrides(main: &EtcdCluster, second: &EtcdCluster, config: Config) -> ApiServer {
    let resources = vec!["/events".to_owned(), "coordination.k8s.io/leases".to_owned()];
    let overrides = vec![StoreOverride { store: second.open().await, resources }];
    let server = Server::with_stores(config, Stores { main: main.open().await, overrides }).await.unwrap();
    let admin = server.in_process(User::new("admin", &["system:masters"]));
    ApiServer { server, admin }
}

/// Returns the resourceVersion of an object or a list.
fn version(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn resources_with_a_store_of_their_own_count_its_revisions() {
    let Some(main) = EtcdCluster::start(1) else { return };
    let Some(second) = EtcdCluster::start(1) else { return };
    let key = key();
    // The second store is far ahead, so that a revision of the one would not exist in the other.
    let far = second.open().await;
    for number in 0..500 {
        far.commit(vec![Op::put("ahead", number.to_string(), Expect::Any)]).await.unwrap();
    }
    let ahead = far.current().await.unwrap();
    // A key of an overridden resource that the main store has from before is not read.
    let before = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                         "metadata": { "name": "old", "namespace": "default", "uid": "1" } });
    let open = main.open().await;
    open.commit(vec![Op::put("/registry/leases/default/old", before.to_string(), Expect::Absent)]).await.unwrap();

    let one = with_overrides(&main, &second, config(1, &key)).await;
    let other = with_overrides(&main, &second, config(2, &key)).await;
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    assert_eq!(one.get(LEASES).await["items"].as_array().unwrap().len(), 0);
    let list = other.get(LEASES).await;
    let mut leases = other.watch(&format!("{LEASES}?watch=1&resourceVersion={}", version(&list))).await;
    let mut pods = other.watch(&format!("{PODS}?watch=1&resourceVersion={}", version(&other.get(PODS).await))).await;
    for number in 0..10 {
        let name = format!("both-{number}");
        let lease = one.post(LEASES, json!({ "metadata": { "name": name } })).await;
        let pod = one.post(PODS, pod(&name)).await;
        assert!(version(&lease) > ahead && version(&pod) < ahead, "each store counts for itself");
        // Every read of the other server has the acknowledged write, at its own store's revision.
        let list = other.get(LEASES).await;
        assert!(version(&list) >= version(&lease));
        assert_eq!(list["items"].as_array().unwrap().len(), number + 1);
        let at = other.get(&format!("{LEASES}?resourceVersion={}", version(&lease))).await;
        assert!(version(&at) >= version(&lease));
        assert!(version(&other.get(PODS).await) < ahead);
        for (events, created) in [(&mut leases, &lease), (&mut pods, &pod)] {
            let event = tokio::time::timeout(PATIENCE, events.next()).await.expect("an event").unwrap();
            let WatchEvent::Added(object) = event else { panic!("{name}: not added") };
            assert_eq!((object.header.name.as_str(), object.revision), (name.as_str(), version(created)));
        }
        let page = other.get(&format!("{LEASES}?limit=1")).await;
        assert_eq!(page["items"].as_array().unwrap().len(), 1);
        if let Some(token) = page["metadata"]["continue"].as_str() {
            let rest = other.get(&format!("{LEASES}?limit=100&continue={token}")).await;
            assert_eq!(rest["items"].as_array().unwrap().len(), number);
        }
    }
    // A stale update conflicts in the second store too, and events expire there by a lease of that store.
    let mut stale = one.get(&format!("{LEASES}/both-0")).await;
    stale["spec"] = json!({ "holderIdentity": "a" });
    assert_eq!(other.call("PUT", &format!("{LEASES}/both-0"), stale.clone()).await.0, 200);
    assert_eq!(one.call("PUT", &format!("{LEASES}/both-0"), stale).await.0, 409);
    let event = json!({ "metadata": { "name": "e" }, "involvedObject": { "namespace": "default" }, "reason": "r" });
    one.post("/api/v1/namespaces/default/events", event).await;
    let stored = far.get(b"/registry/events/default/e").await.unwrap().1.expect("the event is in its store");
    assert!(stored.lease != 0);
    assert_eq!(open.get(b"/registry/events/default/e").await.unwrap().1, None);
    assert_eq!(far.get(b"/registry/pods/default/both-0").await.unwrap().1, None);

    // An object and its quota in two stores: the quota is charged, and its limit holds.
    let quota =
        json!({ "metadata": { "name": "q" }, "spec": { "hard": { "count/leases.coordination.k8s.io": "11" } } });
    one.post("/api/v1/namespaces/default/resourcequotas", quota.clone()).await;
    let status = json!({ "metadata": { "name": "q" }, "spec": quota["spec"],
        "status": { "hard": quota["spec"]["hard"], "used": { "count/leases.coordination.k8s.io": "10" } } });
    let path = "/api/v1/namespaces/default/resourcequotas/q/status";
    assert_eq!(one.call("PUT", path, status).await.0, 200);
    assert_eq!(one.call("POST", LEASES, json!({ "metadata": { "name": "last" } })).await.0, 201);
    assert_eq!(other.call("POST", LEASES, json!({ "metadata": { "name": "too-many" } })).await.0, 403);
    assert_eq!(one.call("GET", "/readyz/etcd-override-readiness-0", Value::Null).await.0, 200);
    assert_eq!(one.call("GET", "/livez/etcd-override-0", Value::Null).await.0, 200);
    assert_eq!(one.call("GET", "/livez/etcd-override-1", Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resource_that_is_not_built_in_has_no_store_of_its_own() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let key = key();
    for (resources, expected) in [
        (vec!["example.com/tests"], "there is no built-in resource example.com/tests that could have its own store"),
        (vec!["/events", "events.k8s.io/events"], "the resource events.k8s.io/events has two stores"),
    ] {
        let resources = resources.into_iter().map(str::to_owned).collect();
        let overrides = vec![StoreOverride { store: cluster.open().await, resources }];
        let started = Server::with_stores(config(1, &key), Stores { main: cluster.open().await, overrides }).await;
        let error = started.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_at_different_ports_have_a_slice_each() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let key = key();
    let one = ApiServer::start(&cluster, Config { port: 7443, ..config(1, &key) }).await;
    let two = ApiServer::start(&cluster, Config { port: 6443, ..config(2, &key) }).await;
    let three = ApiServer::start(&cluster, Config { port: 7443, ..config(3, &key) }).await;
    let endpoints = async || {
        let subsets = one.get("/api/v1/namespaces/default/endpoints/kubernetes").await["subsets"].clone();
        let slices = one.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices").await;
        let line = |object: &Value, addresses: &str, ip: &str| {
            let ips = object[addresses].as_array().into_iter().flatten();
            let ips: Vec<&str> = ips.filter_map(|one| one.pointer(ip)?.as_str()).collect();
            format!("{} {}", object["ports"][0]["port"], ips.join(" "))
        };
        let subsets = subsets.as_array().into_iter().flatten().map(|subset| line(subset, "addresses", "/ip"));
        let slices = slices["items"].as_array().into_iter().flatten().map(|slice| {
            let name = slice["metadata"]["name"].as_str().unwrap_or_default();
            format!("{name} {}", line(slice, "endpoints", "/addresses/0"))
        });
        subsets.chain(slices).collect::<Vec<_>>()
    };
    let expected = [
        "6443 127.0.0.2",
        "7443 127.0.0.1 127.0.0.3",
        "kubernetes 6443 127.0.0.2",
        "kubernetes-7443 7443 127.0.0.1 127.0.0.3",
    ];
    until("a slice for each port", async || endpoints().await == expected).await;
    // The servers agree: none changes the objects of another.
    let version = async || {
        let slice = one.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").await;
        slice["metadata"]["resourceVersion"].clone()
    };
    let before = version().await;
    three.server.announce_shutdown().await;
    until("two servers", async || endpoints().await[1] == "7443 127.0.0.1").await;
    assert_eq!(version().await, before);
    // The slice of a port goes with its last server.
    two.server.announce_shutdown().await;
    until("one server", async || endpoints().await == ["7443 127.0.0.1", "kubernetes 7443 127.0.0.1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_found_by_its_peers_while_it_runs() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let server = ApiServer::start(&cluster, Config { encryption_keys: Vec::new(), ..config(1, &key()) }).await;
    let store = cluster.open().await;
    let peers =
        async || store.range(corten_store::Range::prefix(b"/registry/peerserverleases/")).await.unwrap().entries;
    until("the address for peers", async || peers().await.len() == 1).await;
    let found = peers().await.remove(0);
    // The identity is that of the Lease, a hash of the machine's name.
    let leases = server.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases").await;
    let identity = leases["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(found.key, format!("/registry/peerserverleases/{identity}").as_bytes());
    assert!(found.value.starts_with(b"k8s\0") && found.lease != 0);
    let holds = |part: &[u8]| found.value.windows(part.len()).any(|window| window == part);
    for part in [b"apiserverIdentity".as_slice(), identity.as_bytes(), b"127.0.0.1", b"https", b"Endpoints"] {
        assert!(holds(part), "{}", String::from_utf8_lossy(part));
    }
    server.server.announce_shutdown().await;
    assert_eq!(peers().await, []);
}

/// Returns the reasons of the Events on an object, in order.
async fn reasons(server: &ApiServer, name: &str) -> BTreeSet<String> {
    let events = server.get("/apis/events.k8s.io/v1/events").await;
    let of = events["items"].as_array().unwrap().iter().filter(|event| event["regarding"]["name"] == name);
    of.filter_map(|event| event["reason"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn allocations_that_another_writer_broke_are_repaired() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let key = key();
    let config =
        || Config { encryption_keys: Vec::new(), storage_media_type: StorageMediaType::Json, ..config(1, &key) };
    let service =
        |name: &str| json!({ "metadata": { "name": name }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
    let server = ApiServer::start(&cluster, config()).await;
    let one = server.post(SERVICES, service("one")).await;
    let ip = one["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let port = one["spec"]["ports"][0]["nodePort"].clone();
    server.server.shut_down();
    server.server.ended().await;

    // Another writer gives the port and the address to a second Service, and loses those of the first.
    let store = cluster.open().await;
    let mut two: Value =
        serde_json::from_slice(&store.get(b"/registry/services/specs/default/one").await.unwrap().1.unwrap().value)
            .unwrap();
    two["metadata"]["name"] = "two".into();
    two["metadata"]["uid"] = "22222222-2222-2222-2222-222222222222".into();
    let empty =
        json!({ "apiVersion": "v1", "kind": "RangeAllocation", "metadata": {}, "range": "30000-32767", "data": "" });
    let ops = vec![
        Op::put("/registry/services/specs/default/two", two.to_string(), Expect::Absent),
        Op::put("/registry/ranges/servicenodeports", empty.to_string(), Expect::Any),
        Op::delete(format!("/registry/ipaddresses/{ip}"), Expect::Any),
    ];
    store.commit(ops).await.unwrap();

    let server = ApiServer::start(&cluster, config()).await;
    let expected = |all: &[&str]| all.iter().map(|reason| (*reason).to_owned()).collect::<BTreeSet<_>>();
    let of_one = expected(&["ClusterIPNotAllocated", "PortNotAllocated"]);
    let of_two = expected(&["ClusterIPAlreadyAllocated", "PortAlreadyAllocated"]);
    until("the Events", async || {
        reasons(&server, "one").await == of_one && reasons(&server, "two").await.is_superset(&of_two)
    })
    .await;
    let path = format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}");
    until("the address", async || server.call("GET", &path, Value::Null).await.0 == 200).await;
    assert_eq!(server.get(&path).await["spec"]["parentRef"]["name"], "one");
    // The bitmap has the port again: no other Service gets it.
    let mut third = service("three");
    third["spec"]["ports"][0]["nodePort"] = port;
    assert_eq!(server.call("POST", SERVICES, third).await.0, 422);
    // An address that a client deletes comes back.
    assert_eq!(server.call("DELETE", &path, Value::Null).await.0, 200);
    until("the address again", async || server.call("GET", &path, Value::Null).await.0 == 200).await;
}
