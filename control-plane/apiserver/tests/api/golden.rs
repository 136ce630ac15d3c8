//! Upstream's golden objects, one of every kind with every field set, sent to the server as JSON, YAML and protobuf.
//!
//! The objects are not part of the project: `KUBERNETES_FACTS` names their folder, which `cargo xtask test` sets where it lies
//! beside the checkout. Without the variable the test says that it was skipped. The objects' values are made up, so that
//! validation refuses most of them; then all three forms must be refused in the same words, after every field was read.

use std::path::PathBuf;

use crate::server::{Answer, TestServer, send};
use corten_api::{Kind, Storage};
use serde_json::{Value, json};

fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("KUBERNETES_FACTS").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: KUBERNETES_FACTS does not name a directory with data of upstream");
    }
    folder.map(|folder| folder.join("wire"))
}

/// Returns the file of a kind's golden object, without its extension.
fn file_of(kind: &Kind) -> String {
    let group = if kind.group.is_empty() { "core" } else { &kind.group };
    format!("{group}.{}.{}", kind.version, kind.kind)
}

fn collection(kind: &Kind) -> String {
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
    format!("{root}/{}{namespace}/{}", kind.version, kind.plural)
}

/// Returns the object with metadata that a create may have.
fn creatable(kind: &Kind, golden: &Value) -> Value {
    let mut object = golden.clone();
    let name = match kind.kind.as_str() {
        "IPAddress" => "10.96.0.7",
        _ => "golden",
    };
    let kept = ["labels", "annotations"].map(|field| (field, golden["metadata"][field].clone()));
    object["metadata"] = json!({ "name": name, kept[0].0: kept[0].1, kept[1].0: kept[1].1 });
    object
}

/// Fails unless everything that was sent is in the response, except for fields that the server sets.
fn assert_kept(place: &str, sent: &Value, found: &Value) {
    match (sent, found) {
        (Value::Object(sent), Value::Object(found)) => {
            for (key, value) in sent {
                assert_kept(&format!("{place}.{key}"), value, found.get(key).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(sent), Value::Array(found)) if sent.len() == found.len() => {
            for (at, (sent, found)) in sent.iter().zip(found).enumerate() {
                assert_kept(&format!("{place}[{at}]"), sent, found);
            }
        }
        _ => assert_eq!(sent, found, "{place}"),
    }
}

async fn post(s: &TestServer, path: &str, media: &str, body: Vec<u8>) -> Answer {
    let admin = s.user("admin", &["system:masters"]);
    send(&admin, "POST", path, body.into(), &[("content-type", media)]).await
}

/// Returns an answer without its times and other values that differ between two requests.
fn without_moment(mut answer: Value) -> Value {
    if let Some(metadata) = answer.get_mut("metadata").and_then(Value::as_object_mut) {
        ["uid", "resourceVersion", "creationTimestamp", "managedFields"].iter().for_each(|f| drop(metadata.remove(*f)));
    }
    answer
}

#[tokio::test]
async fn every_golden_object_is_read_in_all_forms_and_kept() {
    let Some(folder) = data() else { return };
    let s = TestServer::start().await;
    let (mut accepted, mut refused, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for kind in corten_api::kinds() {
        let file = folder.join(file_of(kind));
        let with = |extension: &str| std::fs::read(file.with_file_name(format!("{}.{extension}", file_of(kind))));
        let (Ok(json), Ok(yaml)) = (with("json"), with("yaml")) else {
            missing.push(file_of(kind));
            continue;
        };
        let golden: Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(corten_meta::decode_yaml(&yaml).unwrap(), golden, "{kind:?}: the two files are the same object");
        if kind.storage == Storage::Virtual {
            continue;
        }
        let (path, object) = (format!("{}?fieldValidation=Strict", collection(kind)), creatable(kind, &golden));
        let as_yaml = corten_meta::codec::encode_yaml(&object);
        let first = post(&s, &format!("{path}&dryRun=All"), "application/yaml", as_yaml.into_bytes()).await;
        let second = post(&s, &path, "application/json", object.to_string().into_bytes()).await;
        assert_eq!(first.code, second.code, "{kind:?}: {} {}", first.body, second.body);
        assert_eq!(without_moment(first.body), without_moment(second.body.clone()), "{kind:?}");
        if second.code != 201 {
            assert!([403, 422].contains(&second.code), "{kind:?}: {}", second.body);
            refused.push(kind.kind.clone());
            continue;
        }
        accepted.push(kind.kind.clone());
        let address = format!("{}/{}", collection(kind), object["metadata"]["name"].as_str().unwrap());
        let read = s.get(&address).await.expect(200);
        assert_eq!(read, second.body, "{kind:?}");
        let mut wanted = object;
        // `stringData` is read as data.
        wanted.as_object_mut().unwrap().remove("stringData");
        if kind.rules.has_status && !kind.rules.status_on_create {
            wanted.as_object_mut().unwrap().remove("status");
        }
        // Fields of disabled features are dropped.
        kind.drop_gated(&mut wanted, None);
        // Only the names of a ServiceAccount's Secrets are kept.
        for secret in wanted.pointer_mut("/secrets").and_then(Value::as_array_mut).into_iter().flatten() {
            *secret = json!({ "name": secret["name"] });
        }
        assert_kept(&kind.kind, &wanted, &read);
        let admin = s.user("admin", &["system:masters"]);
        let shown = send(&admin, "GET", &address, bytes::Bytes::new(), &[("accept", "application/yaml")]).await;
        let shown = shown.body.as_str().unwrap().to_owned();
        assert_eq!(corten_meta::decode_yaml(shown.as_bytes()).unwrap(), read, "{kind:?}");
    }
    let elsewhere = ["apiregistration.k8s.io.v1.APIService", "apiextensions.k8s.io.v1.CustomResourceDefinition"];
    assert_eq!(missing, elsewhere, "upstream keeps the golden objects of two kinds elsewhere; all others are tried");
    assert!(accepted.len() + refused.len() > 55, "{accepted:?} {refused:?}");
    for kind in ["ConfigMap", "ControllerRevision", "ServiceAccount", "Secret"] {
        assert!(accepted.iter().any(|found| found == kind), "{kind} is refused; accepted are {accepted:?}");
    }
}

/// Returns the stable versions of all groups, by the group's name.
fn stable(discovery: &Value) -> std::collections::BTreeMap<String, Vec<Value>> {
    let version = |version: &&Value| !version["version"].as_str().unwrap().contains(['a', 'b']);
    let group = |group: &Value| {
        let versions: Vec<Value> = group["versions"].as_array().unwrap().iter().filter(version).cloned().collect();
        (group["metadata"]["name"].as_str().unwrap().to_owned(), versions)
    };
    let groups = discovery["items"].as_array().unwrap().iter().map(group);
    groups.filter(|(_, versions)| !versions.is_empty()).collect()
}

#[tokio::test]
async fn discovery_equals_upstreams_stable_part() {
    let Some(folder) = data() else { return };
    let file = folder.join("../discovery/aggregated_v2.json");
    let wanted: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let s = TestServer::start().await;
    let admin = s.user("admin", &["system:masters"]);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let answer = send(&admin, "GET", "/apis", bytes::Bytes::new(), &[("accept", accept)]).await;
    let (found, wanted) = (stable(&answer.body), stable(&wanted));
    for (group, versions) in &wanted {
        assert_eq!(found.get(group), Some(versions), "{group}");
    }
}
