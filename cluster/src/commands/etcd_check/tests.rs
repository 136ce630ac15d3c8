//! Tests of the check: one store of every form, and a table of what keeps a server from running on an etcd.

use std::fs::File;
use std::sync::Arc;

use corten_etcd::etcdserverpb::alarm_request::AlarmAction;
use corten_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use corten_etcd::etcdserverpb::maintenance_server::{Maintenance, MaintenanceServer};
use corten_etcd::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, HashKvRequest, HashKvResponse,
    HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse, ResponseHeader, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse,
};
use corten_store::{Config, Embedded, Expect, Op};
use serde_json::json;
use tonic::{Request, Response, Status};

use self::real::EtcdCluster;
use super::*;

#[path = "../../../../control-plane/store/tests/support/etcd.rs"]
#[allow(dead_code, reason = "these tests use their part")]
mod real;

/// The keys of an EncryptionConfiguration that seals Secrets and one group of custom resources.
const ENCRYPTION: &str = "
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox: {keys: [{name: k, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}
  - identity: {}
";

fn decoder(configuration: Option<&str>) -> Decoder {
    let reader = StoredReader::new(configuration.map(str::to_owned)).unwrap();
    Decoder::new("/registry/", reader, configuration.is_some())
}

/// Makes a store with these keys.
async fn store(dir: &Path, keys: &[(&str, Vec<u8>)]) -> Arc<Embedded> {
    let store = Embedded::open(Config::new(dir)).unwrap();
    for (key, value) in keys {
        store.commit(vec![Op::put((*key).to_owned(), value.clone(), Expect::Any)]).await.unwrap();
    }
    store
}

fn keys() -> Vec<(&'static str, Vec<u8>)> {
    let json = |value: serde_json::Value| value.to_string().into_bytes();
    let protobuf = |value: serde_json::Value| corten_protobuf::encode_any(&value).unwrap();
    let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "foos.e.io" },
        "spec": { "group": "e.io", "version": "v1", "names": { "kind": "Foo", "plural": "foos" } } });
    let scaler = json!({ "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "h", "namespace": "a" }, "spec": { "maxReplicas": 3 } });
    let policy = json!({ "apiVersion": "admissionregistration.k8s.io/v1beta1", "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": "p" }, "spec": { "reinvocationPolicy": "Never" } });
    let level = json!({ "apiVersion": "flowcontrol.apiserver.k8s.io/v1beta3", "kind": "PriorityLevelConfiguration",
        "metadata": { "name": "l" }, "spec": { "type": "Exempt" } });
    let candidate = json!({ "apiVersion": "coordination.k8s.io/v1beta1", "kind": "LeaseCandidate",
        "metadata": { "name": "c", "namespace": "a" }, "spec": { "leaseName": "l" } });
    vec![
        (
            "/registry/configmaps/a/b",
            json(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "b" } })),
        ),
        ("/registry/configmaps/a/yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml}\n".to_vec()),
        ("/registry/apiextensions.k8s.io/customresourcedefinitions/foos.e.io", json(definition)),
        ("/registry/e.io/foos/a/x", json(json!({ "apiVersion": "e.io/v1", "kind": "Foo" }))),
        ("/registry/e.io/foos/a/old", json(json!({ "apiVersion": "e.io/v0", "kind": "Foo" }))),
        ("/registry/e.io/bars/a/x", json(json!({ "apiVersion": "e.io/v1", "kind": "Bar" }))),
        ("/registry/horizontalpodautoscalers/a/h", protobuf(scaler.clone())),
        ("/registry/horizontalpodautoscalers/a/i", json(scaler)),
        ("/registry/mutatingadmissionpolicies/p", json(policy)),
        ("/registry/prioritylevelconfigurations/l", json(level)),
        ("/registry/leasecandidates/a/c", json(candidate)),
        ("/registry/secrets/a/s", b"k8s:enc:secretbox:v1:corten:xyz".to_vec()),
        ("/registry/pods/a/broken", b"k8s\0\x0a\xff".to_vec()),
        (
            "/registry/pods/a/other",
            json(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "other" } })),
        ),
        (
            "/registry/ranges/servicenodeports",
            json(json!({ "apiVersion": "v1", "kind": "RangeAllocation", "range": "1-2" })),
        ),
        ("compact_rev_key", b"100".to_vec()),
        ("/other/program", b"\x01".to_vec()),
    ]
}

#[tokio::test]
async fn a_store_and_its_snapshot_have_the_same_report() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(&folder.path().join("store"), &keys()).await;
    let live = check_store(&*store, decoder(None), "/registry/", 20).await.unwrap();
    let path = folder.path().join("snapshot.db");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let member =
        snapshot::Member { id: 1, name: "a".to_owned(), peer_urls: Vec::new(), client_urls: Vec::new(), applied: 1 };
    snapshot::save(&store.contents(), &member, &file).unwrap();
    let stored = check_snapshot(&path, decoder(None), "/registry/", 20).await.unwrap();
    assert_eq!(live.to_string(), stored.to_string());
    let text = live.to_string();
    for expected in [
        "/registry/e.io/bars/a/x: no CustomResourceDefinition of the store defines Bar of e.io/v1",
        "/registry/e.io/foos/a/old: its CustomResourceDefinition does not have e.io/v0",
        "/registry/pods/a/broken: ",
        "/registry/pods/a/other: Service of v1 is not a Pod",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert_eq!((live.failures(), live.keys()), (4, 17), "{text}");
    let rows: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        "v1 ConfigMap json 2",
        "e.io/v1 Foo json 1",
        "autoscaling/v1 HorizontalPodAutoscaler protobuf 1",
        "autoscaling/v1 HorizontalPodAutoscaler json 1",
        "admissionregistration.k8s.io/v1beta1 MutatingAdmissionPolicy json 1",
        "flowcontrol.apiserver.k8s.io/v1beta3 PriorityLevelConfiguration json 1",
        "coordination.k8s.io/v1beta1 LeaseCandidate not served 1",
        "v1 RangeAllocation json 1",
        "- - encrypted: secretbox 1",
        "- - internal 1",
    ] {
        assert!(rows.iter().any(|row| row == expected), "{expected} in {text}");
    }
}

/// Returns the key and the value of a Secret as a server with these keys stores it.
async fn sealed_secret(folder: &Path) -> (String, Vec<u8>) {
    let store = Embedded::open(Config::new(folder)).unwrap();
    let config = corten_apiserver::Config {
        encryption_configuration: Some(tokio::sync::watch::channel(ENCRYPTION.to_owned()).1),
        ..corten_apiserver::Config::default()
    };
    let server = corten_apiserver::Server::new(config, Arc::<Embedded>::clone(&store)).await.unwrap();
    let admin = server.in_process(corten_apiserver::User::new("admin", &["system:masters"]));
    let body = json!({ "metadata": { "name": "s" }, "stringData": { "a": "b" } }).to_string();
    let request = http::Request::post("/api/v1/namespaces/default/secrets").header("content-type", "application/json");
    assert_eq!(admin.call(request.body(body.into()).unwrap()).await.status(), 201);
    let key = "/registry/secrets/default/s";
    let (_, entry) = store.get(key.as_bytes()).await.unwrap();
    (key.to_owned(), entry.unwrap().value.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_values_are_read_with_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let (key, value) = sealed_secret(folder.path()).await;
    let check = async |configuration: Option<&str>, key: &str| {
        let decoder = decoder(configuration);
        let checked = decoder.decode(key.as_bytes(), &Bytes::from(value.clone())).await;
        checked
            .map(|checked| format!("{} {:?} {}", checked.decoded.kind, checked.decoded.form, checked.decoded.provider))
    };
    assert_eq!(check(Some(ENCRYPTION), &key).await.unwrap(), "Secret Json secretbox");
    assert_eq!(check(None, &key).await.unwrap(), " Sealed secretbox");
    let other = ENCRYPTION.replace("secret: AAAA", "secret: BAAA");
    let wrong = check(Some(&other), &key).await.unwrap_err();
    assert!(wrong.starts_with("no key decrypts it, which secretbox encrypted"), "{wrong}");
}

/// A member of a version that is too old.
struct OldMember;

#[tonic::async_trait]
impl Maintenance for OldMember {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let header = Some(ResponseHeader { cluster_id: 1, ..ResponseHeader::default() });
        Ok(Response::new(StatusResponse {
            version: "3.4.23".to_owned(),
            header,
            leader: 1,
            ..StatusResponse::default()
        }))
    }

    async fn alarm(&self, _: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn defragment(&self, _: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn hash_kv(&self, _: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    type SnapshotStream = futures::stream::Empty<Result<SnapshotResponse, Status>>;

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn move_leader(&self, _: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// Serves an old member on a port of the loopback; returns its URL.
async fn old_member() -> String {
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let server = tonic::transport::Server::builder().add_service(MaintenanceServer::new(OldMember));
    tokio::spawn(server.serve(address));
    format!("http://{address}")
}

async fn raise(url: &str, alarm: AlarmType) {
    let mut client = MaintenanceClient::connect(url.to_owned()).await.unwrap();
    let request = AlarmRequest { action: AlarmAction::Activate.into(), member_id: 1, alarm: alarm.into() };
    client.alarm(request).await.unwrap();
}

fn published(namespace: &str, certificate: &str) -> (String, Vec<u8>) {
    let bundle = format!("-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n");
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "ca.crt": bundle },
        "metadata": { "name": "kube-root-ca.crt", "namespace": namespace } });
    (format!("/registry/configmaps/{namespace}/kube-root-ca.crt"), map.to_string().into_bytes())
}

/// Checks the members at these URLs, and returns the sentence of the refusal; empty for none.
async fn refusal(endpoints: Vec<String>) -> String {
    let config = etcd::Config { compaction_interval: Duration::ZERO, ..etcd::Config::new(endpoints) };
    let checked = check_etcd(config, decoder(None), "/registry/", 20).await;
    let verdict = checked.and_then(|checked| checked.verdict("/registry/"));
    verdict.err().map(|error| format!("{error:#}")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reason_against_an_etcd_is_one_sentence_and_nothing_is_written() {
    let Some(healthy) = EtcdCluster::start(1) else { return };
    let start = |count| EtcdCluster::start(count).unwrap();
    let full = start(1);
    let corrupt = start(1);
    let damaged = start(1);
    let shared = start(1);
    let mut revisions = Vec::new();
    for (cluster, keys) in [
        (&healthy, vec![published("a", "one")]),
        (&full, vec![published("a", "one")]),
        (&damaged, vec![published("a", "one"), ("/registry/pods/a/x".to_owned(), b"k8s\0\x0a\xff".to_vec())]),
        (&shared, vec![published("a", "one"), published("b", "two")]),
    ] {
        let store = cluster.open().await;
        for (key, value) in keys {
            store.commit(vec![Op::put(key, value, Expect::Absent)]).await.unwrap();
        }
        revisions.push((cluster, store.current().await.unwrap()));
    }
    raise(&full.urls()[0], AlarmType::Nospace).await;
    corrupt.open().await;
    raise(&corrupt.urls()[0], AlarmType::Corrupt).await;
    let old = old_member().await;
    let nobody = "http://127.0.0.1:1".to_owned();
    for (endpoints, expected) in [
        (healthy.urls(), ""),
        (
            full.urls(),
            "etcd is in alarm NOSPACE: it takes no writes until it has space and `etcdctl alarm disarm` was run",
        ),
        (
            corrupt.urls(),
            "etcd is in alarm CORRUPT: its members do not have the same data; restore it from a snapshot of a good one",
        ),
        ([healthy.urls(), shared.urls()].concat(), "belongs to the cluster"),
        (vec![old], "has version 3.4.23; 3.5.13 or newer is needed"),
        (damaged.urls(), "1 of 2 keys cannot be decoded"),
        (
            shared.urls(),
            "two clusters write below /registry/: the CAs in the ConfigMaps kube-root-ca.crt of the namespaces a and b \
             have nothing in common",
        ),
        (vec![nobody], "no member of etcd can be used: http://127.0.0.1:1 cannot be reached"),
        (vec!["https://127.0.0.1:1".to_owned()], "https needs the CA of the members (--etcd-cafile)"),
    ] {
        let found = refusal(endpoints.clone()).await;
        let is_it = if expected.is_empty() { found.is_empty() } else { found.contains(expected) };
        assert!(is_it && !found.contains('\n'), "{endpoints:?}: {found:?} for {expected:?}");
    }
    for (cluster, revision) in revisions {
        assert_eq!(cluster.open().await.current().await.unwrap(), revision, "nothing was written");
    }
}
