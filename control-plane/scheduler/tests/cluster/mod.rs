//! A control plane with a scheduler, for tests: the real API server in process, with nodes that are only objects.

#![allow(clippy::unwrap_used, dead_code, reason = "a failed step of a test is a failed test; no test uses everything")]

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use corten_client::{Client, ListOptions, Patch};
use corten_scheduler::Config;
use serde_json::{Value, json};
use testkit::eventually::repeat;
use testkit::server::TestServer;
use tokio_util::sync::CancellationToken;

/// No single wait takes longer than this, also on a busy machine.
pub const BOUND: Duration = Duration::from_secs(300);

pub struct Cluster {
    pub server: TestServer,
    pub admin: Client,
    pub shutdown: CancellationToken,
    /// The configuration of the scheduler, until it is started.
    config: Mutex<Option<Config>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Cluster {
    pub async fn start(config: Config) -> Cluster {
        let server = TestServer::start().await;
        let admin = server.admin();
        let shutdown = CancellationToken::new();
        let cluster = Cluster { server, admin, shutdown, config: Mutex::new(Some(config)) };
        cluster.create::<Namespace>(json!({"metadata": {"name": "test"}})).await;
        cluster.create::<ServiceAccount>(json!({"metadata": {"namespace": "test", "name": "default"}})).await;
        cluster
    }

    /// Starts the scheduler with the first pod: it lists all objects created before. A scheduler that was already
    /// watching could receive the pod before a node, and choose among the others.
    fn schedule(&self) {
        if let Some(config) = self.config.lock().unwrap().take() {
            let client = self.server.client("system:kube-scheduler", &[]);
            tokio::spawn(corten_scheduler::run(config, client, self.shutdown.clone()));
        }
    }

    pub async fn create<K: Typed>(&self, mut object: Value) -> K {
        object["apiVersion"] = json!(K::API_VERSION);
        object["kind"] = json!(K::KIND);
        self.admin.create(&K::from_value(object).unwrap()).await.unwrap()
    }

    pub async fn node(&self, name: &str, cpu: &str) {
        let labels = json!({"kubernetes.io/hostname": name});
        let resources = json!({"cpu": cpu, "memory": "4Gi", "pods": "110"});
        let status = json!({"capacity": resources, "allocatable": resources});
        self.create::<Node>(json!({"metadata": {"name": name, "labels": labels}, "status": status})).await;
        // The API server taints a new node; the node lifecycle controller removes the taint once the kubelet is ready.
        let ready = Patch::Merge(json!({"spec": {"taints": null}}));
        self.admin.patch::<Node>("", name, &ready, None).await.unwrap();
    }

    pub async fn pod(&self, name: &str, cpu: &str, extra: Value) {
        self.schedule();
        let mut spec = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
            "automountServiceAccountToken": false});
        corten_meta::patch::merge_patch(&mut spec, &extra);
        self.create::<Pod>(json!({"metadata": {"namespace": "test", "name": name}, "spec": spec})).await;
    }

    pub async fn get(&self, name: &str) -> Value {
        self.admin.get::<Pod>("test", name).await.unwrap().to_value()
    }

    /// Waits for a condition; a failure shows the pods.
    pub async fn eventually<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        if repeat(async || if holds().await { Ok(()) } else { Err(()) }).await.is_err() {
            let pods = self.admin.list::<Pod>("test", &ListOptions::default()).await.unwrap().items;
            let pods: Vec<Value> = pods.iter().map(Typed::to_value).collect();
            panic!("{what} did not come to pass: {pods:#?}");
        }
    }

    pub async fn is_on(&self, name: &str, node: &str) {
        let what = format!("{name} on {node}");
        self.eventually(&what, || async { self.get(name).await["spec"]["nodeName"] == node }).await;
    }

    pub async fn says(&self, name: &str, message: &str) {
        let has_message = || async {
            let pod = self.get(name).await;
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "PodScheduled" && one["message"] == message)
        };
        self.eventually(&format!("{name}: {message}"), has_message).await;
    }
}
