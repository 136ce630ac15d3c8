//! The cost of access control, admission and custom resources: a decision among 10,000 role bindings, the admission
//! plugins alone, a write without the store, a custom resource against a built-in one of the same size, and a thousand
//! CustomResourceDefinitions.
//!
//! All in one process, without a network. Prints one `figure<TAB>value<TAB>unit` line each, for the history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_apiserver::{Body, Config, InProcess, Server, User};
use corten_store::Embedded;
use serde_json::{Value, json};

const BINDINGS: usize = 10_000;
const DEFINITIONS: usize = 1_000;
const CALLS: u32 = 20_000;
const WRITES: u32 = 2_000;
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Embedded::open(corten_store::Config::new(directory.path())).expect("a store");
        let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        let config = Config {
            service_account_keys: vec![key],
            encryption_keys: vec![corten_apiserver::EncryptionKey::first([1; 32])],
            ..Config::default()
        };
        let server = Server::new(config, store).await.expect("a server");
        let admin = server.in_process(User::new("admin", &["system:masters"]));
        decisions(&server, &admin).await;
        admission(&admin).await;
        parts(&admin).await;
        writes(&admin).await;
        definitions(&admin).await;
    });
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

async fn call(client: &InProcess, method: &str, path: &str, body: Option<&Value>) -> (u16, Bytes) {
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
    let reply = client.call(request.body(body).expect("a request")).await;
    let code = reply.status().as_u16();
    match reply.into_body() {
        Body::Full(bytes) => (code, bytes),
        _ => (code, Bytes::new()),
    }
}

/// Creates an object, which must succeed.
async fn make(client: &InProcess, path: &str, body: &Value) {
    let (code, answer) = call(client, "POST", path, Some(body)).await;
    assert_eq!(code, 201, "{}", String::from_utf8_lossy(&answer));
}

/// Returns the mean time of many calls, one after the other.
async fn mean(times: u32, mut one: impl AsyncFnMut(u32)) -> Duration {
    for at in 0..times / 10 {
        one(times + at).await;
    }
    let begin = Instant::now();
    for at in 0..times {
        one(at).await;
    }
    begin.elapsed() / times
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Measures the cost of RBAC in a read, against a reader that skips it.
async fn decisions(server: &Arc<Server>, admin: &InProcess) {
    make(admin, MAPS, &json!({ "metadata": { "name": "read" } })).await;
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"] }]);
    make(admin, &format!("{RBAC}/clusterroles"), &json!({ "metadata": { "name": "reader" }, "rules": rules })).await;
    for at in 0..BINDINGS {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({ "metadata": { "name": format!("b{at}") },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "reader" },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": format!("u{at}") }] });
        make(admin, &format!("{RBAC}/clusterrolebindings"), &binding).await;
    }
    let path = format!("{MAPS}/read");
    let user = server.in_process(User::new(&format!("u{}", BINDINGS / 2), &["dev", "ops"]));
    let authorized = mean(CALLS, async |_| assert_eq!(call(&user, "GET", &path, None).await.0, 200)).await;
    let unauthorized = mean(CALLS, async |_| assert_eq!(call(admin, "GET", &path, None).await.0, 200)).await;
    figure("access, RBAC decision among 10k bindings", micros(authorized.saturating_sub(unauthorized)), "µs");
    let stranger = server.in_process(User::new("stranger", &["dev", "ops"]));
    let refused = mean(CALLS, async |_| assert_eq!(call(&stranger, "GET", &path, None).await.0, 403)).await;
    figure("access, a refused read among 10k bindings", micros(refused), "µs");
}

/// Returns the processor time of this thread, which is the one that polls the futures of `main`.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts processor time");
    let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number of nanoseconds"))
}

/// Returns a pod as clients write it, with the defaults that the server sets before admission.
fn pod() -> Value {
    let container = json!({ "name": "c", "image": "registry.example.com/app:1", "imagePullPolicy": "IfNotPresent",
        "resources": { "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "memory": "128Mi" } },
        "env": [{ "name": "A", "value": "1" }], "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File" });
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "bench", "namespace": "default", "labels": { "app": "bench" } },
        "spec": { "containers": [container], "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                  "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30 } })
}

/// Measures the processor time of admission alone: every plugin of a cluster, mutating, validating and charging, with
/// no webhook, no policy, no quota and no limit range configured.
async fn admission(admin: &InProcess) {
    make(admin, "/api/v1/namespaces/default/serviceaccounts", &json!({ "metadata": { "name": "default" } })).await;
    let mut map = object("ConfigMap", "bench");
    map["metadata"]["namespace"] = "default".into();
    for (kind, path, object) in [("ConfigMap", MAPS, map), ("Pod", "/api/v1/namespaces/default/pods", pod())] {
        let copies = |count: u32| (0..count).map(|_| object.clone()).collect::<Vec<Value>>();
        admin.admit(path, copies(CALLS / 10)).await.expect("admission lets it pass");
        let objects = copies(CALLS);
        let begin = processor_time();
        admin.admit(path, objects).await.expect("admission lets it pass");
        let each = (processor_time() - begin) / CALLS;
        figure(&format!("access, admission of a {kind} without webhooks, processor time"), micros(each), "µs");
    }
}

/// Measures the processor time of a pod without the store: its creation, a patch of its status as by a scheduler that
/// preempts, and its deletion.
async fn parts(admin: &InProcess) {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const TIMES: u32 = CALLS / 4;
    make(admin, PODS, &pod()).await;
    let uid = serde_json::from_slice::<Value>(&call(admin, "GET", &format!("{PODS}/bench"), None).await.1);
    let uid = uid.expect("a pod")["metadata"]["uid"].clone();
    let condition = json!({ "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": "default-scheduler: preempting to accommodate a higher priority pod",
        "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
    let mut other = pod();
    other["metadata"]["name"] = "other".into();
    for (what, method, path, body) in [
        ("made", "POST", format!("{PODS}?dryRun=All"), Some(&other)),
        ("whose status is patched", "PATCH", format!("{PODS}/bench/status?dryRun=All"), Some(&patch)),
        ("deleted", "DELETE", format!("{PODS}/bench?dryRun=All&gracePeriodSeconds=0"), None),
    ] {
        let content = if method == "PATCH" { "application/strategic-merge-patch+json" } else { "application/json" };
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let one = async || {
            let request = http::Request::builder().method(method).uri(&path).header("content-type", content);
            let reply = admin.call(request.body(body.clone()).expect("a request")).await;
            assert!(reply.status().is_success(), "{what}: {}", reply.status());
        };
        for _ in 0..TIMES / 10 {
            one().await;
        }
        let begin = processor_time();
        for _ in 0..TIMES {
            one().await;
        }
        let each = (processor_time() - begin) / TIMES;
        figure(&format!("access, a pod {what} without the store, processor time"), micros(each), "µs");
    }
    let (code, _) = call(admin, "DELETE", &format!("{PODS}/bench?gracePeriodSeconds=0"), None).await;
    assert_eq!(code, 200);
}

/// Returns a Widget or ConfigMap of the same size.
fn object(kind: &str, name: &str) -> Value {
    let data: Value =
        (0..20).map(|at| (format!("key{at}"), json!("x".repeat(40)))).collect::<serde_json::Map<_, _>>().into();
    let metadata = json!({ "name": name, "labels": { "app": "bench" } });
    match kind {
        "Widget" => json!({ "apiVersion": "example.com/v1", "kind": kind, "metadata": metadata, "spec": data }),
        _ => json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data }),
    }
}

fn definition(plural: &str, kind: &str) -> Value {
    let properties: serde_json::Map<String, Value> = (0..30)
        .map(|at| {
            (format!("key{at}"), json!({ "type": "string", "maxLength": 100, "description": "a value that is kept" }))
        })
        .collect();
    let schema = json!({ "type": "object", "properties": {
        "spec": { "type": "object", "properties": properties }, "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } });
    json!({ "metadata": { "name": format!("{plural}.example.com") }, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List") },
        "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} }, "schema": { "openAPIV3Schema": schema } }] } })
}

async fn define(admin: &InProcess, plural: &str, kind: &str) {
    make(admin, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition(plural, kind)).await;
}

async fn served(admin: &InProcess, plural: &str) {
    let path = format!("/apis/example.com/v1/{plural}");
    for _ in 0..60_000 {
        if call(admin, "GET", &path, None).await.0 == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{plural} are never served");
}

/// Measures writes that stop before the store, and writes that do not.
async fn writes(admin: &InProcess) {
    define(admin, "widgets", "Widget").await;
    served(admin, "widgets").await;
    let mut times = Vec::new();
    for (kind, path) in [("ConfigMap", MAPS), ("Widget", WIDGETS)] {
        let dry = format!("{path}?dryRun=All");
        let time = mean(CALLS / 4, async |_| make(admin, &dry, &object(kind, "dry")).await).await;
        figure(&format!("access, a write of a {kind} without the store"), micros(time), "µs");
        times.push(time);
    }
    figure(
        "access, custom resource against built-in, without the store",
        times[1].as_secs_f64() / times[0].as_secs_f64(),
        "×",
    );
    times.clear();
    for (kind, path) in [("ConfigMap", MAPS), ("Widget", WIDGETS)] {
        let time =
            mean(WRITES, async |at| make(admin, path, &object(kind, &format!("{}{at}", kind.to_lowercase()))).await)
                .await;
        times.push(time);
    }
    figure("access, custom resource against built-in, created", times[1].as_secs_f64() / times[0].as_secs_f64(), "×");
}

/// Measures a thousand CustomResourceDefinitions: their memory, and their effect on other requests.
async fn definitions(admin: &InProcess) {
    let path = format!("{MAPS}/read");
    let before = mean(CALLS, async |_| assert_eq!(call(admin, "GET", &path, None).await.0, 200)).await;
    let (memory, begin) = (resident(), Instant::now());
    for at in 0..DEFINITIONS {
        define(admin, &format!("things{at}"), &format!("Thing{at}")).await;
    }
    served(admin, &format!("things{}", DEFINITIONS - 1)).await;
    figure("access, a thousand definitions, served after", begin.elapsed().as_secs_f64(), "s");
    figure("access, a thousand definitions, memory", resident().saturating_sub(memory) as f64 / 1024.0, "MiB");
    let after = mean(CALLS, async |_| assert_eq!(call(admin, "GET", &path, None).await.0, 200)).await;
    figure("access, a read beside a thousand definitions", after.as_secs_f64() / before.as_secs_f64(), "×");
    let begin = Instant::now();
    define(admin, "lasts", "Last").await;
    served(admin, "lasts").await;
    figure("access, one more definition, served after", begin.elapsed().as_secs_f64() * 1e3, "ms");
}

/// Returns the resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}
