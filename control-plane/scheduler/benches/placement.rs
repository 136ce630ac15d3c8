//! The throughput of the scheduler on the real API server with durable binds: pods per second and CPU time per pod, of
//! everything together. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! `cargo bench -p corten-scheduler --bench placement [-- NAME...]` runs all workloads or those named. The workloads
//! are modelled on upstream's scheduler_perf. Pods exist before the scheduler starts; the time runs from its start
//! until the API shows the last of them bound. `PLACEMENT_SCALE=10` scales everything down to a tenth, for a quick run.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has nothing to report")]

use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use corten_api::k8s_openapi::api::scheduling::v1::PriorityClass;
use corten_client::{Caches, Client, DeleteOptions, Patch, Subscription};
use futures::StreamExt;
use serde_json::{Value, json};
use testkit::server::{TestServer, config};
use tokio_util::sync::CancellationToken;

/// As in the binary, so that the figures match those of a cluster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of concurrent requests of the benchmark itself.
const CONCURRENT: usize = 64;
/// A workload that takes longer than this has failed.
const BOUND: Duration = Duration::from_secs(600);

/// A measured workload: a cluster, existing pods, and pods to schedule.
struct Workload {
    name: &'static str,
    nodes: usize,
    /// The existing pods: their number, and the pod with its node by number.
    before: (usize, fn(usize, usize) -> Value),
    pods: (usize, fn(usize) -> Value),
    /// Whether deleted pods are removed at once, as by a kubelet.
    kubelets: bool,
}

fn nothing(_: usize, _: usize) -> Value {
    Value::Null
}

const WORKLOADS: [Workload; 10] = [
    Workload { name: "plain", nodes: 5000, before: (0, nothing), pods: (10_000, plain), kubelets: false },
    Workload { name: "plain-100", nodes: 100, before: (0, nothing), pods: (3_000, plain), kubelets: false },
    Workload { name: "plain-1000", nodes: 1000, before: (0, nothing), pods: (10_000, plain), kubelets: false },
    Workload { name: "plain-15000", nodes: 15_000, before: (0, nothing), pods: (10_000, plain), kubelets: false },
    Workload { name: "node-affinity", nodes: 5000, before: (0, nothing), pods: (10_000, affine), kubelets: false },
    Workload { name: "topology-spread", nodes: 5000, before: (0, nothing), pods: (10_000, spread), kubelets: false },
    Workload { name: "pod-affinity", nodes: 5000, before: (0, nothing), pods: (10_000, near), kubelets: false },
    Workload {
        name: "anti-affinity",
        nodes: 5000,
        before: (0, nothing),
        pods: (4_000, anti_affinity),
        kubelets: false,
    },
    Workload { name: "preemption", nodes: 5000, before: (20_000, lesser), pods: (5_000, greater), kubelets: true },
    Workload { name: "daemonset", nodes: 15_000, before: (0, nothing), pods: (15_000, daemon), kubelets: false },
];

fn pod(name: &str, requests: Value, labels: Value, extra: Value) -> Value {
    let mut spec = json!({
        "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": requests}}],
        "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
    });
    corten_meta::patch::merge_patch(&mut spec, &extra);
    let metadata = json!({"namespace": "bench-0", "name": name, "labels": labels});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn small() -> Value {
    json!({"cpu": "100m", "memory": "500Mi"})
}

fn plain(number: usize) -> Value {
    pod(&format!("plain-{number}"), small(), json!({}), json!({}))
}

fn affine(number: usize) -> Value {
    let term = json!({"matchExpressions": [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1", "zone-2"]}]});
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}});
    pod(&format!("affine-{number}"), small(), json!({}), json!({"affinity": affinity}))
}

fn spread(number: usize) -> Value {
    let constraint = json!({"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"color": "blue"}}});
    let extra = json!({"topologySpreadConstraints": [constraint]});
    pod(&format!("spread-{number}"), small(), json!({"color": "blue"}), extra)
}

fn near(number: usize) -> Value {
    let term =
        json!({"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"color": "blue"}}});
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    pod(&format!("near-{number}"), small(), json!({"color": "blue"}), json!({"affinity": affinity}))
}

fn anti_affinity(number: usize) -> Value {
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"color": "green"}},
        "namespaceSelector": {"matchLabels": {"team": "devops"}}});
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let mut pod = pod(&format!("apart-{number}"), small(), json!({"color": "green"}), json!({"affinity": affinity}));
    pod["metadata"]["namespace"] = json!(format!("bench-{}", number % NAMESPACES));
    pod
}

fn lesser(number: usize, nodes: usize) -> Value {
    let node = format!("node-{}", number % nodes);
    let requests = json!({"cpu": "900m", "memory": "500Mi"});
    pod(&format!("lesser-{number}"), requests, json!({}), json!({"nodeName": node}))
}

fn greater(number: usize) -> Value {
    let requests = json!({"cpu": "3", "memory": "500Mi"});
    pod(&format!("greater-{number}"), requests, json!({}), json!({"priorityClassName": "important"}))
}

fn daemon(number: usize) -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [format!("node-{number}")]});
    let terms = json!([{"matchFields": [field]}]);
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    pod(&format!("daemon-{number}"), small(), json!({}), json!({"affinity": affinity}))
}

const NAMESPACES: usize = 10;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if named.len() != 1 {
        return each_alone(&named);
    }
    let scale: usize = std::env::var("PLACEMENT_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for workload in WORKLOADS.iter().filter(|w| w.name == named[0]) {
        runtime.block_on(measure(workload, scale));
    }
}

/// Runs each workload in a process of its own: leftover work, such as pending events, must not affect the next.
fn each_alone(named: &[String]) {
    for workload in WORKLOADS.iter().filter(|w| named.is_empty() || named.iter().any(|name| name == w.name)) {
        let program = std::env::current_exe().unwrap();
        assert!(std::process::Command::new(program).arg(workload.name).status().unwrap().success());
    }
}

async fn measure(workload: &Workload, scale: usize) {
    let plane = TestServer::start_in(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")), config()).await;
    let admin = plane.admin();
    let (nodes, pods) = ((workload.nodes / scale).max(1), workload.pods.0 / scale);
    prepare(&admin, workload, nodes, scale, pods).await;

    let shutdown = CancellationToken::new();
    let caches = Caches::new(admin.clone(), shutdown.clone());
    let cache = caches.of::<Pod>();
    cache.synced().await;
    if workload.kubelets {
        tokio::spawn(kubelets(admin.clone(), cache.subscribe()));
    }
    let (began, used) = (Instant::now(), cpu_time());
    let client = plane.client("system:kube-scheduler", &[]);
    let scheduler = tokio::spawn(corten_scheduler::run(corten_scheduler::Config::default(), client, shutdown.clone()));
    let mut changes = cache.subscribe();
    let mut bound = std::collections::HashSet::new();
    while bound.len() < pods {
        let change = tokio::time::timeout(BOUND, changes.next()).await.expect("pods are still being bound").unwrap();
        let Some(object) = change.new.filter(|object| !object.header.name.starts_with("lesser-")) else { continue };
        // A search for the field is faster than decoding the pod.
        if object.bytes.windows(12).any(|window| window == b"\"nodeName\":\"") {
            bound.insert(object.header.name.clone());
        }
    }
    let (wall, cpu) = (began.elapsed().as_secs_f64(), (cpu_time() - used).as_secs_f64());
    println!("{}, {nodes} nodes\t{:.0}\tpods/s", workload.name, pods as f64 / wall);
    println!("{}, {nodes} nodes, processor time\t{:.0}\tus/pod", workload.name, cpu * 1e6 / pods as f64);
    shutdown.cancel();
    scheduler.await.unwrap().unwrap();
    caches.ended().await;
}

async fn prepare(admin: &Client, workload: &Workload, nodes: usize, scale: usize, pods: usize) {
    let namespaces = (0..NAMESPACES).map(|number| {
        let metadata = json!({"name": format!("bench-{number}"), "labels": {"team": "devops"}});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    });
    create::<Namespace>(admin, namespaces).await;
    let accounts = (0..NAMESPACES).map(|number| {
        let metadata = json!({"namespace": format!("bench-{number}"), "name": "default"});
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    });
    create::<ServiceAccount>(admin, accounts).await;
    let important = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "important"}, "value": 1000});
    create::<PriorityClass>(admin, std::iter::once(important)).await;
    create::<Node>(admin, (0..nodes).map(node)).await;
    untaint(admin, nodes).await;
    let before = workload.before.0 / scale;
    create::<Pod>(admin, (0..before).map(|number| workload.before.1(number, nodes))).await;
    create::<Pod>(admin, (0..pods).map(workload.pods.1)).await;
}

fn node(number: usize) -> Value {
    let name = format!("node-{number}");
    let zone = format!("zone-{}", number % 10);
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone,
        "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"});
    let resources = json!({"cpu": "4", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"capacity": resources, "allocatable": resources, "phase": "Running"}})
}

/// Removes the not-ready taint of new nodes.
async fn untaint(admin: &Client, nodes: usize) {
    let patches = (0..nodes).map(|number| {
        let admin = admin.clone();
        async move {
            let patch = Patch::Merge(json!({"spec": {"taints": null}}));
            admin.patch::<Node>("", &format!("node-{number}"), &patch, None).await.map(drop)
        }
    });
    let mut patched = futures::stream::iter(patches).buffer_unordered(CONCURRENT);
    while let Some(result) = patched.next().await {
        result.unwrap();
    }
}

async fn create<K: Typed>(admin: &Client, objects: impl Iterator<Item = Value>) {
    let made = objects.map(|object| {
        let admin = admin.clone();
        async move { admin.create(&K::from_value(object).unwrap()).await.map(drop) }
    });
    let mut made = futures::stream::iter(made).buffer_unordered(CONCURRENT);
    while let Some(result) = made.next().await {
        result.unwrap();
    }
}

/// Removes pods that are being deleted, as kubelets do.
async fn kubelets(admin: Client, mut changes: Subscription) {
    while let Some(change) = changes.next().await {
        let Some(object) = change.new.filter(|object| object.header.deletion_timestamp.is_some()) else { continue };
        let admin = admin.clone();
        // Each node has a kubelet of its own: none waits for another.
        tokio::spawn(async move {
            let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::uid(&object.header.uid) };
            let _ = admin.delete::<Pod>(&object.header.namespace, &object.header.name, &now).await;
        });
    }
}

/// Returns the CPU time of this process.
fn cpu_time() -> Duration {
    // SAFETY: the structure is plain data that the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}
