//! The audit log of admission policies, and the audit webhook.

use std::time::Duration;

use crate::server::TestServer;
use corten_apiserver::{Audit, AuditLog, Config};
use serde_json::{Value, json};
use testkit::eventually::eventually;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: Value) -> Value {
    json!({ "metadata": { "name": name }, "data": data })
}

#[tokio::test]
async fn annotations_and_failures_are_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let log = AuditLog { path: path.clone(), max_size_bytes: 0, max_backups: 0, max_age: Duration::ZERO };
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata, verbs: [create, watch], resources: [{group: '', resources: [configmaps]}]}]}";
    let audit = Audit { policy: policy.to_owned(), log: Some(log), webhook: None };
    let s = TestServer::with(Config { audit: Some(audit), ..crate::server::config() }).await;
    let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"] });
    let spec = json!({
        "matchConstraints": { "resourceRules": [rule] },
        "validations": [{ "expression": "object.data.size() < 2", "message": "too many" }],
        "auditAnnotations": [
            { "key": "size", "valueExpression": "'it has ' + string(object.data.size())" },
            { "key": "nothing", "valueExpression": "object.data.size() > 5 ? 'many' : ''" }] });
    s.post(&format!("{GROUP}/validatingadmissionpolicies"), json!({ "metadata": { "name": "counted" }, "spec": spec }))
        .await
        .expect(201);
    let binding = json!({ "policyName": "counted", "validationActions": ["Audit"] });
    let binding = json!({ "metadata": { "name": "counted" }, "spec": binding });
    s.post(&format!("{GROUP}/validatingadmissionpolicybindings"), binding).await.expect(201);
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let annotations = eventually("an event is annotated", async || {
        s.post(&format!("{MAPS}?dryRun=All"), map("a", json!({ "a": "1", "b": "2" }))).await.expect(201);
        let mut seen = events().into_iter().map(|event| event["annotations"].clone());
        let annotated = seen.find(|annotations| annotations.get("counted/size").is_some());
        annotated.ok_or_else(|| format!("{:?}", events()))
    })
    .await;
    assert_eq!((&annotations["counted/size"], annotations.get("counted/nothing")), (&json!("it has 2"), None));
    let failure = annotations["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap();
    let failure: Value = serde_json::from_str(failure).unwrap();
    assert_eq!(
        failure,
        json!([{ "message": "too many", "policy": "counted", "binding": "counted", "expressionIndex": 0, "validationActions": ["Audit"] }])
    );

    // A watch is complete when it ends, not when it begins.
    let watch = s.watch(&format!("{MAPS}?watch=1")).await;
    let stages = |stage: &str| events().iter().filter(|e| e["verb"] == "watch" && e["stage"] == stage).count();
    let written = async |stage: &str| {
        eventually(stage, async || if stages(stage) == 1 { Ok(()) } else { Err(format!("{:?}", events())) }).await;
    };
    written("ResponseStarted").await;
    assert_eq!(stages("ResponseComplete"), 0);
    drop(watch);
    written("ResponseComplete").await;
}

#[tokio::test]
async fn the_audit_webhook_gets_batches_of_events() {
    use base64::Engine;
    let hook = crate::hook::Hook::start(|_, _| crate::hook::Act::Answer(json!({}))).await;
    let ca = base64::engine::general_purpose::STANDARD.decode(hook.ca()).unwrap();
    let server = corten_apiserver::RemoteServer {
        url: hook.client("/audit")["url"].as_str().unwrap().to_owned(),
        ca: String::from_utf8(ca).unwrap(),
        identity: None,
        token: None,
    };
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata, resources: [{group: '', resources: [configmaps]}]}]}";
    let webhook = Some(corten_apiserver::AuditWebhook { server });
    let audit = Audit { policy: policy.to_owned(), log: None, webhook };
    let s = TestServer::with(Config { audit: Some(audit), ..crate::server::config() }).await;
    for name in ["a", "b"] {
        s.post(MAPS, map(name, json!({}))).await.expect(201);
    }
    let mut events: Vec<Value> = Vec::new();
    eventually("two events come", async || {
        for (_, body) in hook.calls() {
            assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
            events.extend(body["items"].as_array().unwrap().clone());
        }
        if events.len() >= 2 { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
    let names: Vec<&Value> = events.iter().map(|event| &event["objectRef"]["name"]).collect();
    assert_eq!(names, [&json!("a"), &json!("b")]);
}
