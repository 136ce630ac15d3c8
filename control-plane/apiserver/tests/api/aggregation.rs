//! Aggregated API servers, front proxies, and the headers that no other client may send.

use crate::server::{TestServer, call};
use serde_json::json;
use testkit::eventually::eventually;

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

fn api_service() -> serde_json::Value {
    json!({
        "metadata": { "name": "v1alpha1.wardle.example.com" },
        "spec": { "group": "wardle.example.com", "version": "v1alpha1", "insecureSkipTLSVerify": true,
                  "groupPriorityMinimum": 2000, "versionPriority": 200,
                  "service": { "namespace": "default", "name": "sample-api", "port": 7443 } },
    })
}

/// Returns the reason of the Available condition, once it is the expected one.
async fn reason(server: &TestServer, name: &str, expected: &str) -> String {
    eventually(&format!("the reason of {name} is {expected}"), async || {
        let service = server.get(&format!("{API_SERVICES}/{name}")).await.body;
        let reason = service.pointer("/status/conditions/0/reason").and_then(|r| r.as_str()).unwrap_or_default();
        if reason == expected { Ok(reason.to_owned()) } else { Err(service.to_string()) }
    })
    .await
}

#[tokio::test]
async fn a_remote_group_is_listed_and_answers_503_while_it_is_away() {
    let server = TestServer::start().await;
    server.post(API_SERVICES, api_service()).await.expect(201);
    let name = "v1alpha1.wardle.example.com";
    assert_eq!(reason(&server, name, "ServiceNotFound").await, "ServiceNotFound");
    let message =
        server.get(&format!("{API_SERVICES}/{name}")).await.expect(200)["status"]["conditions"][0]["message"].clone();
    assert_eq!(message, "service/sample-api in \"default\" is not present");
    let service = json!({ "metadata": { "name": "sample-api" }, "spec": { "ports": [{ "port": 443 }] } });
    server.post("/api/v1/namespaces/default/services", service).await.expect(201);
    assert_eq!(reason(&server, name, "ServicePortError").await, "ServicePortError");
    let port = json!({ "spec": { "ports": [{ "port": 7443 }] } });
    server.patch("/api/v1/namespaces/default/services/sample-api", "merge", port).await.expect(200);
    assert_eq!(reason(&server, name, "EndpointsNotFound").await, "EndpointsNotFound");

    let away = server.get("/apis/wardle.example.com/v1alpha1/flunders").await;
    assert_eq!((away.code, away.body), (503, json!("service unavailable\n")));
    let group = server.get("/apis/wardle.example.com").await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "wardle.example.com/v1alpha1");
    let groups = server.get("/apis").await.expect(200);
    let names: Vec<&str> = groups["groups"].as_array().unwrap().iter().filter_map(|g| g["name"].as_str()).collect();
    assert!(names.contains(&"wardle.example.com"), "{names:?}");

    server.delete(&format!("{API_SERVICES}/{name}"), None).await.expect(200);
    server.until("/apis/wardle.example.com", 404).await;
}

#[tokio::test]
async fn custom_resources_are_registered_while_they_are_served() {
    let server = TestServer::start().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({
        "metadata": { "name": "things.example.com" },
        "spec": { "group": "example.com", "scope": "Cluster", "names": { "plural": "things", "kind": "Thing" },
                  "versions": [{ "name": "v1", "served": true, "storage": true,
                                 "schema": { "openAPIV3Schema": { "type": "object" } } }] },
    });
    server.post(definitions, definition).await.expect(201);
    assert_eq!(reason(&server, "v1.example.com", "Local").await, "Local");
    let service = server.get(&format!("{API_SERVICES}/v1.example.com")).await.expect(200);
    assert_eq!(service["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    assert_eq!(service["spec"]["groupPriorityMinimum"], 1000);
    server.delete(&format!("{definitions}/things.example.com"), None).await.expect(200);
    server.until(&format!("{API_SERVICES}/v1.example.com"), 404).await;
}

#[tokio::test]
async fn only_a_front_proxy_names_the_user() {
    let server = TestServer::start().await;
    let user = server.user("nobody", &[]);
    let headers = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
    let path = "/api/v1/namespaces/kube-system/secrets";
    let answer = crate::server::send(&user, "GET", path, bytes::Bytes::new(), &headers).await;
    assert_eq!(answer.code, 403, "{}", answer.body);
    // Paths that look like those of an aggregated server are not.
    for path in ["/api/v1//secrets", "/api//v1/secrets", "/apis/apps//v1/deployments"] {
        let admin = server.user("admin", &["system:masters"]);
        assert_eq!(call(&admin, "GET", path, None, "").await.code, 404, "{path}");
    }
    for path in
        ["/healthz/../api/v1/secrets", "/api/v1/namespaces/default/..%2f..%2fsecrets", "/version/%2e%2e/api/v1/secrets"]
    {
        let answer = call(&user, "GET", path, None, "").await;
        assert!(matches!(answer.code, 403 | 404), "{path}: {}", answer.code);
    }
}
