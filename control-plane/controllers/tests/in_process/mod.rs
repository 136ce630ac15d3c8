//! A control plane in one process: store, API server, scheduler and controllers, each under its own identity, and a
//! stand-in for the kubelets. The tests and the benchmark share it.

#![allow(dead_code, reason = "each user needs a part of it")]
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Event, Node, Pod, ServiceAccount};
use corten_client::{Caches, Client, DeleteOptions, ListOptions, Patch};
use serde_json::{Value, json};
use testkit::server::TestServer;
use tokio_util::sync::CancellationToken;

/// No single wait takes longer than this, also on a busy machine.
pub const BOUND: Duration = Duration::from_secs(900);

/// A running control plane; dropping it stops everything.
pub struct Cluster {
    pub admin: Client,
    pub clients: corten_controllers::Clients,
    pub shutdown: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Cluster {
    /// Starts a cluster with the controllers of one manager.
    pub async fn start(nodes: usize) -> Cluster {
        let cluster = Cluster::without_manager(nodes).await;
        tokio::spawn(cluster.manage("only", false, cluster.shutdown.clone()));
        cluster
            .eventually("the default account", || async {
                cluster.admin.find::<ServiceAccount>("default", "default").await.unwrap().is_some()
            })
            .await;
        cluster
    }

    /// Starts one manager, which stops with its token.
    pub fn manage(
        &self,
        identity: &str,
        leader_elect: bool,
        shutdown: CancellationToken,
    ) -> impl Future<Output = Result<(), corten_controllers::Error>> + Send + use<> {
        let config = corten_controllers::Config {
            identity: identity.to_owned(),
            leader_elect,
            root_ca: "PEM".to_owned(),
            signing_authorities: corten_controllers::SigningAuthorities::all(authority()),
            // A leader on a machine that stalls under all these tests keeps its lease.
            lease_duration: Duration::from_secs(40),
            renew_deadline: Duration::from_secs(35),
            // The stand-in for the kubelets does not renew leases.
            node_monitor_grace_period: Duration::from_secs(3600),
            ..corten_controllers::Config::default()
        };
        corten_controllers::run(config, self.clients.clone(), shutdown)
    }

    pub async fn without_manager(nodes: usize) -> Cluster {
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let served =
            corten_apiserver::Config { service_account_keys: vec![key], ..corten_apiserver::Config::default() };
        let plane = TestServer::with(served).await;
        let shutdown = CancellationToken::new();
        let admin = plane.admin();
        let scheduler = plane.client("system:kube-scheduler", &[]);
        tokio::spawn(corten_scheduler::run(corten_scheduler::Config::default(), scheduler, shutdown.clone()));
        let clients: corten_controllers::Clients = Arc::new(move |name: &str| match name {
            corten_controllers::MANAGER => plane.client("system:kube-controller-manager", &[]),
            _ => plane.client(
                &format!("system:serviceaccount:kube-system:{name}"),
                &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
            ),
        });
        for number in 0..nodes {
            add_node(&admin, &format!("n{number}")).await;
        }
        tokio::spawn(kubelets(admin.clone(), shutdown.clone()));
        Cluster { admin, clients, shutdown }
    }

    pub async fn create<K: Typed>(&self, object: Value) -> K {
        self.admin.create(&K::from_value(object).unwrap()).await.unwrap()
    }

    pub async fn list<K: Typed>(&self, namespace: &str) -> Vec<K> {
        self.admin.list::<K>(namespace, &ListOptions::default()).await.unwrap().items
    }

    /// Waits for a condition, with a bound.
    pub async fn eventually<F: Future<Output = bool>>(&self, what: &str, mut holds: impl FnMut() -> F) {
        let start = Instant::now();
        while !holds().await {
            if start.elapsed() > BOUND {
                let events: Vec<String> = self
                    .list::<Event>("")
                    .await
                    .iter()
                    .map(|event| format!("{:?} {:?} {:?}", event.involved_object.name, event.reason, event.message))
                    .collect();
                panic!("never: {what}; events: {events:#?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub fn authority() -> corten_controllers::SigningAuthority {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    corten_controllers::SigningAuthority { certificate, key: key.serialize_pem() }
}

pub async fn add_node(admin: &Client, name: &str) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}});
    let mut node: Node = admin.create(&Node::from_value(node).unwrap()).await.unwrap();
    let now = corten_meta::time::rfc3339(corten_meta::time::now());
    let status = json!({"status": {
        "capacity": {"cpu": "4", "memory": "4Gi", "pods": "110"}, "allocatable": {"cpu": "4", "memory": "4Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now, "lastTransitionTime": now}],
    }});
    node = admin.patch("", node.name(), &Patch::Strategic(status), Some("status")).await.unwrap();
    assert_eq!(node.name(), name);
}

/// The number of pods that the stand-in handles at once.
const KUBELETS: usize = 64;

/// Runs every bound pod, and removes every deleted pod.
async fn kubelets(admin: Client, shutdown: CancellationToken) {
    let caches = Caches::new(admin.clone(), shutdown);
    let mut changes = caches.of::<Pod>().subscribe();
    let permits = Arc::new(tokio::sync::Semaphore::new(KUBELETS));
    let mut address = 0u32;
    while let Some(change) = changes.next().await {
        let Some(pod) = change.new.and_then(|object| corten_api::decode_object::<Pod>(&object).ok()) else { continue };
        address += 1;
        let permit = permits.clone().acquire_owned().await.unwrap();
        let (admin, ip) =
            (admin.clone(), format!("10.{}.{}.{}", 200 + address / 62_500, address / 250 % 250, address % 250 + 1));
        tokio::spawn(async move {
            kubelet(&admin, &pod, &ip).await;
            drop(permit);
        });
    }
}

/// Moves one pod to its next step.
async fn kubelet(admin: &Client, pod: &Pod, ip: &str) {
    let (namespace, name) = (pod.namespace(), pod.name());
    let bound = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).is_some();
    if bound && pod.metadata.deletion_timestamp.is_some() {
        let _ = admin.delete::<Pod>(namespace, name, &DeleteOptions::now()).await;
    } else if bound && pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) {
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        let ends = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
        let (phase, ready) = if ends { ("Succeeded", "False") } else { ("Running", "True") };
        let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": now});
        let status = json!({"status": {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now, "conditions": [ready]}});
        let _ = admin.patch::<Pod>(namespace, name, &Patch::Strategic(status), Some("status")).await;
    }
}
