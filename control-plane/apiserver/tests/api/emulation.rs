//! A server that emulates an earlier version: its kinds, fields and rules, and the way there and back over one store.

use corten_api::MinorVersion;
use corten_apiserver::Config;
use serde_json::{Value, json};

use crate::server::{TestServer, config};

const PODS: &str = "/api/v1/namespaces/default/pods";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";

fn emulating(version: &str) -> Config {
    let version: MinorVersion = version.parse().unwrap();
    Config { emulated_version: version, disabled_admission_plugins: vec!["ServiceAccount".to_owned()], ..config() }
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "hostnameOverride": "web",
            "resources": {"limits": {"cpu": "1"}},
            "containers": [{"name": "a", "image": "a"}],
        },
    })
}

/// Returns the paths of a kind's group versions that OpenAPI lists below a root.
async fn groups(server: &TestServer) -> Vec<String> {
    let list = server.get("/apis").await.expect(200);
    let names = list["groups"].as_array().into_iter().flatten().filter_map(|group| group["name"].as_str());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn later_kinds_are_not_served() {
    let server = TestServer::with(emulating("1.33")).await;
    assert!(!groups(&server).await.contains(&"resource.k8s.io".to_owned()));
    server.get("/apis/resource.k8s.io/v1/resourceclaims").await.expect(404);
    server.get("/apis/storage.k8s.io/v1/volumeattributesclasses").await.expect(404);
    server.get(POLICIES).await.expect(404);
    let paths = server.get("/openapi/v3").await.expect(200);
    assert!(paths["paths"].get("apis/resource.k8s.io/v1").is_none());
    let version = server.get("/version").await.expect(200);
    assert_eq!(version["minor"], "36");
    assert_eq!(version["emulationMinor"], "33");
    assert_eq!(version["minCompatibilityMinor"], "33");
}

#[tokio::test]
async fn the_newest_version_serves_every_kind() {
    let server = TestServer::with(emulating("1.36")).await;
    server.get(POLICIES).await.expect(200);
    let version = server.get("/version").await.expect(200);
    assert_eq!(version["emulationMinor"], "36");
    assert_eq!(version["minCompatibilityMinor"], "35");
}

#[tokio::test]
async fn later_fields_are_dropped_and_those_in_use_stay() {
    let server = TestServer::with(emulating("1.36")).await;
    let stored = server.post(PODS, pod("newer")).await.expect(201);
    assert_eq!(stored["spec"]["hostnameOverride"], "web");

    let server = server.restart_with(emulating("1.34")).await;
    let created = server.post(PODS, pod("older")).await.expect(201);
    assert_eq!(created["spec"].get("hostnameOverride"), None);
    assert_eq!(created["spec"]["resources"]["limits"]["cpu"], "1");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let patched = server.patch(&format!("{PODS}/newer"), "merge", labels).await.expect(200);
    assert_eq!(patched["spec"]["hostnameOverride"], "web");
    assert_eq!(patched["metadata"]["labels"]["a"], "b");
}

#[tokio::test]
async fn a_service_has_a_strict_name_before_1_36() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let server = TestServer::with(emulating("1.36")).await;
    server.post(SERVICES, service("1a")).await.expect(201);
    let server = server.restart_with(emulating("1.35")).await;
    server.post(SERVICES, service("1b")).await.expect(422);
    server.post(SERVICES, service("b1")).await.expect(201);
    // An object from the version before can still be changed.
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    server.patch(&format!("{SERVICES}/1a"), "merge", labels).await.expect(200);
}
