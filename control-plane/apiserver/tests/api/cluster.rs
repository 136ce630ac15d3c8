//! The server's work for the cluster: allocation and quota under concurrency, encryption, expiry.

use crate::server::{TestServer, call};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn start() -> TestServer {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "default" } }))
        .await
        .expect(201);
    s
}

fn pod(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "x" } },
            "spec": { "containers": [{ "name": "c", "image": "busybox" }] } })
}

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["ports"] = json!([{ "port": 80 }]);
    json!({ "metadata": { "name": name }, "spec": spec })
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_is_allocated_twice_under_concurrency() {
    let s = start().await;
    let creations = (0..24).map(|i| {
        let admin = s.user("a", &["system:masters"]);
        let body = service(&format!("s{i}"), json!({ "type": "NodePort" }));
        tokio::spawn(async move { call(&admin, "POST", SERVICES, Some(body), "application/json").await.expect(201) })
    });
    let mut addresses = std::collections::BTreeSet::new();
    let mut ports = std::collections::BTreeSet::new();
    for creation in creations.collect::<Vec<_>>() {
        let service = creation.await.unwrap();
        addresses.insert(service["spec"]["clusterIP"].as_str().unwrap().to_owned());
        ports.insert(service["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
    }
    assert_eq!((addresses.len(), ports.len()), (24, 24));
    assert!(ports.iter().all(|port| (30000..=32767).contains(port)), "{ports:?}");
}

#[tokio::test]
async fn secrets_are_encrypted_and_events_expire() {
    let directory = tempfile::tempdir().unwrap();
    let store = corten_store::Embedded::open(corten_store::Config::new(directory.path())).unwrap();
    let config = corten_apiserver::Config {
        encryption_keys: vec![corten_apiserver::EncryptionKey::first([9; 32])],
        ..corten_apiserver::Config::default()
    };
    let server = corten_apiserver::Server::new(config, store.clone()).await.unwrap();
    let admin = server.in_process(corten_apiserver::User::new("admin", &["system:masters"]));
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "password": "hunter2" } });
    call(&admin, "POST", "/api/v1/namespaces/default/secrets", Some(secret), "application/json").await.expect(201);
    let event = json!({ "metadata": { "name": "e" }, "involvedObject": { "namespace": "default" }, "message": "m" });
    call(&admin, "POST", "/api/v1/namespaces/default/events", Some(event), "application/json").await.expect(201);
    let read = async |key: &str| {
        let store: &dyn corten_store::Store = &*store;
        store.get(key.as_bytes()).await.unwrap().1.unwrap()
    };
    let sealed = read("/registry/secrets/default/s").await;
    assert!(sealed.value.starts_with(b"k8s:enc:secretbox:v1:"));
    assert!(!sealed.value.windows(8).any(|w| w == b"aHVudGVy"), "the secret is readable in the store");
    let lease = read("/registry/events/default/e").await.lease;
    assert_ne!(lease, 0, "an event lives by a lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_never_exceeded() {
    let s = start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({ "pods": "3", "requests.cpu": "1", "count/configmaps": "1" });
    let quota = s.post(quotas, json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } })).await.expect(201);
    assert_eq!(quota["status"]["used"]["pods"], "0");
    assert_eq!(
        s.post(PODS, pod("p")).await.message(403),
        "pods \"p\" is forbidden: failed quota: q: must specify requests.cpu"
    );
    let sized = |name: String| {
        let mut body = pod(&name);
        body["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "200m" } });
        body
    };
    let creations = (0..10).map(|i| {
        let (admin, body) = (s.user("a", &["system:masters"]), sized(format!("p{i}")));
        tokio::spawn(async move { call(&admin, "POST", PODS, Some(body), "application/json").await })
    });
    let mut created = Vec::new();
    for creation in creations.collect::<Vec<_>>() {
        let answer = creation.await.unwrap();
        match answer.code {
            201 => created.push(answer.body["metadata"]["name"].as_str().unwrap().to_owned()),
            _ => assert!(
                answer.message(403).contains("exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3")
            ),
        }
    }
    assert_eq!(created.len(), 3);
    let used = async || s.get(&format!("{quotas}/q")).await.expect(200)["status"]["used"].clone();
    assert_eq!(used().await, json!({ "pods": "3", "requests.cpu": "600m", "count/configmaps": "0" }));
    s.delete(&format!("{PODS}/{}", created[0]), None).await.expect(200);
    assert_eq!(used().await["pods"], "2");
    s.post(PODS, sized("again".to_owned())).await.expect(201);
}
