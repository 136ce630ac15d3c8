//! Admission policies, from their creation to their effect on a write.

use crate::server::{TestServer, call};
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn policy(kind: &str, name: &str, spec: Value) -> Value {
    let mut full = json!({ "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"] }] } });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": name }, "spec": full })
}

fn binding(kind: &str, policy: &str, spec: Value) -> Value {
    let mut full = json!({ "policyName": policy });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": format!("{policy}-b") }, "spec": full })
}

async fn validating(s: &TestServer, name: &str, spec: Value, bound: Value) {
    let path = format!("{GROUP}/validatingadmissionpolicies");
    s.post(&path, policy("ValidatingAdmissionPolicy", name, spec)).await.expect(201);
    let path = format!("{GROUP}/validatingadmissionpolicybindings");
    s.post(&path, binding("ValidatingAdmissionPolicyBinding", name, bound)).await.expect(201);
}

fn map(name: &str, data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

/// Repeats a write until the policies apply: they are read from a cache.
async fn refused(s: &TestServer, body: Value) -> Value {
    for _ in 0..20_000 {
        let answer = s.post(&format!("{MAPS}?dryRun=All"), body.clone()).await;
        if answer.code != 201 {
            return answer.body;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the write is not refused");
}

#[tokio::test]
async fn a_policy_gets_no_names_of_deleted_collections_and_no_reviews() {
    let s = TestServer::start().await;
    let constraints = json!({ "resourceRules": [
        { "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"] }] });
    let spec = json!({ "matchConstraints": constraints, "validations": [
        { "expression": "request.operation != 'DELETE' ? request.name != 'no' : request.name != ''", "message": "so" }] });
    s.post(MAPS, map("one", json!({}))).await.expect(201);
    validating(&s, "nameless", spec, json!({ "validationActions": ["Deny"] })).await;
    refused(&s, map("no", json!({}))).await;
    let together = s.delete(MAPS, None).await.message(422);
    assert!(together.ends_with("denied request: so"), "{together}");
    s.delete(&format!("{MAPS}/one"), None).await.expect(200);
    let hooks = json!({ "metadata": { "name": "no" } });
    s.post(&format!("{GROUP}/validatingwebhookconfigurations"), hooks).await.expect(422);
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
                         "metadata": { "name": "no" } });
    s.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", review).await.expect(201);
}

#[tokio::test]
async fn a_policy_denies_and_warns() {
    let s = TestServer::start().await;
    let spec = json!({
        "variables": [{ "name": "size", "expression": "object.data.size()" }, { "name": "big", "expression": "variables.size > 1" }],
        "validations": [{ "expression": "!variables.big", "messageExpression": "'%d entries are too many'.format([variables.size])" }] });
    validating(&s, "small", spec, json!({ "validationActions": ["Deny"] })).await;
    let body = refused(&s, map("a", json!({ "a": "1", "b": "2" }))).await;
    assert_eq!((&body["code"], &body["reason"]), (&json!(422), &json!("Invalid")), "{body}");
    assert_eq!(
        body["message"],
        "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'small' with binding 'small-b' denied request: 2 entries are too many"
    );
    s.post(MAPS, map("b", json!({ "a": "1" }))).await.expect(201);

    let spec = json!({ "validations": [{ "expression": "false", "message": "mind the gap" }] });
    validating(&s, "warner", spec, json!({ "validationActions": ["Warn"] })).await;
    for attempt in 0.. {
        assert!(attempt < 20_000, "there is no warning");
        let answer = s.post(&format!("{MAPS}?dryRun=All"), map("c", json!({ "a": "1" }))).await;
        if answer.warnings().iter().any(|w| {
            w.contains("Validation failed for ValidatingAdmissionPolicy 'warner' with binding 'warner-b': mind the gap")
        }) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn parameters_conditions_and_errors() {
    let s = TestServer::start().await;
    s.post(MAPS, map("limits", json!({ "forbidden": "x" }))).await.expect(201);
    let spec = json!({ "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" }, "failurePolicy": "Fail",
        "matchConditions": [{ "name": "named", "expression": "object.metadata.name.startsWith('guarded')" },
                            { "name": "who", "expression": "request.userInfo.username != 'trusted'" }],
        "validations": [{ "expression": "!(params.data.forbidden in object.data)", "reason": "Forbidden" },
                        { "expression": "object.data.missing == 'x' || true" }] });
    let bound =
        json!({ "validationActions": ["Deny"], "paramRef": { "name": "limits", "parameterNotFoundAction": "Deny" } });
    validating(&s, "guard", spec, bound).await;
    let body = refused(&s, map("guarded", json!({ "x": "1" }))).await;
    assert_eq!((&body["code"], &body["reason"]), (&json!(403), &json!("Forbidden")), "{body}");
    assert!(body["message"].as_str().unwrap().contains("failed expression: !(params.data.forbidden in object.data)"));
    s.post(MAPS, map("free", json!({ "x": "1" }))).await.expect(201);
    let trusted = s.user("trusted", &["system:masters"]);
    call(&trusted, "POST", MAPS, Some(map("guarded-2", json!({ "x": "1" }))), "application/json").await.expect(201);

    s.delete(&format!("{MAPS}/limits"), None).await.expect(200);
    for attempt in 0.. {
        assert!(attempt < 20_000, "parameters are not missed");
        let answer = s.post(&format!("{MAPS}?dryRun=All"), map("guarded-3", json!({}))).await;
        if answer.body["message"].as_str().is_some_and(|m| m.contains("no params found for policy binding")) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // No user locks themselves out.
    s.delete(&format!("{GROUP}/validatingadmissionpolicies/guard"), None).await.expect(200);
}

#[tokio::test]
async fn expressions_that_do_not_compile_are_refused() {
    let s = TestServer::start().await;
    for (spec, place) in [
        (
            json!({ "validations": [{ "expression": "object.x ==" }] }),
            "spec.validations[0].expression: Invalid value: \"object.x ==\": compilation failed: ERROR: <input>:1:12: Syntax error",
        ),
        (
            json!({ "validations": [{ "expression": "1" }] }),
            "spec.validations[0].expression: Invalid value: \"1\": must evaluate to bool",
        ),
        (json!({ "validations": [{ "expression": "params.x" }] }), "undeclared reference to 'params'"),
        (json!({ "validations": [{ "expression": "request.usrInfo == null" }] }), "undefined field 'usrInfo'"),
        (
            json!({ "validations": [{ "expression": "variables.nope" }], "variables": [{ "name": "yes", "expression": "1" }] }),
            "undefined field 'nope'",
        ),
        (
            json!({ "validations": [{ "expression": "variables.no" }], "variables": [{ "name": "no", "expression": "" }] }),
            "undefined field 'no'",
        ),
        (
            json!({ "validations": [{ "expression": "variables.no" }] }),
            "undeclared reference to 'variables' (in container '')",
        ),
        (
            json!({ "validations": [{ "expression": "true", "messageExpression": "1" }] }),
            "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string",
        ),
        (
            json!({ "validations": [{ "expression": "true" }], "auditAnnotations": [{ "key": "k", "valueExpression": "1" }] }),
            "must evaluate to one of [string null_type]",
        ),
        (
            json!({ "validations": [{ "expression": "authorizer.group('').resource('pods').check('get').allowed() && authorizer.requestResource.check('x').allowed()" }],
                 "matchConditions": [{ "name": "a", "expression": "nope" }] }),
            "spec.matchConditions[0].expression",
        ),
    ] {
        let path = format!("{GROUP}/validatingadmissionpolicies");
        let message = s.post(&path, policy("ValidatingAdmissionPolicy", "p", spec.clone())).await.message(422);
        assert!(message.contains(place), "{spec}: {message}");
    }
}

#[tokio::test]
async fn a_policy_queries_the_authorizer() {
    let s = TestServer::start().await;
    let spec = json!({ "validations": [{ "expression": "authorizer.group('').resource('secrets').namespace('default').check('delete').allowed()",
                                         "message": "only those who may delete secrets" }] });
    validating(&s, "asking", spec, json!({ "validationActions": ["Deny"] })).await;
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "maps" },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] }] });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    let grant = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "maps" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps" },
        "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve" }] });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", grant).await.expect(201);
    let eve = s.user("eve", &[]);
    for attempt in 0.. {
        assert!(attempt < 20_000, "eve is not refused by the policy");
        let answer = call(&eve, "POST", MAPS, Some(map("e", json!({}))), "application/json").await;
        if answer.body["message"].as_str().is_some_and(|m| m.contains("only those who may delete secrets")) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    s.post(MAPS, map("mine", json!({}))).await.expect(201);
}

#[tokio::test]
async fn a_policy_mutates_a_write() {
    let s = TestServer::start().await;
    let rules = json!({ "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [
        { "patchType": "ApplyConfiguration", "applyConfiguration": { "expression":
            "Object{metadata: Object.metadata{labels: Object.metadata.labels{owner: request.userInfo.username}}}" } },
        { "patchType": "JSONPatch", "jsonPatch": { "expression":
            "has(object.data) ? [JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a.b/c'), value: object.metadata.labels.owner}] : []" } },
        // The test of this patch fails, so it changes nothing.
        { "patchType": "JSONPatch", "jsonPatch": { "expression":
            "[JSONPatch{op: 'test', path: '/metadata/labels/own', value: '2'}, JSONPatch{op: 'remove', path: '/data'}]" } }] });
    let path = format!("{GROUP}/mutatingadmissionpolicies");
    s.post(&path, policy("MutatingAdmissionPolicy", "label", rules)).await.expect(201);
    let path = format!("{GROUP}/mutatingadmissionpolicybindings");
    s.post(&path, binding("MutatingAdmissionPolicyBinding", "label", json!({}))).await.expect(201);
    for attempt in 0.. {
        assert!(attempt < 20_000, "nothing is changed");
        let mut body = map("m", json!({ "k": "v" }));
        body["metadata"]["labels"] = json!({ "own": "1" });
        let made = s.post(&format!("{MAPS}?dryRun=All"), body).await.expect(201);
        if made["metadata"]["labels"]["owner"] == "admin" {
            assert_eq!(made["metadata"]["labels"]["own"], "1");
            assert_eq!(made["metadata"]["labels"]["a.b/c"], "admin");
            assert_eq!(made["data"], json!({ "k": "v" }));
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let wrong = json!({ "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [
        { "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": "Object{spec: Object.sepc{}}" } }] });
    let path = format!("{GROUP}/mutatingadmissionpolicies");
    let message = s.post(&path, policy("MutatingAdmissionPolicy", "wrong", wrong)).await.message(422);
    assert!(message.contains("spec.mutations[0].applyConfiguration.expression"), "{message}");
}

#[tokio::test]
async fn a_policy_is_type_checked() {
    let s = TestServer::start().await;
    let spec = json!({ "validations": [{ "expression": "object.immutable > 1",
        "messageExpression": "'it is ' + object.immutable" }, { "expression": "object.immutable == true" }] });
    let path = format!("{GROUP}/validatingadmissionpolicies");
    s.post(&path, policy("ValidatingAdmissionPolicy", "typed", spec)).await.expect(201);
    for attempt in 0.. {
        assert!(attempt < 20_000, "the policy is not type-checked");
        let found = s.get(&format!("{path}/typed")).await.expect(200);
        if let Some(warnings) = found["status"]["typeChecking"]["expressionWarnings"].as_array() {
            assert_eq!(warnings.len(), 2, "{warnings:?}");
            assert_eq!(warnings[0]["fieldRef"], "spec.validations[0].expression");
            let warning = warnings[0]["warning"].as_str().unwrap();
            assert!(warning.contains("v1, Kind=ConfigMap: compilation failed: ERROR: <input>:1:18"), "{warning}");
            assert!(warning.contains("found no matching overload for '_>_' applied to '(bool, int)'"), "{warning}");
            assert_eq!(warnings[1]["fieldRef"], "spec.validations[0].messageExpression");
            assert_eq!(found["status"]["observedGeneration"], 1);
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
