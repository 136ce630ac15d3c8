//! The audit log: the events of requests.

use std::time::Duration;

use crate::server::{TestServer, call, send};
use corten_apiserver::{Audit, AuditLog, Config};
use serde_json::{Value, json};
use testkit::eventually::eventually;

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/*"]
- level: Metadata
  resources: [{ group: "", resources: [secrets] }]
- level: RequestResponse
  resources: [{ group: "", resources: [configmaps] }]
  omitManagedFields: true
"#;

#[tokio::test]
async fn requests_are_logged_by_the_policy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let log = AuditLog { path: path.clone(), max_size_bytes: 0, max_backups: 0, max_age: Duration::ZERO };
    let audit = Audit { policy: POLICY.to_owned(), log: Some(log), webhook: None };
    let server = TestServer::with(Config { audit: Some(audit), ..crate::server::config() }).await;
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "password": "hidden" } });
    server.post("/api/v1/namespaces/default/secrets", secret).await.expect(201);
    let configmap = json!({ "metadata": { "name": "c" }, "data": { "a": "b" } });
    server.post("/api/v1/namespaces/default/configmaps?fieldManager=me", configmap).await.expect(201);
    let headers = [("impersonate-user", "jane"), ("audit-id", "of-the-client"), ("user-agent", "test")];
    let admin = server.user("admin", &["system:masters"]);
    let refused = send(&admin, "GET", "/api/v1/namespaces/default/configmaps/c", bytes::Bytes::new(), &headers).await;
    assert_eq!((refused.code, &refused.headers["audit-id"]), (403, &"of-the-client".parse().unwrap()));
    call(&admin, "GET", "/version", None, "").await.expect(200);
    call(&admin, "GET", "/api/v1/pods", None, "").await.expect(200);

    let events = eventually("three events are written", async || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if events.len() >= 3 { Ok(events) } else { Err(text) }
    })
    .await;
    let about: Vec<(&str, &str)> =
        events.iter().map(|e| (e["objectRef"]["resource"].as_str().unwrap(), e["level"].as_str().unwrap())).collect();
    assert_eq!(about, [("secrets", "Metadata"), ("configmaps", "RequestResponse"), ("configmaps", "RequestResponse")]);
    assert!(!events[0].to_string().contains("hidden"));
    assert_eq!(events[0]["responseStatus"], json!({ "metadata": {}, "code": 201 }));
    assert_eq!(events[1]["requestObject"]["data"], json!({ "a": "b" }));
    assert_eq!(events[1]["responseObject"]["metadata"]["name"], "c");
    assert!(events[1]["responseObject"]["metadata"].get("managedFields").is_none());
    assert_eq!(events[1]["requestURI"], "/api/v1/namespaces/default/configmaps?fieldManager=me");
    assert_eq!(events[1]["annotations"]["authorization.k8s.io/decision"], "allow");
    let refused = &events[2];
    assert_eq!((&refused["auditID"], &refused["stage"]), (&json!("of-the-client"), &json!("ResponseComplete")));
    assert_eq!(
        (&refused["user"]["username"], &refused["impersonatedUser"]["username"]),
        (&json!("admin"), &json!("jane"))
    );
    assert_eq!((&refused["responseStatus"]["reason"], &refused["userAgent"]), (&json!("Forbidden"), &json!("test")));
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
}
