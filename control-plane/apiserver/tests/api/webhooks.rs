//! Admission webhooks, against real HTTPS servers.

use crate::hook::{Act, Hook, allow, deny, patch, review};
use crate::server::{TestServer, call};
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

fn rule(operations: &[&str], group: &str, version: &str, resource: &str) -> Value {
    json!({ "operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource] })
}

fn webhook(name: &str, client: Value, rules: Value) -> Value {
    json!({ "name": name, "clientConfig": client, "rules": rules, "sideEffects": "None",
            "admissionReviewVersions": ["v1"] })
}

/// Registers a configuration and waits until writes use it: webhooks are read from a cache.
async fn register(server: &TestServer, kind: &str, name: &str, webhooks: Vec<Value>) {
    let body = json!({ "metadata": { "name": name }, "webhooks": webhooks });
    let plural = format!("{}webhookconfigurations", kind.to_lowercase());
    server.post(&format!("{GROUP}/{plural}"), body).await.expect(201);
    // A fresh list waits for the caches, which admission reads.
    server.get(&format!("{GROUP}/{plural}")).await.expect(200);
}

fn configmap(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "data": { "a": "b" } })
}

#[tokio::test]
async fn mutations_follow_each_other_and_are_reinvoked() {
    let server = TestServer::start().await;
    let add = |stage: &str| json!([{ "op": "add", "path": format!("/data/{stage}"), "value": "yes" }]);
    let hook = Hook::start(move |path, request| match path {
        "/first" if request.pointer("/request/object/data/second").is_some() => patch(request, add("again")),
        "/first" => patch(request, add("first")),
        "/second" => patch(request, add("second")),
        _ => allow(request),
    })
    .await;
    let rules = json!([rule(&["CREATE"], "", "v1", "configmaps")]);
    let mut first = webhook("first.hook.test", hook.client("/first"), rules.clone());
    first["reinvocationPolicy"] = "IfNeeded".into();
    let second = webhook("second.hook.test", hook.client("/second"), rules);
    // The configurations are called by name, not by age.
    register(&server, "Mutating", "b", vec![second]).await;
    register(&server, "Mutating", "a", vec![first]).await;
    let made = server.post(&format!("{CONFIGMAPS}?fieldManager=me"), configmap("x")).await.expect(201);
    assert_eq!(made["data"], json!({ "a": "b", "first": "yes", "second": "yes", "again": "yes" }));
    let calls = hook.calls();
    let paths: Vec<&str> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/first", "/second", "/first"]);
    let request = &calls[0].1["request"];
    let gvk = json!({ "group": "", "version": "v1", "kind": "ConfigMap" });
    assert_eq!((&request["kind"], &request["requestKind"]), (&gvk, &gvk));
    assert_eq!(request["resource"], json!({ "group": "", "version": "v1", "resource": "configmaps" }));
    assert_eq!(
        request["options"],
        json!({ "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me" })
    );
    assert_eq!(request["userInfo"]["username"], "admin");
    for (field, value) in [("name", "x"), ("namespace", "default"), ("operation", "CREATE")] {
        assert_eq!(request[field], value);
    }
    assert_eq!((&request["dryRun"], &request["oldObject"]), (&json!(false), &Value::Null));
    // A field that a webhook writes has no owner.
    let owned = made["metadata"]["managedFields"][0]["fieldsV1"]["f:data"].clone();
    assert_eq!(owned, json!({ ".": {}, "f:a": {} }));
}

/// A name is generated, and an object gets its uid, after the last mutation.
#[tokio::test]
async fn mutations_come_before_the_servers_own_fields() {
    let server = TestServer::start().await;
    let hook = Hook::start(|path, request| match path {
        "/mutating" => {
            let label = json!([{ "op": "add", "path": "/metadata/labels", "value": { "seen": "yes" } },
                               { "op": "add", "path": "/metadata/uid", "value": "mine" }]);
            patch(request, label)
        }
        _ => allow(request),
    })
    .await;
    let rules = json!([rule(&["CREATE"], "batch", "v1", "jobs")]);
    let mutating = webhook("mutating.hook.test", hook.client("/mutating"), rules.clone());
    register(&server, "Mutating", "m", vec![mutating]).await;
    register(&server, "Validating", "v", vec![webhook("validating.hook.test", hook.client("/validating"), rules)])
        .await;
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] } });
    let job = json!({ "metadata": { "generateName": "job-" }, "spec": { "template": template } });
    let made = server.post("/apis/batch/v1/namespaces/default/jobs", job).await.expect(201);
    let calls = hook.calls();
    let [mutating, validating] = [0, 1].map(|call| &calls[call].1["request"]);
    for field in ["name", "uid", "creationTimestamp", "generation"] {
        assert_eq!(mutating["object"]["metadata"][field], Value::Null, "{field}");
        assert_eq!(validating["object"]["metadata"][field], made["metadata"][field], "{field}");
        assert_ne!(made["metadata"][field], Value::Null, "{field}");
    }
    // A request without a name has none, also when one was generated later.
    assert!([mutating, validating].iter().all(|request| request.get("name").is_none_or(|name| name == "")));
    assert_eq!(mutating["object"]["spec"]["selector"], Value::Null);
    let uid = &made["metadata"]["uid"];
    assert_eq!(&made["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"], uid);
    assert_eq!((&made["metadata"]["labels"]["seen"], uid == "mine"), (&json!("yes"), false));
}

#[tokio::test]
async fn validation_refuses_warns_and_sees_every_operation() {
    let server = TestServer::start().await;
    let hook = Hook::start(|_, request| {
        let object = request.pointer("/request/object").filter(|o| o.is_object());
        let object = object.or_else(|| request.pointer("/request/oldObject")).cloned().unwrap_or_default();
        match object["data"]["verdict"].as_str() {
            Some("deny") => deny(request, json!({ "message": "never", "code": 403, "reason": "Forbidden" })),
            Some("silent") => deny(request, Value::Null),
            Some("warn") => review(request, json!({ "allowed": true, "warnings": ["careful"] })),
            _ => allow(request),
        }
    })
    .await;
    let rules = json!([rule(&["*"], "", "v1", "configmaps")]);
    register(&server, "Validating", "v", vec![webhook("v.hook.test", hook.client("/v"), rules)]).await;
    let with = |name: &str, verdict: &str| json!({ "metadata": { "name": name }, "data": { "verdict": verdict } });
    let denied = server.post(CONFIGMAPS, with("d", "deny")).await.expect(403);
    assert_eq!(denied["message"], "admission webhook \"v.hook.test\" denied the request: never");
    assert_eq!(denied["reason"], "Forbidden");
    let silent = server.post(CONFIGMAPS, with("s", "silent")).await.message(400);
    assert_eq!(silent, "admission webhook \"v.hook.test\" denied the request without explanation");
    let warned = server.post(CONFIGMAPS, with("w", "warn")).await;
    assert_eq!(warned.warnings(), ["299 - \"careful\""]);
    let path = format!("{CONFIGMAPS}/w");
    server.patch(&path, "merge", json!({ "data": { "verdict": "deny" } })).await.expect(403);
    hook.calls();
    server.delete(&format!("{path}?dryRun=All&gracePeriodSeconds=7"), None).await.expect(200);
    let request = hook.calls().remove(0).1["request"].clone();
    assert_eq!((&request["operation"], &request["object"]), (&json!("DELETE"), &Value::Null));
    assert_eq!((&request["oldObject"]["metadata"]["name"], &request["dryRun"]), (&json!("w"), &json!(true)));
    let options =
        json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 7, "dryRun": ["All"] });
    assert_eq!(request["options"], options);
    // A collection is deleted one by one, and webhooks get the names only from the objects.
    server.delete(CONFIGMAPS, None).await.expect(200);
    let calls = hook.calls();
    let is_one = |request: &Value| request["name"].is_null() && request["oldObject"]["metadata"]["name"] == "w";
    assert!(calls.iter().any(|(_, review)| is_one(&review["request"])), "{calls:?}");
}

#[tokio::test]
async fn a_webhook_that_hangs_or_fails_meets_its_failure_policy() {
    let server = TestServer::start().await;
    let hook = Hook::start(|path, request| match path {
        "/hang" => Act::Hang,
        "/html" => Act::Raw(200, "<html>"),
        "/broken" => Act::Raw(500, "oops"),
        "/other" => Act::Answer(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                                        "response": { "uid": "another", "allowed": true } })),
        "/rename" => {
            patch(request, json!([{ "op": "replace", "path": "/metadata/namespace", "value": "kube-system" }]))
        }
        "/managers" => {
            patch(request, json!([{ "op": "add", "path": "/metadata/managedFields", "value": [{ "x": 1 }] }]))
        }
        "/type" => patch(request, json!([{ "op": "add", "path": "/data", "value": "no map" }])),
        _ => allow(request),
    })
    .await;
    let other = Hook::start(|_, request| allow(request)).await;
    let mut strange = hook.client("/hang");
    strange["caBundle"] = other.ca().into();
    for (name, client, expected) in [
        ("hang", hook.client("/hang"), "?timeout=1s\": context deadline exceeded"),
        ("html", hook.client("/html"), "received invalid webhook response: couldn't get version/kind"),
        (
            "broken",
            hook.client("/broken"),
            "an error on the server (\"oops\") has prevented the request from succeeding",
        ),
        ("other", hook.client("/other"), "received invalid webhook response: expected response.uid="),
        ("gone", json!({ "url": "https://127.0.0.1:1/x", "caBundle": hook.ca() }), "connect: connection refused"),
        ("strange", strange, "x509: certificate signed by unknown authority"),
        (
            "nowhere",
            json!({ "service": { "namespace": "default", "name": "none" }, "caBundle": hook.ca() }),
            "Post \"https://none.default.svc:443/?timeout=30s\": service \"none\" not found",
        ),
    ] {
        let mut one = webhook(&format!("{name}.hook.test"), client, json!([rule(&["CREATE"], "", "v1", "configmaps")]));
        // Only a webhook that never responds times out; on a slow machine the others may take longer than a second.
        one["timeoutSeconds"] = if name == "hang" { 1 } else { 30 }.into();
        register(&server, "Mutating", name, vec![one.clone()]).await;
        let message = server.post(CONFIGMAPS, configmap(name)).await.message(500);
        let beginning = format!("Internal error occurred: failed calling webhook \"{name}.hook.test\": ");
        assert!(message.starts_with(&beginning) && message.contains(expected), "{message}");
        server.delete(&format!("{GROUP}/mutatingwebhookconfigurations/{name}"), None).await.expect(200);
        one["failurePolicy"] = "Ignore".into();
        register(&server, "Validating", name, vec![one]).await;
        server.post(CONFIGMAPS, configmap(name)).await.expect(201);
        server.delete(&format!("{GROUP}/validatingwebhookconfigurations/{name}"), None).await.expect(200);
    }
    for (name, code) in [("rename", 400), ("type", 500), ("managers", 201)] {
        let rules = json!([rule(&["CREATE"], "", "v1", "configmaps")]);
        let one = webhook(&format!("{name}.hook.test"), hook.client(&format!("/{name}")), rules);
        register(&server, "Mutating", name, vec![one]).await;
        let answer = server.post(CONFIGMAPS, configmap(name)).await;
        let warnings = answer.warnings();
        let answer = answer.expect(code);
        if code == 201 {
            assert_eq!(answer["metadata"]["managedFields"][0]["manager"], "unknown", "{answer}");
            let has_warning = warnings.iter().any(|warning| warning.contains("in an invalid state after admission"));
            assert!(has_warning, "{warnings:?}");
        }
        server.delete(&format!("{GROUP}/mutatingwebhookconfigurations/{name}"), None).await.expect(200);
    }
    server.get("/api/v1/namespaces/kube-system/configmaps/rename").await.expect(404);
}

#[tokio::test]
async fn requests_match_by_version_selector_and_scope() {
    let server = TestServer::start().await;
    let hook = Hook::start(|_, request| allow(request)).await;
    let v1 = json!([rule(&["*"], "autoscaling", "v1", "horizontalpodautoscalers")]);
    let mut exact = webhook("exact.hook.test", hook.client("/exact"), v1.clone());
    exact["matchPolicy"] = "Exact".into();
    let equivalent = webhook("equivalent.hook.test", hook.client("/equivalent"), v1);
    let mut labelled =
        webhook("labelled.hook.test", hook.client("/labelled"), json!([rule(&["*"], "", "v1", "configmaps")]));
    labelled["objectSelector"] = json!({ "matchLabels": { "seen": "yes" } });
    let mut elsewhere = webhook("elsewhere.hook.test", hook.client("/elsewhere"), json!([rule(&["*"], "", "v1", "*")]));
    elsewhere["namespaceSelector"] = json!({ "matchLabels": { "watched": "yes" } });
    let mut cluster = webhook("cluster.hook.test", hook.client("/cluster"), json!([rule(&["*"], "*", "*", "*/*")]));
    cluster["rules"][0]["scope"] = "Cluster".into();
    register(&server, "Validating", "v", vec![exact, equivalent, labelled, elsewhere, cluster]).await;
    let calls = async |path: &str, body: Value, code: u16| {
        server.post(path, body).await.expect(code);
        let mut paths: Vec<String> = hook.calls().into_iter().map(|(path, _)| path).collect();
        paths.sort();
        paths.join(" ")
    };
    assert_eq!(calls(CONFIGMAPS, configmap("plain"), 201).await, "");
    let mut seen = configmap("seen");
    seen["metadata"]["labels"] = json!({ "seen": "yes" });
    assert_eq!(calls(CONFIGMAPS, seen, 201).await, "/labelled");
    let namespace = json!({ "metadata": { "name": "w", "labels": { "watched": "yes" } } });
    assert_eq!(calls("/api/v1/namespaces", namespace, 201).await, "/cluster /elsewhere");
    assert_eq!(calls("/api/v1/namespaces/w/configmaps", configmap("x"), 201).await, "/elsewhere");
    // A configuration is never sent to a webhook, whatever its rules.
    let none = json!({ "metadata": { "name": "none" }, "webhooks": [] });
    assert_eq!(calls(&format!("{GROUP}/mutatingwebhookconfigurations"), none, 201).await, "");
    let autoscaler = json!({ "metadata": { "name": "h" }, "spec": { "maxReplicas": 3,
        "scaleTargetRef": { "kind": "Deployment", "name": "d", "apiVersion": "apps/v1" },
        "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } }] } });
    server.post("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", autoscaler).await.expect(201);
    let shown = hook.calls();
    assert_eq!(shown.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["/equivalent"]);
    let request = &shown[0].1["request"];
    assert_eq!((&request["kind"]["version"], &request["requestKind"]["version"]), (&json!("v1"), &json!("v2")));
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v1");
    assert_eq!(request["object"]["spec"]["targetCPUUtilizationPercentage"], 50);
}

fn pod(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }] } })
}

#[tokio::test]
async fn subresources_and_connections_are_sent_as_they_are() {
    let server = TestServer::start().await;
    let account = json!({ "metadata": { "name": "default" } });
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    let pods = "/api/v1/namespaces/default/pods";
    server.post(pods, pod("p")).await.expect(201);
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let deployment = json!({ "metadata": { "name": "d" }, "spec": {
        "replicas": 1, "selector": { "matchLabels": { "a": "b" } }, "template": template } });
    server.post(deployments, deployment).await.expect(201);
    let hook = Hook::start(|_, request| {
        let request_of = |pointer: &str| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        match request_of("/request/subResource") {
            "attach" => deny(request, json!({ "message": "attaching to pod is not allowed" })),
            "scale" => patch(request, json!([{ "op": "replace", "path": "/spec/replicas", "value": 5 }])),
            _ => allow(request),
        }
    })
    .await;
    let rules = json!([
        rule(&["*"], "", "v1", "pods/*"),
        rule(&["*"], "apps", "v1", "*/scale"),
        rule(&["*"], "authorization.k8s.io", "v1", "*"),
    ]);
    register(&server, "Mutating", "m", vec![webhook("m.hook.test", hook.client("/m"), rules)]).await;
    let last = || hook.calls().pop().unwrap().1["request"].clone();

    let refused = call(
        &server.user("admin", &["system:masters"]),
        "GET",
        &format!("{pods}/p/attach?stdin=1&container=c"),
        None,
        "",
    )
    .await;
    assert_eq!(
        refused.message(400),
        "admission webhook \"m.hook.test\" denied the request: attaching to pod is not allowed"
    );
    let request = last();
    assert_eq!((&request["operation"], &request["kind"]["kind"]), (&json!("CONNECT"), &json!("PodAttachOptions")));
    assert_eq!(
        request["object"],
        json!({ "kind": "PodAttachOptions", "apiVersion": "v1", "stdin": true, "container": "c" })
    );

    let scale = json!({ "metadata": { "name": "d" }, "spec": { "replicas": 2 } });
    let scaled = server.put(&format!("{deployments}/d/scale"), scale).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    let request = last();
    assert_eq!((&request["kind"]["group"], &request["kind"]["kind"]), (&json!("autoscaling"), &json!("Scale")));
    assert_eq!(
        (&request["object"]["spec"]["replicas"], &request["oldObject"]["spec"]["replicas"]),
        (&json!(2), &json!(1))
    );

    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n" } });
    server.post(&format!("{pods}/p/binding"), binding).await.expect(201);
    let calls = hook.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0].1["request"]["object"]["target"]["name"], "n");

    server.post(&format!("{pods}/p/eviction"), json!({ "metadata": { "name": "p" } })).await.expect(201);
    let calls = hook.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0].1["request"]["kind"], json!({ "group": "policy", "version": "v1", "kind": "Eviction" }));

    let question = json!({ "spec": { "resourceAttributes": { "verb": "get", "resource": "pods" } } });
    server.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question).await.expect(201);
    assert_eq!(last()["kind"]["kind"], "SelfSubjectAccessReview");
}

#[tokio::test]
async fn a_hanging_webhook_does_not_stop_others() {
    let server = TestServer::start().await;
    let hook = Hook::start(|_, _| Act::Hang).await;
    let mut one = webhook("h.hook.test", hook.client("/"), json!([rule(&["CREATE"], "", "v1", "secrets")]));
    one["timeoutSeconds"] = 30.into();
    register(&server, "Validating", "h", vec![one]).await;
    let admin = server.user("admin", &["system:masters"]);
    let stuck = tokio::spawn(async move {
        let body = json!({ "metadata": { "name": "s" } });
        call(&admin, "POST", "/api/v1/namespaces/default/secrets", Some(body), "application/json").await
    });
    while hook.calls().is_empty() {
        assert!(!stuck.is_finished(), "the webhook is called");
        tokio::task::yield_now().await;
    }
    server.post(CONFIGMAPS, configmap("free")).await.expect(201);
    assert!(!stuck.is_finished());
    stuck.abort();
}

#[tokio::test]
async fn conditions_decide_whether_a_webhook_is_called() {
    let server = TestServer::start().await;
    let hook = Hook::start(|_, request| allow(request)).await;
    let rules = json!([rule(&["CREATE"], "", "v1", "configmaps")]);
    let with = |name: &str, expressions: &[&str], policy: &str| {
        let mut one = webhook(&format!("{name}.hook.test"), hook.client(&format!("/{name}")), rules.clone());
        let named = |(at, expression): (usize, &&str)| json!({ "name": format!("c{at}"), "expression": expression });
        one["matchConditions"] = expressions.iter().enumerate().map(named).collect();
        one["failurePolicy"] = policy.into();
        one
    };
    let refused =
        json!({ "metadata": { "name": "bad" }, "webhooks": [with("bad", &["... [] bad expression"], "Fail")] });
    let message = server.post(&format!("{GROUP}/validatingwebhookconfigurations"), refused).await.message(422);
    assert!(message.contains("webhooks[0].matchConditions[0].expression: Invalid value"), "{message}");
    assert!(message.contains("compilation failed: ERROR: <input>:1:"), "{message}");
    let hooks = vec![
        with("named", &["object.metadata.name != 'skip-me'"], "Fail"),
        with("mine", &["request.userInfo.username == 'admin'", "request.operation == 'CREATE'"], "Fail"),
        with("rights", &["authorizer.group('').resource('secrets').check('get').allowed()"], "Fail"),
        with("open", &["object.data.none == 'x'"], "Ignore"),
        with("never", &["object.data.none == 'x'", "false"], "Fail"),
    ];
    register(&server, "Validating", "v", hooks).await;
    let called = || {
        let mut paths: Vec<String> = hook.calls().into_iter().map(|(path, _)| path).collect();
        paths.sort();
        paths.join(" ")
    };
    server.post(CONFIGMAPS, configmap("x")).await.expect(201);
    assert_eq!(called(), "/mine /named /rights");
    server.post(CONFIGMAPS, configmap("skip-me")).await.expect(201);
    assert_eq!(called(), "/mine /rights");
    register(&server, "Mutating", "closed", vec![with("closed", &["object.data.none == 'x'"], "Fail")]).await;
    let message = server.post(CONFIGMAPS, configmap("y")).await.message(403);
    assert!(message.contains("expression 'object.data.none == 'x'' resulted in error: no such key: none"), "{message}");
}
