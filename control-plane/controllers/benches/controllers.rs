//! The speed of the controllers against the API server in the same process: a Deployment of a thousand replicas, the
//! deletion of a namespace of five thousand objects, a reconcile of an unchanged object, an endpoint among ten
//! thousand, and the cost of an idle control plane.
//!
//! Prints one `figure<TAB>value<TAB>unit` line each, for the history.

#![allow(clippy::unwrap_used, reason = "a failed step ends the measurement")]

#[path = "../tests/in_process/mod.rs"]
mod in_process;

use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use corten_api::k8s_openapi::api::batch::v1::Job;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_client::{Cache, Caches, Client, DeleteOptions, Patch};
use corten_controllers::Measured;
use futures::StreamExt;
use in_process::Cluster;
use serde_json::{Value, json};

const REPLICAS: usize = 1000;
const OBJECTS: usize = 5000;
const SERVICES: usize = 1000;
const PODS: usize = 10_000;
/// The number of measured reconciles of each controller.
const LOOKS: usize = 200;
/// The number of measured endpoint changes.
const CHANGES: usize = 200;
/// The number of requests in flight during setup.
const AT_ONCE: usize = 64;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        deployment().await;
        namespace().await;
        endpoints().await;
        others().await;
    });
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

/// Measures from the creation of the Deployment until the last of its pods is created.
async fn deployment() {
    let cluster = Cluster::start(10).await;
    let caches = Caches::new(cluster.admin.clone(), cluster.shutdown.clone());
    let pods = caches.of::<Pod>();
    pods.synced().await;
    let begin = Instant::now();
    cluster.create::<Deployment>(deployment_of("web", REPLICAS)).await;
    counted(&pods, "default", REPLICAS).await;
    figure("controllers, pods of a Deployment of 1,000 created", begin.elapsed().as_secs_f64(), "s");
    available(&cluster, "web", REPLICAS).await;
    unchanged(&cluster).await;
    idle().await;
}

/// Measures reconciles of unchanged objects: of ten pods among a thousand, and of a thousand.
async fn unchanged(cluster: &Cluster) {
    cluster.create::<Deployment>(deployment_of("small", 10)).await;
    available(cluster, "small", 10).await;
    let measured =
        Measured::open(corten_controllers::Config::default(), &cluster.clients, cluster.shutdown.clone()).await;
    quiet().await;
    for (name, size) in [("small", "10"), ("web", "1,000")] {
        let sets = cluster.list::<ReplicaSet>("default").await;
        let set = sets.iter().find(|set| set.name().starts_with(name)).unwrap();
        let looks = [("deployment-controller", name), ("replicaset-controller", set.name())];
        look(&measured, &format!("{size} pods"), &looks);
    }
}

/// Measures how long controllers take to find nothing to do, with and without memory of an earlier reconcile.
fn look(measured: &Measured, what: &str, looks: &[(&str, &str)]) {
    let p99 = |decide: &dyn Fn(&str, &str) -> Duration| {
        let all = std::iter::repeat_n(looks, LOOKS).flatten();
        let mut times: Vec<Duration> = all.map(|(account, name)| decide(account, name)).collect();
        times.sort_unstable();
        times[times.len() * 99 / 100].as_secs_f64() * 1e3
    };
    let again = p99(&|account, name| measured.decide(account, "default", name));
    figure(&format!("controllers, a look at {what} that did not change, p99"), again, "ms");
    let anew = p99(&|account, name| measured.decide_anew(account, "default", name));
    figure(&format!("controllers, a first look at {what}, p99"), anew, "ms");
}

/// Measures the other workloads: a DaemonSet on a thousand nodes, a StatefulSet and a Job of a thousand pods.
async fn others() {
    let cluster = Cluster::start(REPLICAS).await;
    let template = |name: &str, policy: &str| json!({"metadata": {"labels": {"app": name}}, "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]}});
    let object = |version: &str, kind: &str, name: &str, mut spec: Value, policy: &str| {
        spec["template"] = template(name, policy);
        json!({"apiVersion": version, "kind": kind, "metadata": {"namespace": "default", "name": name}, "spec": spec})
    };
    let selector = |name: &str| json!({"matchLabels": {"app": name}});
    let spec = json!({"selector": selector("daemon")});
    cluster.create::<DaemonSet>(object("apps/v1", "DaemonSet", "daemon", spec, "Always")).await;
    let spec = json!({"selector": selector("member"), "serviceName": "member", "replicas": REPLICAS, "podManagementPolicy": "Parallel"});
    cluster.create::<StatefulSet>(object("apps/v1", "StatefulSet", "member", spec, "Always")).await;
    let spec = json!({"parallelism": REPLICAS, "completions": REPLICAS, "completionMode": "Indexed"});
    cluster.create::<Job>(object("batch/v1", "Job", "worker", spec, "OnFailure")).await;
    let measured =
        Measured::open(corten_controllers::Config::default(), &cluster.clients, cluster.shutdown.clone()).await;
    let all = [
        ("daemon-set-controller", "daemon", "1,000 pods of a DaemonSet"),
        ("statefulset-controller", "member", "1,000 pods of a StatefulSet"),
        ("job-controller", "worker", "1,000 pods of a Job"),
    ];
    // All are settled before the first measurement: otherwise it would share the CPU with the creation of the others.
    for (account, name, _) in all {
        cluster.eventually("nothing left to do", async || settled(&cluster, &measured, account, name).await).await;
    }
    quiet().await;
    for (account, name, what) in all {
        look(&measured, what, &[(account, name)]);
    }
}

/// Waits until the control plane is idle, so that a reconcile is measured without other load on the CPU.
async fn quiet() {
    for _ in 0..120 {
        let before = cpu_time();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if cpu_time() - before < Duration::from_millis(50) {
            return;
        }
    }
}

/// Reports whether every pod of the app runs and its controller's status shows it.
async fn settled(cluster: &Cluster, measured: &Measured, account: &str, name: &str) -> bool {
    if measured.decide(account, "default", name) == Duration::MAX {
        return false;
    }
    let runs =
        |pod: &&Pod| pod.name().starts_with(name) && pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
    cluster.list::<Pod>("default").await.iter().filter(runs).count() == REPLICAS
}

fn deployment_of(name: &str, replicas: usize) -> Value {
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "default", "name": name}, "spec": spec})
}

async fn available(cluster: &Cluster, name: &str, wanted: usize) {
    cluster
        .eventually("all pods available", || async {
            let deployment = cluster.admin.get::<Deployment>("default", name).await.unwrap();
            let available = deployment.status.and_then(|status| status.available_replicas);
            available.and_then(|count| usize::try_from(count).ok()) == Some(wanted)
        })
        .await;
}

/// Measures the CPU time of an idle control plane, as a share of one core.
async fn idle() {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (begin, cpu) = (Instant::now(), cpu_time());
    tokio::time::sleep(Duration::from_secs(10)).await;
    let used = (cpu_time() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    figure("controllers, idle control plane with 1,000 pods, of one core", used * 100.0, "%");
}

/// Measures from the deletion of a namespace until it is gone.
async fn namespace() {
    let cluster = Cluster::start(1).await;
    let admin = &cluster.admin;
    cluster.create::<Namespace>(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "full"}})).await;
    let object = |number: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "full", "name": format!("c{number}")}, "data": {"k": "v"}});
    create_all::<ConfigMap>(admin, (0..OBJECTS).map(object)).await;
    let begin = Instant::now();
    admin.delete::<Namespace>("", "full", &DeleteOptions::default()).await.unwrap();
    cluster
        .eventually("an end of the namespace", || async {
            admin.find::<Namespace>("", "full").await.unwrap().is_none()
        })
        .await;
    figure("controllers, namespace of 5,000 objects deleted", begin.elapsed().as_secs_f64(), "s");
}

/// Measures from a pod's change of readiness until its EndpointSlice shows it.
async fn endpoints() {
    let cluster = Cluster::start(1).await;
    let admin = &cluster.admin;
    let service = |number: usize| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": format!("s{number}")},
        "spec": {"selector": {"app": format!("a{number}")}, "ports": [{"port": 80}]}})
    };
    create_all::<Service>(admin, (0..SERVICES).map(service)).await;
    let pod = |number: usize| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": format!("p{number}"), "labels": {"app": format!("a{}", number % SERVICES)}},
        "spec": {"nodeName": "n0", "containers": [{"name": "c", "image": "i"}]}})
    };
    create_all::<Pod>(admin, (0..PODS).map(pod)).await;
    let caches = Caches::new(admin.clone(), cluster.shutdown.clone());
    let slices = caches.of::<EndpointSlice>();
    let ready = |slice: &Value| {
        slice["endpoints"]
            .as_array()
            .map_or(0, |all| all.iter().filter(|one| one["conditions"]["ready"] == true).count())
    };
    while slices.list("default").iter().map(|slice| ready(&slice.value())).sum::<usize>() < PODS {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // One watch for all changes, already past its initial list: the propagation of a change is measured, not the time
    // to read a thousand slices.
    let mut changes = slices.subscribe();
    while changes.try_next().is_some() {}
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let index = number * (PODS / CHANGES);
        let (name, service) = (format!("p{index}"), format!("s{}", index % SERVICES));
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let begin = Instant::now();
        admin.patch::<Pod>("default", &name, &Patch::Strategic(status), Some("status")).await.unwrap();
        loop {
            let changed = changes.next().await.unwrap().new;
            let of_service =
                changed.filter(|slice| slice.header.labels.get("kubernetes.io/service-name") == Some(&service));
            let slice = of_service.map(|slice| slice.value()).unwrap_or_default();
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            let of_pod =
                |one: &&Value| one["targetRef"]["name"] == name.as_str() && one["conditions"]["ready"] == false;
            if endpoints.into_iter().any(|one| of_pod(&one)) {
                break;
            }
        }
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let p99 = times[times.len() * 99 / 100].as_secs_f64() * 1e3;
    figure("controllers, an endpoint among 10,000 pods and 1,000 Services, p99", p99, "ms");
}

async fn create_all<K: Typed>(admin: &Client, objects: impl Iterator<Item = Value>) {
    futures::stream::iter(objects)
        .for_each_concurrent(AT_ONCE, |object| async move {
            admin.create(&K::from_value(object).unwrap()).await.unwrap();
        })
        .await;
}

async fn counted(cache: &Arc<Cache>, namespace: &str, wanted: usize) {
    let mut changes = cache.subscribe();
    while cache.list(namespace).len() < wanted {
        changes.next().await.unwrap();
    }
}

/// Returns the CPU time of this process.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}
