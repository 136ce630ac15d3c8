//! Attacks, and the errors they get.

use crate::server::{Answer, TestServer, call, send};
use corten_apiserver::InProcess;
use serde_json::{Value, json};
use testkit::eventually::eventually;

const DEFAULT: &str = "/api/v1/namespaces/default";

async fn post(client: &InProcess, path: &str, body: Value) -> Answer {
    call(client, "POST", path, Some(body), "application/json").await
}

/// Neither other claims nor another signature make a valid token.
#[tokio::test]
async fn a_forged_token_is_invalid() {
    let server = TestServer::start().await;
    let accounts = format!("{DEFAULT}/serviceaccounts");
    server.post(&accounts, json!({ "metadata": { "name": "robot" } })).await.expect(201);
    let made = server.post(&format!("{accounts}/robot/token"), json!({ "spec": {} })).await.expect(201);
    let token = made["status"]["token"].as_str().unwrap();
    let mut parts: Vec<&str> = token.split('.').collect();
    parts[1] = "eyJzdWIiOiJhZG1pbiJ9";
    let other_claims = parts.join(".");
    let other_signature = format!("{}x", &token[..token.len() - 1]);
    for (token, is_valid) in [(token, true), (other_claims.as_str(), false), (other_signature.as_str(), false)] {
        let review = json!({ "spec": { "token": token } });
        let review = server.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await.expect(201);
        assert_eq!(review["status"].get("authenticated").is_some(), is_valid, "{review}");
    }
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
    eventually("the address is free", async || {
        call(&node, "PATCH", "/api/v1/nodes/a/status", Some(taken.clone()), merge).await.try_expect(200)
    })
    .await;
    // The server's own machine has the server's address.
    let first = server.user("system:node:server", &["system:nodes"]);
    let object = json!({ "metadata": { "name": "server" }, "status": addresses(&["10.0.0.1"]) });
    post(&first, "/api/v1/nodes", object).await.expect(201);
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
    let refused = eventually("the policy refuses it", async || {
        server.post(&format!("{DEFAULT}/configmaps?dryRun=All"), big.clone()).await.try_expect(422)
    });
    let message = refused.await["message"].to_string();
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
            server.until(&format!("{DEFINITIONS}/bombs.example.com"), 404).await;
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
    server.until("/apis/example.com/v1/namespaces/default/bombs", 200).await;
    true
}
