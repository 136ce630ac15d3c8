//! Simulated nodes against an API server in this process, without controllers and scheduler: pods are bound by hand.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use corten_client::Transport;
use corten_simulate::{Config, Environment, Error, PodTimes, Report, Usage, Watch, run};
use serde_json::{Value, json};
use testkit::eventually::eventually;
use testkit::server::TestServer;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A simulation under way.
struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<Result<Report, Error>>,
}

impl Running {
    fn start(config: Config, transport: Arc<dyn Transport>) -> Running {
        let shutdown = CancellationToken::new();
        let environment = Environment {
            transports: vec![transport],
            usage: Box::new(|| Some(Usage { resident_bytes: 64 << 20, ..Usage::default() })),
            progress: Box::new(|_| {}),
            shutdown: shutdown.clone(),
        };
        Running { shutdown, task: tokio::spawn(run(config, environment)) }
    }

    async fn end(self) -> Result<Report, Error> {
        self.shutdown.cancel();
        self.task.await.unwrap()
    }
}

/// Starts a server in whose default namespace pods can be created.
async fn server() -> TestServer {
    let server = TestServer::start().await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    server
}

fn admin(server: &TestServer) -> Arc<dyn Transport> {
    testkit::client::transport(server.user("admin", &["system:masters"]))
}

fn config() -> Config {
    let soon = Duration::from_millis(1);
    let pods = PodTimes { start: soon, run: soon, stop: soon, fail_rate: 0.0 };
    Config { nodes: 20, duration: None, lease_period: Duration::from_millis(100), pods, ..Config::default() }
}

fn pod(name: &str, node: &str, policy: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": node,
            "restartPolicy": policy,
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i"}],
        },
    })
}

async fn count(server: &TestServer, path: &str, wanted: usize) {
    eventually(&format!("{path} has {wanted} objects"), async || {
        let list = server.get(path).await.expect(200);
        let found = list["items"].as_array().unwrap().len();
        if found == wanted { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
}

/// Waits until the phase of a pod is the wanted one, and returns the pod.
async fn phase(server: &TestServer, name: &str, wanted: &str) -> Value {
    eventually(&format!("pod {name} is {wanted}"), async || {
        let pod = server.get(&format!("{PODS}/{name}")).await.expect(200);
        if pod["status"]["phase"] == wanted { Ok(pod) } else { Err(pod["status"].to_string()) }
    })
    .await
}

#[tokio::test]
async fn twenty_nodes_live_run_pods_and_are_removed() {
    for watch in [Watch::Shared, Watch::Node] {
        let server = server().await;
        let simulation = Running::start(Config { watch, ..config() }, admin(&server));
        count(&server, NODES, 20).await;
        count(&server, LEASES, 20).await;

        let node = server.get(&format!("{NODES}/simulated-00007")).await.expect(200);
        assert_eq!(node["status"]["conditions"][3]["status"], "True");
        assert_eq!(node["metadata"]["labels"]["corten.dev/simulated"], "true");
        let lease = format!("{LEASES}/simulated-00007");
        let first = server.get(&lease).await.expect(200);
        assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
        eventually("the lease is renewed", async || {
            let now = server.get(&lease).await.expect(200);
            if now["spec"]["renewTime"] != first["spec"]["renewTime"] { Ok(()) } else { Err(now.to_string()) }
        })
        .await;

        for (name, node, policy) in [
            ("web", "simulated-00003", "Always"),
            ("job", "simulated-00004", "Never"),
            ("other", "elsewhere", "Always"),
        ] {
            server.post(PODS, pod(name, node, policy)).await.expect(201);
        }
        let web = phase(&server, "web", "Running").await;
        assert_eq!(web["status"]["hostIP"], "198.18.0.4");
        assert_eq!(web["status"]["podIP"], "100.64.3.2");
        assert_eq!(web["status"]["containerStatuses"][0]["ready"], true);
        phase(&server, "job", "Succeeded").await;
        server.delete(&format!("{PODS}/web"), None).await.expect(200);
        server.until(&format!("{PODS}/web"), 404).await;
        phase(&server, "other", "Pending").await;

        let report = simulation.end().await.unwrap();
        assert_eq!((report.nodes, report.pods), (20, 1), "the pod of the job");
        let statuses = report.calls.iter().find(|call| call.resource == "pods/status").unwrap();
        assert_eq!((statuses.verb, statuses.scope, statuses.failures), ("patch", "resource", 0));
        assert_eq!(statuses.count, 5, "admitted and started twice, completed once");
        assert_eq!(report.server.unwrap().resident_mib, 64.0);
        count(&server, NODES, 0).await;
        count(&server, LEASES, 0).await;
    }
}

/// A node that the control plane takes for lost reports again; nodes of an earlier run are taken over; kept ones stay.
#[tokio::test]
async fn nodes_contradict_the_control_plane_and_outlive_a_run_that_keeps_them() {
    let server = server().await;
    let first = Running::start(Config { keep: true, ..config() }, admin(&server));
    count(&server, LEASES, 20).await;
    first.end().await.unwrap();
    count(&server, NODES, 20).await;

    let second = Running::start(config(), admin(&server));
    let node = format!("{NODES}/simulated-00011");
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    server.patch(&format!("{node}/status"), "strategic", unknown).await.expect(200);
    eventually("the node reports that it is ready", async || {
        let conditions = server.get(&node).await.expect(200)["status"]["conditions"].clone();
        let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        if conditions.as_array().unwrap().iter().any(is_ready) { Ok(()) } else { Err(conditions.to_string()) }
    })
    .await;
    second.end().await.unwrap();
    count(&server, NODES, 0).await;
}

/// The requests of a node pass the authorizer and the admission of nodes.
#[tokio::test]
async fn nodes_may_act_under_their_own_names() {
    let server = server().await;
    let simulation = Running::start(Config { impersonate: true, nodes: 2, ..config() }, admin(&server));
    count(&server, LEASES, 2).await;
    server.post(PODS, pod("web", "simulated-00001", "Always")).await.expect(201);
    phase(&server, "web", "Running").await;
    server.delete(&format!("{PODS}/web"), None).await.expect(200);
    server.until(&format!("{PODS}/web"), 404).await;
    let report = simulation.end().await.unwrap();
    assert_eq!(report.calls.iter().map(|call| call.failures).sum::<u64>(), 0, "{:?}", report.calls);
    count(&server, NODES, 0).await;
}

/// A node of the cluster's own is neither taken over nor deleted.
#[tokio::test]
async fn real_nodes_are_left_alone() {
    let server = server().await;
    let real = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "simulated-00001"}});
    server.post(NODES, real).await.expect(201);
    let refused = Running::start(Config { nodes: 2, ..config() }, admin(&server)).task.await.unwrap();
    assert_eq!(
        refused.unwrap_err().to_string(),
        "node simulated-00001 is there and is not simulated: choose another --prefix"
    );
    count(&server, NODES, 1).await;
    let contradiction = Config { pods_per_node: 200, ..config() };
    let refused = Running::start(contradiction, admin(&server)).end().await;
    assert!(matches!(refused, Err(Error::Config(_))));
}

/// Without controllers no pod of a Deployment comes into being: the interruption is an error, and all is removed.
#[tokio::test]
async fn an_interrupted_fill_is_removed() {
    let server = server().await;
    let filled = Config { nodes: 2, pods_per_node: 1, patience: Duration::from_millis(1), ..config() };
    let simulation = Running::start(filled, admin(&server));
    let deployments = "/apis/apps/v1/namespaces/simulated-0/deployments";
    count(&server, deployments, 1).await;
    // No namespace controller runs here: the test removes the finalizer.
    eventually("the namespace is deleted", async || {
        let path = "/api/v1/namespaces/simulated-0";
        let mut namespace = server.get(path).await.try_expect(200)?;
        if namespace["metadata"]["deletionTimestamp"].is_null() {
            return Err("not yet".to_owned());
        }
        namespace["spec"]["finalizers"] = json!([]);
        server.put(&format!("{path}/finalize"), namespace).await.try_expect(200)
    })
    .await;
    let interrupted = simulation.end().await.unwrap_err().to_string();
    assert!(interrupted.starts_with("0 of 2 pods run") || interrupted.starts_with("1 namespaces"), "{interrupted}");
    count(&server, NODES, 0).await;
}
