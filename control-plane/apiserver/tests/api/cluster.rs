//! The server's work for the cluster: admission, allocation, subresources of pods, identities, permissions.

use crate::server::{TestServer, call, send};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn start() -> TestServer {
    let s = TestServer::start().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "default" } }))
        .await
        .expect(201);
    s
}

fn pod(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": "x" } },
            "spec": { "containers": [{ "name": "c", "image": "busybox" }] } })
}

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["ports"] = json!([{ "port": 80 }]);
    json!({ "metadata": { "name": name }, "spec": spec })
}

#[tokio::test]
async fn a_pod_is_admitted_bound_and_deleted() {
    let s = start().await;
    let created = s.post(PODS, pod("p")).await.expect(201);
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    assert!(created["spec"]["volumes"][0]["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(created["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!((&created["spec"]["priority"], &created["status"]["phase"]), (&json!(0), &json!("Pending")));

    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n1" } });
    s.post(&format!("{PODS}/p/binding"), binding.clone()).await.expect(201);
    let bound = s.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(
        (&bound["spec"]["nodeName"], &bound["status"]["conditions"][0]["type"], &bound["metadata"]["generation"]),
        (&json!("n1"), &json!("PodScheduled"), &json!(1))
    );
    let again = s.post(&format!("{PODS}/p/binding"), binding).await.message(409);
    assert!(again.ends_with("pod p is already assigned to node \"n1\""), "{again}");

    let marked = s.delete(&format!("{PODS}/p"), None).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["generation"], 2);
    let shorter = s.delete(&format!("{PODS}/p"), Some(json!({ "gracePeriodSeconds": 5 }))).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    s.delete(&format!("{PODS}/p"), Some(json!({ "gracePeriodSeconds": 0 }))).await.expect(200);
    assert_eq!(s.get(&format!("{PODS}/p")).await.code, 404);

    s.post(PODS, pod("q")).await.expect(201);
    s.delete(&format!("{PODS}/q"), None).await.expect(200);
    assert_eq!(s.get(&format!("{PODS}/q")).await.code, 404, "a pod that never ran goes at once");
    let log = s.get(&format!("{PODS}/q/log")).await;
    assert_eq!(log.code, 404);
}

#[tokio::test]
async fn a_pod_of_an_unknown_account_or_class_is_refused() {
    let s = start().await;
    let mut body = pod("p");
    body["spec"]["serviceAccountName"] = "nobody".into();
    let message = s.post(PODS, body).await.message(403);
    assert_eq!(
        message,
        "pods \"p\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
    );
    for name in ["none", "a/b", "..", "a%2fb"] {
        let mut body = pod("p");
        body["spec"]["priorityClassName"] = name.into();
        assert_eq!(
            s.post(PODS, body).await.message(403),
            format!("pods \"p\" is forbidden: no PriorityClass with name {name} was found")
        );
    }
    let mut body = pod("p");
    body["spec"]["priorityClassName"] = "system-node-critical".into();
    assert_eq!(s.post("/api/v1/namespaces/default/pods", body).await.expect(201)["spec"]["priority"], 2000001000);
}

#[tokio::test]
async fn one_priority_class_is_the_default() {
    let s = start().await;
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = |name: &str| json!({"metadata": {"name": name}, "value": 1, "globalDefault": true});
    s.post(classes, class("a")).await.expect(201);
    // A list waits until the caches have it.
    s.get(classes).await.expect(200);
    // An object conflicts also with itself.
    for name in ["a", "b"] {
        let why = "PriorityClass a is already marked as default. Only one default can exist";
        assert_eq!(
            s.post(classes, class(name)).await.message(403),
            format!("priorityclasses.scheduling.k8s.io \"{name}\" is forbidden: {why}")
        );
    }
    s.put(&format!("{classes}/a"), class("a")).await.expect(200);
}

#[tokio::test]
async fn annotations_with_a_meaning_are_validated_twice_in_an_update() {
    let s = start().await;
    s.post(PODS, pod("p")).await.expect(201);
    let body = json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "x"}}});
    let answer = s.patch(&format!("{PODS}/p"), "merge", body).await.expect(422);
    let causes = answer["details"]["causes"].as_array().expect("causes");
    assert_eq!(causes.len(), 2, "{answer}");
    assert_eq!(causes[0], causes[1]);
    assert_eq!(causes[0]["field"], "metadata.annotations.seccomp.security.alpha.kubernetes.io/pod");
}

#[tokio::test]
async fn a_job_takes_the_labels_of_its_template_only_if_it_has_none() {
    let s = start().await;
    let own = json!({"a": "b"});
    for (name, labels, taken) in [("x", None, true), ("y", Some(json!({})), true), ("z", Some(own.clone()), false)] {
        let template = json!({"metadata": {"labels": own}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let mut job = json!({"metadata": {"name": name}, "spec": {"template": template}});
        if let Some(labels) = labels {
            job["metadata"]["labels"] = labels;
        }
        let made = s.post("/apis/batch/v1/namespaces/default/jobs", job).await.expect(201);
        let of_template = &made["spec"]["template"]["metadata"]["labels"];
        assert_eq!(of_template["job-name"], name);
        assert_eq!(&made["metadata"]["labels"], if taken { of_template } else { &own }, "{name}");
    }
}

#[tokio::test]
async fn evictions_respect_the_budget() {
    let s = start().await;
    s.post(PODS, pod("p")).await.expect(201);
    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n1" } });
    s.post(&format!("{PODS}/p/binding"), binding).await.expect(201);
    let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    s.patch(&format!("{PODS}/p/status"), "merge", status).await.expect(200);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({ "metadata": { "name": "b" }, "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "x" } } } });
    s.post(budgets, budget).await.expect(201);
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p" } });
    let refused = s.post(&format!("{PODS}/p/eviction"), eviction.clone()).await;
    assert_eq!(refused.headers["retry-after"], "10");
    assert_eq!(refused.message(429), "Cannot evict pod as it would violate the pod's disruption budget.");
    let allowed = json!({ "status": { "disruptionsAllowed": 1, "observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2 } });
    s.patch(&format!("{budgets}/b/status"), "merge", allowed).await.expect(200);
    s.post(&format!("{PODS}/p/eviction"), eviction).await.expect(201);
    let after = s.get(&format!("{budgets}/b")).await.expect(200);
    assert_eq!(after["status"]["disruptionsAllowed"], 0);
    assert!(after["status"]["disruptedPods"]["p"].is_string());
    assert!(s.get(&format!("{PODS}/p")).await.expect(200)["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn namespaces_are_deleted_when_they_are_finalized() {
    let s = start().await;
    s.post("/api/v1/namespaces", json!({ "metadata": { "name": "n" } })).await.expect(201);
    let marked = s.delete("/api/v1/namespaces/n", None).await.expect(200);
    assert_eq!(
        (&marked["status"]["phase"], &marked["spec"]["finalizers"]),
        (&json!("Terminating"), &json!(["kubernetes"]))
    );
    let refused = s.post("/api/v1/namespaces/n/configmaps", json!({ "metadata": { "name": "c" } })).await.message(403);
    assert_eq!(
        refused,
        "configmaps \"c\" is forbidden: unable to create new content in namespace n because it is being terminated"
    );
    let mut finalize = marked;
    finalize["spec"]["finalizers"] = json!([]);
    s.put("/api/v1/namespaces/n/finalize", finalize).await.expect(200);
    assert_eq!(s.get("/api/v1/namespaces/n").await.code, 404);
    let immortal = s.delete("/api/v1/namespaces/kube-system", None).await.message(403);
    assert_eq!(immortal, "namespaces \"kube-system\" is forbidden: this namespace may not be deleted");
}

#[tokio::test]
async fn addresses_and_ports_are_allocated_once_and_freed() {
    let s = start().await;
    let a = s.post(SERVICES, service("a", json!({ "type": "NodePort" }))).await.expect(201);
    let ip = a["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let port = a["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!(ip.starts_with("10.") && (30000..=32767).contains(&port), "{ip} {port}");
    let address = s.get(&format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}")).await.expect(200);
    assert_eq!(address["spec"]["parentRef"]["name"], "a");
    let owned = &address["metadata"]["managedFields"][0];
    assert_eq!((&owned["manager"], &owned["operation"]), (&json!("kube-apiserver"), &json!("Update")));
    let parent = json!({ ".": {}, "f:name": {}, "f:namespace": {}, "f:resource": {} });
    assert_eq!(owned["fieldsV1"]["f:spec"]["f:parentRef"], parent);
    let taken = s.post(SERVICES, service("b", json!({ "clusterIP": ip }))).await.message(422);
    assert!(taken.contains(&format!("failed to allocate IP {ip}: provided IP is already allocated")), "{taken}");
    s.post(&format!("{SERVICES}?dryRun=All"), service("b", json!({ "clusterIP": ip }))).await.expect(201);
    // A Service with an address must have a name before anything else is validated.
    for (name, spec, why) in [
        (
            "",
            json!({ "clusterIP": ip }),
            format!("[\"{ip}\"]: failed to allocate IP {ip}: IPAddress.networking.k8s.io"),
        ),
        ("", json!({}), "[\"\"]: failed to allocate IP: IPAddress.networking.k8s.io".to_owned()),
        ("a/b", json!({}), "spec.parentRef.name: Invalid value: \"a/b\": may not contain '/'".to_owned()),
        (
            "",
            json!({ "clusterIP": "None" }),
            "metadata.name: Required value: name or generateName is required".to_owned(),
        ),
    ] {
        let refused = s.post(SERVICES, service(name, spec)).await.message(422);
        assert!(refused.contains(&why), "{refused}");
    }
    let mut same_port = service("b", json!({ "type": "NodePort" }));
    same_port["spec"]["ports"][0]["nodePort"] = port.into();
    assert!(s.post(SERVICES, same_port).await.message(422).contains("provided port is already allocated"));
    for (requested, why) in
        [(port, "provided port is already allocated"), (80, "provided port is not in the valid range")]
    {
        let local =
            json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": requested });
        let refused = s.post(SERVICES, service("b", local)).await.message(500);
        assert!(refused.contains(&format!("HealthCheck NodePort {requested}: {why}")), "{refused}");
    }
    // For a Service with such a port, another one is refused as a change.
    let local = json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local" });
    s.post(SERVICES, service("local", local)).await.expect(201);
    let changed = json!({ "spec": { "healthCheckNodePort": 65536 } });
    let refused = s.patch(&format!("{SERVICES}/local"), "merge", changed).await.message(422);
    assert!(refused.contains("spec.healthCheckNodePort: Forbidden: field is immutable"), "{refused}");
    // An update without them keeps both; another type frees the port.
    let patched =
        s.patch(&format!("{SERVICES}/a"), "merge", json!({ "metadata": { "labels": { "l": "1" } } })).await.expect(200);
    assert_eq!((&patched["spec"]["clusterIP"], &patched["spec"]["ports"][0]["nodePort"]), (&json!(ip), &json!(port)));
    // The first address stays, also if the other one is not available.
    let other = json!({ "spec": { "clusterIP": "192.0.2.1", "clusterIPs": ["192.0.2.1"] } });
    let moved = s.patch(&format!("{SERVICES}/a"), "merge", other).await.message(422);
    assert!(moved.contains("spec.clusterIPs[0]: Invalid value: [\"192.0.2.1\"]: may not change once set"), "{moved}");
    let plain = s
        .patch(
            &format!("{SERVICES}/a"),
            "merge",
            json!({ "spec": { "type": "ClusterIP", "ports": [{ "port": 80, "protocol": "TCP" }] } }),
        )
        .await
        .expect(200);
    assert_eq!(plain["spec"]["ports"][0].get("nodePort"), None);
    let mut reuse = service("c", json!({ "type": "NodePort" }));
    reuse["spec"]["ports"][0]["nodePort"] = port.into();
    s.post(SERVICES, reuse).await.expect(201);
    s.delete(&format!("{SERVICES}/a"), None).await.expect(200);
    assert_eq!(s.get(&format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}")).await.code, 404);
    s.post(SERVICES, service("b", json!({ "clusterIP": ip }))).await.expect(201);
    let headless = s.post(SERVICES, service("h", json!({ "clusterIP": "None" }))).await.expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_is_allocated_twice_under_concurrency() {
    let s = start().await;
    let creations = (0..24).map(|i| {
        let admin = s.user("a", &["system:masters"]);
        let body = service(&format!("s{i}"), json!({ "type": "NodePort" }));
        tokio::spawn(async move { call(&admin, "POST", SERVICES, Some(body), "application/json").await.expect(201) })
    });
    let mut addresses = std::collections::BTreeSet::new();
    let mut ports = std::collections::BTreeSet::new();
    for creation in creations.collect::<Vec<_>>() {
        let service = creation.await.unwrap();
        addresses.insert(service["spec"]["clusterIP"].as_str().unwrap().to_owned());
        ports.insert(service["spec"]["ports"][0]["nodePort"].as_u64().unwrap());
    }
    assert_eq!((addresses.len(), ports.len()), (24, 24));
}

#[tokio::test]
async fn rbac_decides_and_gives_a_reason() {
    let s = start().await;
    let bob = s.user("bob", &[]);
    let refused = call(&bob, "GET", PODS, None, "").await.message(403);
    assert_eq!(
        refused,
        "pods is forbidden: User \"bob\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let rules = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] }, { "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"] }]);
    s.post(roles, json!({ "metadata": { "name": "reader" }, "rules": rules })).await.expect(201);
    let binding = json!({ "metadata": { "name": "bob" }, "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
                          "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob" }] });
    s.post(bindings, binding).await.expect(201);
    // The caches have a write before its response is used, within a bound.
    let mut allowed = 403;
    for _ in 0..20_000 {
        allowed = call(&bob, "GET", PODS, None, "").await.code;
        if allowed == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(allowed, 200);
    let review =
        json!({ "spec": { "resourceAttributes": { "namespace": "default", "verb": "delete", "resource": "pods" } } });
    let access = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(
        call(&bob, "POST", access, Some(review.clone()), "application/json").await.expect(201)["status"]["allowed"],
        false
    );
    let mut allowed = review;
    allowed["spec"]["resourceAttributes"]["verb"] = "get".into();
    let answer = call(&bob, "POST", access, Some(allowed), "application/json").await.expect(201);
    assert_eq!(
        answer["status"]["reason"],
        "RBAC: allowed by RoleBinding \"bob/default\" of Role \"reader\" to User \"bob\""
    );
    let grab = json!({ "metadata": { "name": "more" }, "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }] });
    let refused = call(&bob, "POST", roles, Some(grab), "application/json").await.message(403);
    assert!(refused.contains("is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"), "{refused}");
    let admin = s.user("root", &["system:masters"]);
    let as_bob = send(&admin, "GET", "/api/v1/secrets", Default::default(), &[("impersonate-user", "bob")]).await;
    assert_eq!(as_bob.code, 403);
    assert!(as_bob.headers.contains_key("x-kubernetes-pf-flowschema-uid"), "{:?}", as_bob.headers);
    // Impersonation is checked also if the name or the group is odd.
    let odd = send(&admin, "GET", PODS, Default::default(), &[("impersonate-user", "é")]).await.message(403);
    assert!(odd.contains("User \"é\" cannot list resource"), "{odd}");
    let outside = [("impersonate-user", "bob"), ("impersonate-group", "system:unauthenticated")];
    assert_eq!(send(&admin, "GET", "/api", Default::default(), &outside).await.code, 403);
    let by_bob = send(&bob, "GET", PODS, Default::default(), &[("impersonate-user", "root")]).await.message(403);
    assert_eq!(
        by_bob,
        "users \"root\" is forbidden: User \"bob\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
}

#[tokio::test]
async fn tokens_are_valid_as_long_as_their_bound_object_exists() {
    let s = start().await;
    s.post(PODS, pod("p")).await.expect(201);
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                          "spec": { "boundObjectRef": { "kind": "Pod", "apiVersion": "v1", "name": "p" }, "expirationSeconds": 600 } });
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = s.post(path, request).await.expect(201)["status"]["token"].as_str().unwrap().to_owned();
    let review = |token: &str| json!({ "spec": { "token": token } });
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = s.post(reviews, review(&token)).await.expect(201)["status"].clone();
    assert_eq!(
        (&status["authenticated"], &status["user"]["username"]),
        (&json!(true), &json!("system:serviceaccount:default:default"))
    );
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    // A blank before the token makes it empty, and an empty token is anonymous; other whitespace is trimmed.
    for (token, name) in [
        (format!(" {token}"), "system:anonymous"),
        (format!("{token} x"), "system:serviceaccount:default:default"),
        (format!("\t{token}\n"), "system:serviceaccount:default:default"),
    ] {
        let status = s.post(reviews, review(&token)).await.expect(201)["status"].clone();
        assert_eq!((&status["authenticated"], &status["user"]["username"]), (&json!(true), &json!(name)), "{token:?}");
    }
    let mut others = review(&token);
    others["spec"]["audiences"] = json!(["a", "b"]);
    let error = "[invalid bearer token, token audiences [\"https://kubernetes.default.svc.cluster.local\"] is invalid for the target audiences [\"a\" \"b\"]]";
    assert_eq!(s.post(reviews, others).await.expect(201)["status"]["error"], error);
    let forged = format!("{}x", &token[..token.len() - 1]);
    assert_eq!(s.post(reviews, review(&forged)).await.expect(201)["status"].get("authenticated"), None);
    s.delete(&format!("{PODS}/p"), None).await.expect(200);
    let status = s.post(reviews, review(&token)).await.expect(201)["status"].clone();
    let error = json!("[invalid bearer token, service account token has been invalidated]");
    assert_eq!((status.get("authenticated"), &status["error"]), (None, &error));
    let short = json!({ "spec": { "expirationSeconds": 1 } });
    assert!(s.post(path, short).await.message(422).contains("may not specify a duration less than 10 minutes"));
    let keys = s.get("/openid/v1/jwks").await.expect(200);
    assert_eq!(keys["keys"][0]["alg"], "ES256");
}

#[tokio::test]
async fn kubelets_are_restricted_to_their_node() {
    let s = start().await;
    let kubelet = s.user("system:node:n1", &["system:nodes"]);
    let node = |name: &str| json!({ "metadata": { "name": name } });
    call(&kubelet, "POST", "/api/v1/nodes", Some(node("n1")), "application/json").await.expect(201);
    let other = call(&kubelet, "POST", "/api/v1/nodes", Some(node("n2")), "application/json").await.message(403);
    assert_eq!(other, "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\"");
    s.post("/api/v1/namespaces/default/secrets", json!({ "metadata": { "name": "s" } })).await.expect(201);
    let secret = "/api/v1/namespaces/default/secrets/s";
    assert_eq!(call(&kubelet, "GET", secret, None, "").await.code, 403);
    let mut body = pod("p");
    body["spec"]["volumes"] = json!([{ "name": "v", "secret": { "secretName": "s" } }]);
    s.post(PODS, body).await.expect(201);
    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n1" } });
    s.post(&format!("{PODS}/p/binding"), binding).await.expect(201);
    let mut code = 0;
    for _ in 0..20_000 {
        code = call(&kubelet, "GET", secret, None, "").await.code;
        if code == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(code, 200, "a pod of the node refers to the secret");
    assert!(s.get("/api/v1/nodes/n1").await.expect(200)["spec"]["taints"][0]["key"] == "node.kubernetes.io/not-ready");
}

#[tokio::test]
async fn a_cluster_begins_with_upstreams_objects() {
    let s = TestServer::start().await;
    for path in [
        "/api/v1/namespaces/kube-node-lease",
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/default/endpoints/kubernetes",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
        "/apis/networking.k8s.io/v1/ipaddresses/10.96.0.1",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:kube-scheduler",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/catch-all",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    ] {
        s.get(path).await.expect(200);
    }
    assert_eq!(s.get("/version").await.expect(200)["minor"], "36");
    assert_eq!(s.get("/readyz").await.expect(200), "ok");
    let components = s.get("/api/v1/componentstatuses").await;
    assert_eq!(components.warnings(), [r#"299 - "v1 ComponentStatus is deprecated in v1.19+""#]);
    assert_eq!(components.expect(200)["items"].as_array().unwrap().len(), 3);
    let groups = s.get("/apis").await.expect(200);
    assert!(groups["groups"].as_array().unwrap().len() > 15);
    let metrics = s.get("/metrics").await.expect(200);
    assert!(metrics.as_str().unwrap().contains("apiserver_request_total{code=\"200\""));
}

#[tokio::test]
async fn the_kubernetes_service_is_restored() {
    let s = TestServer::start().await;
    let path = "/api/v1/namespaces/default/services/kubernetes";
    let uid = s.get(path).await.expect(200)["metadata"]["uid"].clone();
    s.delete(path, None).await.expect(200);
    for _ in 0..20_000 {
        let found = s.get(path).await;
        if found.code == 200 && found.body["metadata"]["uid"] != uid {
            assert_eq!(found.body["spec"]["clusterIP"], "10.96.0.1");
            s.get("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.1").await.expect(200);
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the Service is gone for good");
}

#[tokio::test]
async fn a_namespace_enforces_pod_security() {
    let s = start().await;
    let labels =
        json!({ "pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted" });
    s.patch("/api/v1/namespaces/default", "merge", json!({ "metadata": { "labels": labels } })).await.expect(200);
    s.get("/api/v1/namespaces").await.expect(200);
    let mut body = pod("p");
    body["spec"]["hostNetwork"] = true.into();
    let refused = s.post(PODS, body).await.message(403);
    assert_eq!(
        refused,
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    let warned = s.post(PODS, pod("p")).await;
    assert!(
        warned.warnings()[0].contains("would violate PodSecurity \\\"restricted:latest\\\""),
        "{:?}",
        warned.warnings()
    );
    warned.expect(201);
}

#[tokio::test]
async fn secrets_are_encrypted_and_events_expire() {
    let directory = tempfile::tempdir().unwrap();
    let store = corten_store::Embedded::open(corten_store::Config::new(directory.path())).unwrap();
    let config = corten_apiserver::Config { encryption_key: Some([9; 32]), ..corten_apiserver::Config::default() };
    let server = corten_apiserver::Server::new(config, store.clone()).await.unwrap();
    let admin = server.in_process(corten_apiserver::User::new("admin", &["system:masters"]));
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "password": "hunter2" } });
    call(&admin, "POST", "/api/v1/namespaces/default/secrets", Some(secret), "application/json").await.expect(201);
    let event = json!({ "metadata": { "name": "e" }, "involvedObject": { "namespace": "default" }, "message": "m" });
    call(&admin, "POST", "/api/v1/namespaces/default/events", Some(event), "application/json").await.expect(201);
    let read = async |key: &str| {
        let store: &dyn corten_store::Store = &*store;
        store.get(key.as_bytes()).await.unwrap().1.unwrap()
    };
    let sealed = read("/registry/secrets/default/s").await;
    assert!(sealed.value.starts_with(b"k8s:enc:secretbox:v1:"));
    assert!(!sealed.value.windows(8).any(|w| w == b"aHVudGVy"), "the secret is readable in the store");
    let lease = read("/registry/events/default/e").await.lease;
    assert_ne!(lease, 0, "an event lives by a lease");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_is_never_exceeded() {
    let s = start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({ "pods": "3", "requests.cpu": "1", "count/configmaps": "1" });
    let quota = s.post(quotas, json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } })).await.expect(201);
    assert_eq!(quota["status"]["used"]["pods"], "0");
    assert_eq!(
        s.post(PODS, pod("p")).await.message(403),
        "pods \"p\" is forbidden: failed quota: q: must specify requests.cpu"
    );
    let sized = |name: String| {
        let mut body = pod(&name);
        body["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "200m" } });
        body
    };
    let creations = (0..10).map(|i| {
        let (admin, body) = (s.user("a", &["system:masters"]), sized(format!("p{i}")));
        tokio::spawn(async move { call(&admin, "POST", PODS, Some(body), "application/json").await })
    });
    let mut created = Vec::new();
    for creation in creations.collect::<Vec<_>>() {
        let answer = creation.await.unwrap();
        match answer.code {
            201 => created.push(answer.body["metadata"]["name"].as_str().unwrap().to_owned()),
            _ => assert!(
                answer.message(403).contains("exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3")
            ),
        }
    }
    assert_eq!(created.len(), 3);
    let used = async || s.get(&format!("{quotas}/q")).await.expect(200)["status"]["used"].clone();
    assert_eq!(used().await, json!({ "pods": "3", "requests.cpu": "600m", "count/configmaps": "0" }));
    s.delete(&format!("{PODS}/{}", created[0]), None).await.expect(200);
    assert_eq!(used().await["pods"], "2");
    s.post(PODS, sized("again".to_owned())).await.expect(201);
}
