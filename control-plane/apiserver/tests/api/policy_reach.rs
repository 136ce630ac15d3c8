//! More of admission policies: audit annotations, parameters by selector, namespaces, exclusions, selectors of
//! authorizer checks, and reinvocation.

use std::time::Duration;

use crate::server::{TestServer, call};
use corten_apiserver::{Audit, AuditLog, Config};
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn constraints(changes: Value) -> Value {
    let mut constraints = json!({ "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"] }] });
    constraints.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    constraints
}

/// Creates a policy and its binding; `kind` is `Validating` or `Mutating`.
async fn bind(s: &TestServer, kind: &str, name: &str, spec: Value, bound: Value) {
    let mut full = json!({ "matchConstraints": constraints(json!({})) });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let plural = format!("{GROUP}/{}admissionpolicies", kind.to_lowercase());
    s.post(&plural, json!({ "metadata": { "name": name }, "spec": full })).await.expect(201);
    let mut full = json!({ "policyName": name });
    full.as_object_mut().unwrap().extend(bound.as_object().unwrap().clone());
    let plural = format!("{GROUP}/{}admissionpolicybindings", kind.to_lowercase());
    s.post(&plural, json!({ "metadata": { "name": name }, "spec": full })).await.expect(201);
}

fn map(name: &str, data: Value) -> Value {
    json!({ "metadata": { "name": name }, "data": data })
}

/// Repeats something until it succeeds: policies are read from a cache.
async fn until<T>(what: &str, mut tried: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..20_000 {
        if let Some(found) = tried().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

/// Returns the message of a dry run's refusal, if it is refused.
async fn refusal(s: &TestServer, path: &str, body: Value) -> Option<String> {
    let answer = s.post(&format!("{path}?dryRun=All"), body).await;
    (answer.code != 201).then(|| answer.body["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn annotations_and_failures_are_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let log = AuditLog { path: path.clone(), max_size_bytes: 0, max_backups: 0, max_age: Duration::ZERO };
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata, verbs: [create, watch], resources: [{group: '', resources: [configmaps]}]}]}";
    let audit = Audit { policy: policy.to_owned(), log: Some(log), webhook: None };
    let s = TestServer::with(Config { audit: Some(audit), ..crate::server::config() }).await;
    let spec = json!({
        "validations": [{ "expression": "object.data.size() < 2", "message": "too many" }],
        "auditAnnotations": [
            { "key": "size", "valueExpression": "'it has ' + string(object.data.size())" },
            { "key": "nothing", "valueExpression": "object.data.size() > 5 ? 'many' : ''" }] });
    bind(&s, "Validating", "counted", spec, json!({ "validationActions": ["Audit"] })).await;
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let annotations = until("nothing is annotated", async || {
        s.post(&format!("{MAPS}?dryRun=All"), map("a", json!({ "a": "1", "b": "2" }))).await.expect(201);
        let seen = events().into_iter().map(|event| event["annotations"].clone());
        seen.into_iter().find(|annotations| annotations.get("counted/size").is_some())
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
    until("the watch is not written", async || (stages("ResponseStarted") == 1).then_some(())).await;
    assert_eq!(stages("ResponseComplete"), 0);
    drop(watch);
    until("its end is not written", async || (stages("ResponseComplete") == 1).then_some(())).await;
}

#[tokio::test]
async fn parameters_are_selected_by_their_labels() {
    let s = TestServer::start().await;
    for (name, label, word) in [("p1", "yes", "red"), ("p2", "yes", "blue"), ("p3", "no", "green")] {
        let mut param = map(name, json!({ "word": word }));
        param["metadata"]["labels"] = json!({ "param": label });
        s.post(MAPS, param).await.expect(201);
    }
    let spec = json!({ "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" }, "failurePolicy": "Fail",
        "matchConditions": [{ "name": "other", "expression": "!object.metadata.name.startsWith('p')" }],
        "validations": [{ "expression": "!has(object.data.word) || object.data.word != params.data.word",
                          "messageExpression": "params.metadata.name + ' forbids it'" }] });
    let bound = json!({ "validationActions": ["Deny"], "paramRef": {
        "selector": { "matchLabels": { "param": "yes" } }, "parameterNotFoundAction": "Allow" } });
    bind(&s, "Validating", "words", spec, bound).await;
    let message = until("red is allowed", async || refusal(&s, MAPS, map("x", json!({ "word": "red" }))).await).await;
    assert!(message.ends_with("p1 forbids it"), "{message}");
    let message = refusal(&s, MAPS, map("x", json!({ "word": "blue" }))).await.expect("blue is allowed");
    assert!(message.ends_with("p2 forbids it"), "{message}");
    assert_eq!(refusal(&s, MAPS, map("x", json!({ "word": "green" }))).await, None, "p3 is not selected");
    // Added and removed parameters count at once, and without any the binding decides.
    for name in ["p1", "p2"] {
        s.delete(&format!("{MAPS}/{name}"), None).await.expect(200);
    }
    until("red is refused without a parameter", async || {
        refusal(&s, MAPS, map("x", json!({ "word": "red" }))).await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_namespace_is_available_and_resources_are_excluded() {
    let s = TestServer::start().await;
    for (name, tier) in [("strict", "gold"), ("loose", "none")] {
        let namespace = json!({ "metadata": { "name": name, "labels": { "tier": tier } } });
        s.post("/api/v1/namespaces", namespace).await.expect(201);
    }
    let spec = json!({
        "matchConstraints": {
            "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["*"] }],
            "excludeResourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"] },
                                     { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"], "resourceNames": ["spared"] }] },
        "validations": [{ "expression": "namespaceObject == null || namespaceObject.metadata.?labels['tier'].orValue('') != 'gold'",
                          "messageExpression": "'not in ' + namespaceObject.metadata.name + ', ' + namespaceObject.status.phase" }] });
    bind(&s, "Validating", "tiers", spec, json!({ "validationActions": ["Deny"] })).await;
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let message = until("gold is allowed", async || refusal(&s, &maps("strict"), map("x", json!({}))).await).await;
    assert!(message.ends_with("not in strict, Active"), "{message}");
    assert_eq!(refusal(&s, &maps("loose"), map("x", json!({}))).await, None);
    assert_eq!(refusal(&s, &maps("strict"), map("spared", json!({}))).await, None);
    assert_eq!(refusal(&s, "/api/v1/namespaces/strict/secrets", map("x", json!({}))).await, None);
    // A cluster-scoped object has no namespace.
    assert_eq!(refusal(&s, "/api/v1/namespaces", json!({ "metadata": { "name": "new" } })).await, None);
}

#[tokio::test]
async fn an_authorizer_check_may_have_selectors() {
    let s = TestServer::start().await;
    // A node may list only the pods of its own node; the selector of the check is for that.
    let allows = |field: &str| {
        format!(
            "authorizer.group('').resource('pods').fieldSelector('{field}').labelSelector('a=b').check('list').allowed()"
        )
    };
    let spec = json!({ "validations": [{ "expression": allows("spec.nodeName=n"), "message": "not even its own" }] });
    bind(&s, "Validating", "asked", spec, json!({ "validationActions": ["Deny"] })).await;
    let role = json!({ "metadata": { "name": "maps" }, "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] }] });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    let grant = json!({ "metadata": { "name": "maps" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps" },
        "subjects": [{ "kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated" }] });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", grant).await.expect(201);
    let create = async |user: &str, groups: &[&str]| {
        let path = format!("{MAPS}?dryRun=All");
        call(&s.user(user, groups), "POST", &path, Some(map("x", json!({}))), "application/json").await
    };
    until("eve may", async || (create("eve", &[]).await.code == 422).then_some(())).await;
    create("system:node:n", &["system:nodes"]).await.expect(201);
    let other = create("system:node:m", &["system:nodes"]).await;
    assert_eq!(other.code, 422, "{}", other.body);
}

#[tokio::test]
async fn a_mutating_policy_is_reinvoked_after_changes_of_others() {
    let s = TestServer::start().await;
    let add = |key: &str, value: &str| {
        let expression = format!(
            "has(object.data) && '{key}' in object.data ? [] : [JSONPatch{{op: 'add', path: '/data/{key}', value: {value}}}]"
        );
        json!([{ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }])
    };
    let seen = "'b' in object.data ? 'seen' : 'unseen'";
    let conditions = json!([{ "name": "b", "expression": "'b' in object.data" }]);
    // In the order of their names: each of the first two waits for the field that the third adds.
    for (name, again, mutations, conditions) in [
        ("a-again", "IfNeeded", add("again", seen), conditions.clone()),
        ("a-never", "Never", add("never", seen), conditions),
        ("z-last", "Never", add("b", "'1'"), json!([])),
    ] {
        let spec = json!({ "failurePolicy": "Fail", "reinvocationPolicy": again, "mutations": mutations, "matchConditions": conditions });
        bind(&s, "Mutating", name, spec, json!({})).await;
    }
    until("it is not called again", async || {
        let made = s.post(&format!("{MAPS}?dryRun=All"), map("x", json!({ "k": "v" }))).await.expect(201);
        let data = &made["data"];
        let all = data.get("b").is_some() && data.get("again").is_some();
        all.then(|| assert_eq!(*data, json!({ "k": "v", "b": "1", "again": "seen" })))
    })
    .await;
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
    for _ in 0..20_000 {
        for (_, body) in hook.calls() {
            assert_eq!((&body["kind"], &body["apiVersion"]), (&json!("EventList"), &json!("audit.k8s.io/v1")));
            events.extend(body["items"].as_array().unwrap().clone());
        }
        if events.len() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let names: Vec<&Value> = events.iter().map(|event| &event["objectRef"]["name"]).collect();
    assert_eq!(names, [&json!("a"), &json!("b")]);
}
