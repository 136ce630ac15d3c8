//! Authorization: the authorizers of a configuration, among them a webhook.

use std::sync::Arc;

use crate::hook::{Act, Hook};
use crate::server::{TestServer, call, config};
use base64::Engine;
use corten_apiserver::{Authorization, Config, KubeconfigReader, RemoteServer, Server};
use serde_json::{Value, json};
use testkit::eventually::eventually;
use tokio::sync::watch;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Returns settings whose kubeconfig files all lead to a webhook.
fn settings(hook: &Hook, configuration: watch::Receiver<String>) -> Config {
    let client = hook.client("/authorize");
    let ca = base64::engine::general_purpose::STANDARD.decode(hook.ca()).unwrap();
    let server = RemoteServer {
        url: client["url"].as_str().unwrap().to_owned(),
        ca: String::from_utf8(ca).unwrap(),
        identity: None,
        token: None,
    };
    let kubeconfig = KubeconfigReader(Arc::new(move |path| match path.to_str() {
        Some("/hook.yaml") => Ok(server.clone()),
        other => Err(format!("there is no {other:?}")),
    }));
    Config { authorization: Some(Authorization { configuration, kubeconfig }), ..config() }
}

fn configuration(authorizers: Value) -> String {
    let version = "apiserver.config.k8s.io/v1";
    json!({ "apiVersion": version, "kind": "AuthorizationConfiguration", "authorizers": authorizers }).to_string()
}

fn webhook(changes: Value) -> Value {
    let mut webhook = json!({
        "timeout": "30s", "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": "NoOpinion", "connectionInfo": { "type": "KubeConfigFile", "kubeConfigFile": "/hook.yaml" },
    });
    for (key, value) in changes.as_object().unwrap() {
        webhook[key] = value.clone();
    }
    json!({ "type": "Webhook", "name": "hook", "webhook": webhook })
}

/// Allows alice, denies bob, has no opinion of others, and fails for carol.
fn act(_: &str, review: &Value) -> Act {
    let status = match review["spec"]["user"].as_str().unwrap() {
        "alice" => json!({ "allowed": true, "reason": "she is alice" }),
        "bob" => json!({ "allowed": false, "denied": true, "reason": "he is bob" }),
        "carol" => return Act::Raw(500, "no"),
        _ => json!({ "allowed": false, "reason": "who knows" }),
    };
    Act::Answer(json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": status }))
}

async fn get(s: &TestServer, user: &str, groups: &[&str], path: &str) -> crate::server::Answer {
    call(&s.user(user, groups), "GET", path, None, "application/json").await
}

/// Lets a user read pods by RBAC.
async fn let_read(s: &TestServer, user: &str) {
    let role = json!({ "metadata": { "name": "reader" }, "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }] });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    let binding = json!({ "metadata": { "name": user },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }] });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    s.post(path, binding).await.expect(201);
    // A list has all earlier writes, and so have the caches of RBAC.
    s.get(path).await.expect(200);
}

#[tokio::test]
async fn a_webhook_is_one_authorizer_among_others() {
    let hook = Hook::start(act).await;
    let text = configuration(json!([webhook(json!({})), { "type": "RBAC", "name": "rbac" }]));
    let (_sender, receiver) = watch::channel(text);
    let s = TestServer::with(settings(&hook, receiver)).await;
    for user in ["bob", "carol", "dave"] {
        let_read(&s, user).await;
    }
    hook.calls();
    get(&s, "alice", &["dev"], &format!("{PODS}?fieldSelector=spec.nodeName=a")).await.expect(200);
    let review = hook.calls().remove(0).1;
    assert_eq!(
        (&review["kind"], &review["apiVersion"]),
        (&json!("SubjectAccessReview"), &json!("authorization.k8s.io/v1"))
    );
    let attributes = &review["spec"]["resourceAttributes"];
    assert_eq!(
        (&attributes["verb"], &attributes["resource"], &attributes["version"], &attributes["namespace"]),
        (&json!("list"), &json!("pods"), &json!("v1"), &json!("default"))
    );
    assert_eq!(attributes["fieldSelector"]["requirements"][0]["values"], json!(["a"]));
    assert!(review["spec"]["groups"].as_array().unwrap().contains(&json!("dev")));
    // Its response is cached; another request is sent.
    get(&s, "alice", &["dev"], &format!("{PODS}?fieldSelector=spec.nodeName=a")).await.expect(200);
    assert_eq!(hook.calls().len(), 0);
    get(&s, "alice", &["dev"], PODS).await.expect(200);
    assert_eq!(hook.calls().len(), 1);
    // No other authorizer allows what it denies; RBAC may allow where it has no opinion, or fails.
    let denied = get(&s, "bob", &[], PODS).await.message(403);
    assert!(denied.ends_with(": he is bob"), "{denied}");
    get(&s, "dave", &[], PODS).await.expect(200);
    get(&s, "carol", &[], PODS).await.expect(200);
    let unknown = get(&s, "erin", &[], PODS).await.message(403);
    assert!(unknown.contains("who knows"), "{unknown}");
    // The cluster's masters are never reviewed, so that a cluster can be repaired.
    hook.calls();
    get(&s, "bob", &["system:masters"], PODS).await.expect(200);
    assert_eq!(hook.calls().len(), 0);

    let review =
        |user: &str| json!({ "spec": { "user": user, "resourceAttributes": { "verb": "list", "resource": "pods" } } });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let status = s.post(path, review("bob")).await.expect(201)["status"].clone();
    assert_eq!(status, json!({ "allowed": false, "denied": true, "reason": "he is bob" }));
    let status = s.post(path, review("alice")).await.expect(201)["status"].clone();
    assert_eq!(status, json!({ "allowed": true, "reason": "she is alice" }));
}

#[tokio::test]
async fn conditions_and_the_failure_policy_count_and_a_new_configuration_takes_effect() {
    let hook = Hook::start(act).await;
    let narrow = json!({ "failurePolicy": "Deny", "cacheUnauthorizedRequests": false, "matchConditions": [
        { "expression": "has(request.resourceAttributes)" },
        { "expression": "request.resourceAttributes.resource == 'pods'" } ] });
    let text = configuration(json!([{ "type": "RBAC", "name": "rbac" }, webhook(narrow)]));
    let (sender, receiver) = watch::channel(text);
    let s = TestServer::with(settings(&hook, receiver)).await;
    hook.calls();
    // A path, and other resources, do not match.
    assert_eq!(get(&s, "alice", &[], "/metrics").await.code, 403);
    assert_eq!(get(&s, "alice", &[], "/api/v1/namespaces/default/configmaps").await.code, 403);
    assert_eq!(hook.calls().len(), 0);
    get(&s, "alice", &[], PODS).await.expect(200);
    // Requests that RBAC allows are not sent.
    hook.calls();
    let_read(&s, "carol").await;
    get(&s, "carol", &[], PODS).await.expect(200);
    assert_eq!(hook.calls().len(), 0);
    for _ in 0..2 {
        assert_eq!(get(&s, "frank", &[], PODS).await.code, 403);
    }
    assert_eq!(hook.calls().len(), 2, "a no is not kept");

    sender.send("nonsense".to_owned()).unwrap();
    get(&s, "alice", &[], PODS).await.expect(200);
    sender.send(configuration(json!([{ "type": "AlwaysDeny", "name": "no" }]))).unwrap();
    eventually("carol is refused", async || get(&s, "carol", &[], PODS).await.try_expect(403)).await;
    let refused = get(&s, "carol", &[], PODS).await.message(403);
    assert!(refused.ends_with("Everything is forbidden."), "{refused}");
}

#[tokio::test]
async fn a_webhook_with_a_transient_error_is_retried_and_a_failed_one_meets_its_failure_policy() {
    let tries = std::sync::atomic::AtomicU32::new(0);
    let hook = Hook::start(move |path, review| {
        // The first two responses about alice are lost.
        let lost = review["spec"]["user"] == "alice" && tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 2;
        match review["spec"]["user"].as_str() {
            Some("dave") => Act::Raw(400, "what?"),
            _ if lost => Act::Raw(500, "restarting"),
            _ => act(path, review),
        }
    })
    .await;
    let (_sender, receiver) = watch::channel(configuration(json!([webhook(json!({ "failurePolicy": "Deny" }))])));
    let s = TestServer::with(settings(&hook, receiver)).await;
    hook.calls();
    get(&s, "alice", &[], PODS).await.expect(200);
    assert_eq!(hook.calls().len(), 3, "retried until it responds");
    get(&s, "carol", &[], PODS).await.expect(403);
    assert_eq!(hook.calls().len(), 5, "and then no more");
    get(&s, "dave", &[], PODS).await.expect(403);
    assert_eq!(hook.calls().len(), 1, "a permanent error is not retried");
}

#[tokio::test]
async fn an_expression_waits_for_the_webhooks_response() {
    let hook = Hook::start(act).await;
    let text = configuration(json!([{ "type": "RBAC", "name": "rbac" }, webhook(json!({}))]));
    let (_sender, receiver) = watch::channel(text);
    let s = TestServer::with(settings(&hook, receiver)).await;
    let policy = json!({ "metadata": { "name": "p" }, "spec": {
        "matchConstraints": { "resourceRules": [
            { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }] },
        "validations": [{ "expression": "authorizer.group('').resource('pods').namespace('default').check('list').allowed() && authorizer.path('/x').check('get').reason() == 'she is alice'" }] } });
    let base = "/apis/admissionregistration.k8s.io/v1";
    s.post(&format!("{base}/validatingadmissionpolicies"), policy).await.expect(201);
    let binding = json!({ "metadata": { "name": "b" }, "spec": { "policyName": "p", "validationActions": ["Deny"] } });
    s.post(&format!("{base}/validatingadmissionpolicybindings"), binding).await.expect(201);
    let map = |name: &str| json!({ "metadata": { "name": name } });
    let path = "/api/v1/namespaces/default/configmaps";
    // Until the policy is known, every user may.
    eventually("dave is refused", async || {
        let dave = s.user("dave", &["system:masters"]);
        let dry_run = format!("{path}?dryRun=All");
        call(&dave, "POST", &dry_run, Some(map("d")), "application/json").await.try_expect(422)
    })
    .await;
    call(&s.user("alice", &[]), "POST", path, Some(map("a")), "application/json").await.expect(201);
}

#[tokio::test]
async fn invalid_configurations_are_refused() {
    let hook = Hook::start(act).await;
    let rbac = json!({ "type": "RBAC", "name": "rbac" });
    for (authorizers, error) in [
        (json!([]), "at least one authorization mode must be defined"),
        (json!([{ "type": "ABAC", "name": "a" }]), "authorizers[0].type: Unsupported value: \"ABAC\""),
        (json!([rbac, { "type": "RBAC", "name": "other" }]), "authorizers[1].type: Duplicate value"),
        (json!([rbac, { "type": "Node", "name": "rbac" }]), "authorizers[1].name: Duplicate value"),
        (json!([{ "type": "Webhook", "name": "w" }]), "required when type=Webhook"),
        (json!([webhook(json!({ "timeout": "31s" }))]), "must be > 0s and <= 30s"),
        (json!([webhook(json!({ "failurePolicy": "Maybe" }))]), "Unsupported value: \"Maybe\""),
        (json!([webhook(json!({ "subjectAccessReviewVersion": "" }))]), "subjectAccessReviewVersion: Required value"),
        (json!([webhook(json!({ "matchConditions": [{ "expression": "request.nothing" }] }))]), "compilation failed"),
        (
            json!([webhook(json!({ "connectionInfo": { "type": "KubeConfigFile", "kubeConfigFile": "/gone" } }))]),
            "error loading file",
        ),
        (json!([webhook(json!({ "connectionInfo": { "type": "InClusterConfig" } }))]), "use KubeConfigFile"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let store = corten_store::Embedded::open(corten_store::Config::new(directory.path())).unwrap();
        let (_sender, receiver) = watch::channel(configuration(authorizers.clone()));
        let refused = Server::new(settings(&hook, receiver), store).await.err();
        let refused = refused.unwrap_or_else(|| panic!("accepted: {authorizers}")).to_string();
        assert!(refused.contains(error), "{refused}");
    }
}
