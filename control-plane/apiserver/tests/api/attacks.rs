//! Attacks, and the errors they get.

use crate::server::{Answer, TestServer, call, send};
use corten_apiserver::InProcess;
use serde_json::{Value, json};

const DEFAULT: &str = "/api/v1/namespaces/default";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

async fn post(client: &InProcess, path: &str, body: Value) -> Answer {
    call(client, "POST", path, Some(body), "application/json").await
}

async fn get(client: &InProcess, path: &str) -> Answer {
    call(client, "GET", path, None, "").await
}

async fn account(server: &TestServer, name: &str) {
    server.post(&format!("{DEFAULT}/serviceaccounts"), json!({ "metadata": { "name": name } })).await.expect(201);
}

fn pod(name: &str, account: &str, secret: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "serviceAccountName": account, "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "secret": { "secretName": secret } }] } })
}

async fn run_on(server: &TestServer, pod: &str, node: &str) {
    let binding = json!({ "metadata": { "name": pod }, "target": { "kind": "Node", "name": node } });
    server.post(&format!("{DEFAULT}/pods/{pod}/binding"), binding).await.expect(201);
}

#[tokio::test]
async fn a_token_expires_with_its_bound_object() {
    let server = TestServer::start().await;
    account(&server, "robot").await;
    let reviewed = async |token: &Value| {
        let review = json!({ "spec": { "token": token } });
        let review = server.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.expect(201);
        review["status"]["authenticated"] == true
    };
    let token = async |bound: Value| {
        let request = json!({ "spec": { "boundObjectRef": bound } });
        let answer = server.post(&format!("{DEFAULT}/serviceaccounts/robot/token"), request).await.expect(201);
        answer["status"]["token"].clone()
    };
    let made = server.post(&format!("{DEFAULT}/pods"), pod("p", "robot", "none")).await.expect(201);
    let of_pod = token(json!({ "kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made["metadata"]["uid"] })).await;
    let of_account = token(Value::Null).await;
    assert!(reviewed(&of_pod).await && reviewed(&of_account).await);
    server.delete(&format!("{DEFAULT}/pods/p"), None).await.expect(200);
    assert!(!reviewed(&of_pod).await, "the pod is gone");
    server.post(&format!("{DEFAULT}/pods"), pod("p", "robot", "none")).await.expect(201);
    assert!(!reviewed(&of_pod).await, "a pod of the same name is another pod");
    assert!(reviewed(&of_account).await);
    server.delete(&format!("{DEFAULT}/serviceaccounts/robot"), None).await.expect(200);
    account(&server, "robot").await;
    assert!(!reviewed(&of_account).await, "an account of the same name is another account");
    // A token with changed claims is invalid.
    let text = of_account.as_str().unwrap();
    let mut parts: Vec<&str> = text.split('.').collect();
    parts[1] = "eyJzdWIiOiJhZG1pbiJ9";
    assert!(!reviewed(&parts.join(".").into()).await);
}

#[tokio::test]
async fn no_user_grants_permissions_they_do_not_have() {
    let server = TestServer::start().await;
    let group = "rbac.authorization.k8s.io";
    let editor = json!({ "metadata": { "name": "role-editor" }, "rules": [
        { "apiGroups": [group], "resources": ["roles", "rolebindings", "clusterroles", "clusterrolebindings"], "verbs": ["*"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] },
    ] });
    // `*` includes `escalate` and `bind` too, so the verbs are listed.
    let mut editor = editor;
    editor["rules"][0]["verbs"] = json!(["get", "list", "create", "update", "patch"]);
    server.post(&format!("{RBAC}/clusterroles"), editor).await.expect(201);
    let binding = json!({ "metadata": { "name": "mallory" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "role-editor" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "mallory" }] });
    server.post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
    server.get(&format!("{RBAC}/clusterrolebindings")).await.expect(200);
    let mallory = server.user("mallory", &[]);
    let roles = format!("{RBAC}/namespaces/default/roles");
    let role = |resource: &str| json!({ "metadata": { "name": resource }, "rules": [{ "apiGroups": [""], "resources": [resource], "verbs": ["get"] }] });
    post(&mallory, &roles, role("configmaps")).await.expect(201);
    let message = post(&mallory, &roles, role("secrets")).await.message(403);
    assert!(message.contains("is attempting to grant RBAC permissions not currently held"), "{message}");
    let patch = json!({ "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }] });
    let path = format!("{roles}/configmaps");
    call(&mallory, "PATCH", &path, Some(patch), "application/merge-patch+json").await.expect(403);
    let all = json!({ "metadata": { "name": "all" }, "aggregationRule": { "clusterRoleSelectors": [{}] } });
    post(&mallory, &format!("{RBAC}/clusterroles"), all).await.expect(403);
    for (kind, path) in [
        ("ClusterRole", format!("{RBAC}/clusterrolebindings")),
        ("ClusterRole", format!("{RBAC}/namespaces/default/rolebindings")),
    ] {
        let binding = json!({ "metadata": { "name": "up" },
            "roleRef": { "apiGroup": group, "kind": kind, "name": "cluster-admin" },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": "mallory" }] });
        post(&mallory, &path, binding).await.expect(403);
    }
    // Nor does another user's name help.
    for header in [("impersonate-user", "admin"), ("impersonate-group", "system:masters"), ("impersonate-uid", "0")] {
        let headers = [("impersonate-user", "mallory"), header];
        let answer = send(&mallory, "GET", &format!("{DEFAULT}/configmaps/x"), bytes::Bytes::new(), &headers).await;
        assert_eq!(answer.code, 403, "{header:?}: {}", answer.body);
    }
}

#[tokio::test]
async fn a_node_reads_and_writes_only_its_own_objects() {
    let server = TestServer::start().await;
    for (name, node) in [("mine", "a"), ("theirs", "b")] {
        account(&server, name).await;
        let secret = json!({ "metadata": { "name": name }, "stringData": { "k": "v" } });
        server.post(&format!("{DEFAULT}/secrets"), secret).await.expect(201);
        server.post(&format!("{DEFAULT}/pods"), pod(name, name, name)).await.expect(201);
        run_on(&server, name, node).await;
        server.post("/api/v1/nodes", json!({ "metadata": { "name": node } })).await.expect(201);
    }
    server.get(&format!("{DEFAULT}/pods")).await.expect(200);
    let node = server.user("system:node:a", &["system:nodes"]);
    get(&node, &format!("{DEFAULT}/secrets/mine")).await.expect(200);
    for path in ["secrets/theirs", "secrets", "secrets?watch=1", "configmaps"] {
        get(&node, &format!("{DEFAULT}/{path}")).await.expect(403);
    }
    get(&node, "/api/v1/secrets").await.expect(403);
    let token = |account: &str| format!("{DEFAULT}/serviceaccounts/{account}/token");
    let uid = server.get(&format!("{DEFAULT}/pods/mine")).await.expect(200)["metadata"]["uid"].clone();
    let bound =
        json!({ "spec": { "boundObjectRef": { "kind": "Pod", "apiVersion": "v1", "name": "mine", "uid": uid } } });
    post(&node, &token("mine"), bound).await.expect(201);
    post(&node, &token("theirs"), json!({ "spec": {} })).await.expect(403);
    let merge = "application/merge-patch+json";
    let label = json!({ "metadata": { "labels": { "x": "y" } } });
    call(&node, "PATCH", "/api/v1/nodes/b", Some(label), merge).await.expect(403);
    let restricted = json!({ "metadata": { "labels": { "node-restriction.kubernetes.io/team": "x" } } });
    call(&node, "PATCH", "/api/v1/nodes/a", Some(restricted), merge).await.expect(403);
    post(&node, &format!("{DEFAULT}/pods"), pod("forged", "mine", "theirs")).await.expect(403);
    // Nor does it help to declare it a mirror pod: then a node could read every Secret that it names.
    let mut mirror = pod("forged", "mine", "theirs");
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" });
    mirror["spec"]["nodeName"] = "a".into();
    for (field, why) in [
        ("serviceAccountName", "a mirror pod may not reference service accounts"),
        ("volumes", "a mirror pod may not reference secrets"),
    ] {
        let message = post(&node, &format!("{DEFAULT}/pods"), mirror.clone()).await.message(403);
        assert!(message.ends_with(why), "{message}");
        mirror["spec"].as_object_mut().unwrap().remove(field);
    }
    let message = post(&node, &format!("{DEFAULT}/pods"), mirror.clone()).await.message(403);
    assert!(message.contains("with an owner reference set to itself"), "{message}");
    let uid = server.get("/api/v1/nodes/a").await.expect(200)["metadata"]["uid"].clone();
    mirror["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "name": "a", "uid": uid, "controller": true }]);
    post(&node, &format!("{DEFAULT}/pods"), mirror).await.expect(201);
    // A node reads its own pods and its own Node.
    get(&node, &format!("{DEFAULT}/pods?fieldSelector=spec.nodeName=a")).await.expect(200);
    get(&node, &format!("{DEFAULT}/pods/mine")).await.expect(200);
    get(&node, "/api/v1/nodes/a").await.expect(200);
    for path in ["pods", "pods/theirs", "pods?fieldSelector=spec.nodeName=b", "serviceaccounts/theirs"] {
        get(&node, &format!("{DEFAULT}/{path}")).await.expect(403);
    }
    get(&node, "/api/v1/nodes/b").await.expect(403);
    get(&node, "/api/v1/nodes").await.expect(403);
    let role = json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } });
    let merge = "application/merge-patch+json";
    call(&node, "PATCH", "/api/v1/nodes/a", Some(role), merge).await.expect(403);
    let relabel = json!({ "metadata": { "labels": { "app": "other" } } });
    call(&node, "PATCH", &format!("{DEFAULT}/pods/mine/status"), Some(relabel), merge).await.expect(403);
    call(&node, "DELETE", &format!("{DEFAULT}/pods/theirs"), None, "").await.expect(403);
    let evict = |name: &str| json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name } });
    post(&node, &format!("{DEFAULT}/pods/theirs/eviction"), evict("theirs")).await.expect(403);
    post(&node, &format!("{DEFAULT}/pods/mine/eviction"), evict("mine")).await.expect(201);
}

/// A node must not write fields of its Node that other components trust.
#[tokio::test]
async fn a_node_does_not_write_fields_that_others_trust() {
    let config = corten_apiserver::Config {
        hostname: Some("server".to_owned()),
        advertise_address: "10.0.0.1".parse().unwrap(),
        ..crate::server::config()
    };
    let server = TestServer::with(config).await;
    let node = server.user("system:node:a", &["system:nodes"]);
    let addresses = |list: &[&str]| {
        let list: Vec<Value> = list.iter().map(|one| json!({ "type": "InternalIP", "address": one })).collect();
        json!({ "addresses": list, "conditions": [{ "type": "Ready", "status": "True" }] })
    };
    let mut other = json!({ "metadata": { "name": "b" }, "status": addresses(&["10.0.0.3"]) });
    server.post("/api/v1/nodes", other.clone()).await.expect(201);
    // A list is as new as the last write: from here on the server knows the other node.
    server.get("/api/v1/nodes").await.expect(200);
    let own = |spec: Value, status: Value| json!({ "metadata": { "name": "a" }, "spec": spec, "status": status });
    let good = addresses(&["10.0.0.2"]);
    let report = "is not allowed to report the address";
    for (object, why) in [
        (own(json!({ "podCIDR": "10.0.0.1/32" }), good.clone()), "is not allowed to modify podCIDR".to_owned()),
        (own(json!({ "podCIDRs": ["10.0.0.1/32"] }), good.clone()), "is not allowed to modify podCIDR".to_owned()),
        (own(json!({}), addresses(&["10.0.0.1"])), format!("{report} 10.0.0.1 of the API server")),
        (own(json!({}), addresses(&["10.0.0.2", "::ffff:10.0.0.1"])), format!("{report} 10.0.0.1 of the API server")),
        (own(json!({}), addresses(&["127.0.0.1"])), format!("{report} 127.0.0.1")),
        (own(json!({}), addresses(&["10.96.0.1"])), format!("{report} 10.96.0.1 of a Service")),
        (own(json!({}), addresses(&["10.0.0.3"])), format!("{report} 10.0.0.3 of another node")),
    ] {
        let message = post(&node, "/api/v1/nodes", object).await.message(403);
        assert!(message.contains(&why), "{message}");
    }
    post(&node, "/api/v1/nodes", own(json!({}), good)).await.expect(201);
    let merge = "application/merge-patch+json";
    let recorded = json!({ "metadata": { "annotations": { "corten/serving-names": "10.0.0.9" } } });
    call(&node, "PATCH", "/api/v1/nodes/a", Some(recorded), merge).await.expect(403);
    let taken = json!({ "status": addresses(&["10.0.0.3"]) });
    call(&node, "PATCH", "/api/v1/nodes/a/status", Some(taken.clone()), merge).await.expect(403);
    let moved = json!({ "status": addresses(&["10.0.0.4"]) });
    call(&node, "PATCH", "/api/v1/nodes/a/status", Some(moved), merge).await.expect(200);
    // A removed machine no longer has its address.
    other["status"]["conditions"][0]["status"] = json!("Unknown");
    call(&server.user("admin", &["system:masters"]), "PUT", "/api/v1/nodes/b/status", Some(other), "application/json")
        .await
        .expect(200);
    let mut code = 403;
    for _ in 0..20_000 {
        code = call(&node, "PATCH", "/api/v1/nodes/a/status", Some(taken.clone()), merge).await.code;
        if code == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(code, 200);
    // The server's own machine has the server's address.
    let first = server.user("system:node:server", &["system:nodes"]);
    let object = json!({ "metadata": { "name": "server" }, "status": addresses(&["10.0.0.1"]) });
    post(&first, "/api/v1/nodes", object).await.expect(201);
}

/// A certificate for `system:node:` is easy to get with a bootstrap token: unscheduled pods are not its own.
#[tokio::test]
async fn a_node_without_a_name_has_no_pods() {
    let server = TestServer::start().await;
    account(&server, "waiting").await;
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "k": "v" } });
    server.post(&format!("{DEFAULT}/secrets"), secret).await.expect(201);
    server.post(&format!("{DEFAULT}/pods"), pod("waiting", "waiting", "s")).await.expect(201);
    server.get(&format!("{DEFAULT}/pods")).await.expect(200);
    let node = server.user("system:node:", &["system:nodes"]);
    get(&node, &format!("{DEFAULT}/secrets/s")).await.expect(403);
    get(&node, &format!("{DEFAULT}/pods?fieldSelector=spec.nodeName=")).await.expect(403);
    post(&node, "/api/v1/nodes", json!({ "metadata": { "generateName": "a" } })).await.expect(403);
}

/// Returns a reader of the ConfigMaps of one namespace and of nothing else; other namespaces have Secrets.
async fn reader(server: &TestServer) -> InProcess {
    let group = "rbac.authorization.k8s.io";
    for namespace in ["default", "kube-system"] {
        let secret = json!({ "metadata": { "name": "s" }, "stringData": { "k": "v" } });
        server.post(&format!("/api/v1/namespaces/{namespace}/secrets"), secret).await.expect(201);
    }
    server.post(&format!("{DEFAULT}/configmaps"), json!({ "metadata": { "name": "c" } })).await.expect(201);
    let role = json!({ "metadata": { "name": "r" }, "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"] }] });
    server.post(&format!("{RBAC}/namespaces/default/roles"), role).await.expect(201);
    let binding = json!({ "metadata": { "name": "r" }, "roleRef": { "apiGroup": group, "kind": "Role", "name": "r" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "jane" }] });
    server.post(&format!("{RBAC}/namespaces/default/rolebindings"), binding).await.expect(201);
    server.get(&format!("{RBAC}/namespaces/default/rolebindings")).await.expect(200);
    server.user("jane", &[])
}

#[tokio::test]
async fn no_spelling_of_a_path_leads_around_the_authorizer() {
    let server = TestServer::start().await;
    let jane = reader(&server).await;
    get(&jane, &format!("{DEFAULT}/configmaps/c")).await.expect(200);
    for path in [
        "//api/v1/namespaces/default/secrets/s",
        "/api//v1/namespaces/default/secrets/s",
        "/api/v1//namespaces/default/secrets/s",
        "/api/v1/namespaces/default//secrets/s",
        "/api/v1/namespaces/default/secrets//s",
        "/api/v1/namespaces/default/secrets/s/",
        "/api/v1/namespaces/default/./secrets/s",
        "/api/v1/namespaces/default/configmaps/../secrets/s",
        "/api/v1/namespaces/default/configmaps/%2e%2e/secrets/s",
        "/api/v1/namespaces/default/configmaps/..%2fsecrets%2fs",
        "/api/v1/namespaces/default/configmaps/..%2Fsecrets/s",
        "/api/v1/namespaces/default/configmaps%2f..%2fsecrets/s",
        "/api/v1/namespaces/default%2fsecrets%2fs",
        "/api/v1/namespaces/default/%73ecrets/s",
        "/api/v1/namespaces/default/SECRETS/s",
        "/api/v1/namespaces/default/secrets;configmaps/s",
        "/api/v1/namespaces/default/secrets%00/s",
        "/api/v1/namespaces/default/configmaps/c%2f..%2f..%2fsecrets%2fs",
        "/healthz/../api/v1/namespaces/default/secrets/s",
        "/version/%2e%2e/api/v1/namespaces/default/secrets/s",
        "/openapi/v3/../../api/v1/secrets",
        "/api/v1/watch/namespaces/default/secrets",
        "/api/v1/proxy/namespaces/default/secrets/s",
        "/%61pi/v1/namespaces/default/secrets/s",
    ] {
        let answer = get(&jane, path).await;
        assert!(matches!(answer.code, 400 | 403 | 404), "{path}: {} {}", answer.code, answer.body);
        assert!(!answer.body.to_string().contains("\"data\""), "{path}: {}", answer.body);
    }
    // Nor is one name read as another by a user who may read all: a slash in a name is part of the name.
    for path in ["configmaps/..%2fsecrets%2fs", "configmaps/%2e%2e", "configmaps/c%2f..", "secrets/..%2fsecrets%2fs"] {
        let answer = server.get(&format!("{DEFAULT}/{path}")).await;
        assert!(matches!(answer.code, 400 | 404), "{path}: {} {}", answer.code, answer.body);
    }
    for name in ["..", ".", "a/b", "a%2fb", "..%2fsecrets"] {
        server.post(&format!("{DEFAULT}/configmaps"), json!({ "metadata": { "name": name } })).await.expect(422);
    }
}

fn definition(schema: Value) -> Value {
    json!({ "metadata": { "name": "bombs.example.com" }, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": { "plural": "bombs", "kind": "Bomb" },
        "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }] } })
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

#[tokio::test]
async fn expensive_expressions_are_refused_or_exceed_their_budget() {
    let server = TestServer::start().await;
    let list = json!({ "type": "array", "items": { "type": "string" } });
    for rule in [
        "self.l.all(a, self.l.all(b, self.l.all(c, a + b + c != '')))",
        "self.l.map(a, self.l.map(b, self.l.map(c, a + b + c))).size() > 0",
    ] {
        let spec =
            json!({ "type": "object", "properties": { "l": list }, "x-kubernetes-validations": [{ "rule": rule }] });
        let schema = json!({ "type": "object", "properties": { "spec": spec } });
        let message = server.post(DEFINITIONS, definition(schema)).await.message(422);
        assert!(message.contains("cost"), "{message}");
    }
    // The cost of a policy is known only when it runs.
    let policies = "/apis/admissionregistration.k8s.io/v1";
    let expression = "object.data.all(a, object.data.all(b, object.data.all(c, a + b + c != '')))";
    let policy = json!({ "metadata": { "name": "bomb" }, "spec": {
        "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"] }] },
        "validations": [{ "expression": expression }] } });
    server.post(&format!("{policies}/validatingadmissionpolicies"), policy).await.expect(201);
    let binding =
        json!({ "metadata": { "name": "bomb" }, "spec": { "policyName": "bomb", "validationActions": ["Deny"] } });
    server.post(&format!("{policies}/validatingadmissionpolicybindings"), binding).await.expect(201);
    server.get(&format!("{policies}/validatingadmissionpolicybindings")).await.expect(200);
    let data: serde_json::Map<String, Value> = (0..2000).map(|at| (format!("k{at}"), "v".into())).collect();
    let big = json!({ "metadata": { "name": "big" }, "data": data });
    let mut message = String::new();
    for _ in 0..20_000 {
        let answer = server.post(&format!("{DEFAULT}/configmaps?dryRun=All"), big.clone()).await;
        if answer.code == 422 {
            message = answer.message(422);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(message.contains("cost"), "{message}");
    server.post(&format!("{DEFAULT}/configmaps"), json!({ "metadata": { "name": "small" } })).await.message(422);
    server.post(&format!("{DEFAULT}/secrets"), json!({ "metadata": { "name": "other" } })).await.expect(201);
}

#[tokio::test]
async fn expensive_schemas_leave_the_server_alive() {
    let server = TestServer::start().await;
    let nested = |depth: usize| {
        (0..depth)
            .fold(json!({ "type": "string" }), |inner, _| json!({ "type": "object", "properties": { "a": inner } }))
    };
    let wide: serde_json::Map<String, Value> =
        (0..5000).map(|at| (format!("p{at}"), json!({ "type": "string", "pattern": "^a+$" }))).collect();
    let property = |schema: Value| json!({ "type": "object", "properties": { "p": schema } });
    for (what, schema, code) in [
        ("deep", nested(40), 201),
        (
            "a pattern that swells",
            property(json!({ "type": "string", "pattern": "((((a{99}){99}){99}){99}){99}" })),
            422,
        ),
        ("a pattern that backtracks", property(json!({ "type": "string", "pattern": "^(a+)+$" })), 201),
        ("wide", json!({ "type": "object", "properties": wide }), 201),
        ("a reference to itself", property(json!({ "$ref": "#/properties/p" })), 422),
    ] {
        let answer = server.post(DEFINITIONS, definition(schema)).await;
        assert_eq!(answer.code, code, "{what}: {}", answer.body["message"]);
        server.get(&format!("{DEFAULT}/configmaps")).await.expect(200);
        if is_made(&server).await {
            // A string that a backtracking regular expression would match for ever.
            let object = json!({ "apiVersion": "example.com/v1", "kind": "Bomb", "metadata": { "name": "b" }, "p": format!("{}!", "a".repeat(100_000)) });
            let code = server.post("/apis/example.com/v1/namespaces/default/bombs", object).await.code;
            assert!(matches!(code, 201 | 422), "{what}: {code}");
            server.delete(&format!("{DEFINITIONS}/bombs.example.com"), None).await.expect(200);
            gone(&server).await;
        }
    }
    // Deeper than any document may be; as a string, since even writing such a value takes a stack.
    let (marked, depth) = (definition("mark".into()).to_string(), 3000);
    let nested = format!("{}{{}}{}", r#"{"type":"object","properties":{"a":"#.repeat(depth), "}}".repeat(depth));
    let body = marked.replace("\"mark\"", &nested);
    let headers = [("content-type", "application/json")];
    let answer = send(&server.user("admin", &["system:masters"]), "POST", DEFINITIONS, body.into(), &headers).await;
    assert_eq!(answer.code, 400, "{}", answer.body);
    server.get(&format!("{DEFAULT}/configmaps")).await.expect(200);
}

/// Waits until the CustomResourceDefinition is served, if there is one.
async fn is_made(server: &TestServer) -> bool {
    if server.get(&format!("{DEFINITIONS}/bombs.example.com")).await.code != 200 {
        return false;
    }
    for _ in 0..20_000 {
        if server.get("/apis/example.com/v1/namespaces/default/bombs").await.code == 200 {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the definition is never served");
}

async fn gone(server: &TestServer) {
    for _ in 0..20_000 {
        if server.get(&format!("{DEFINITIONS}/bombs.example.com")).await.code == 404 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the definition stays");
}
