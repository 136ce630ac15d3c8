//! The memory that the scheduler uses for a cluster: bytes per node, and bytes per pod of several kinds. Prints one
//! `figure<TAB>value<TAB>unit` line each; counted at the allocator, without its overhead.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has nothing to report")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_scheduler::evaluate::{Cluster, Rows};
use serde_json::{Value, json};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NODES: usize = 5_000;
const PODS: usize = 50_000;

fn main() {
    let mut rows = Rows::default();
    measure("memory, node", NODES, &mut rows, |number| Cluster { nodes: vec![node(number)], ..Cluster::default() });
    for (name, make) in [
        ("memory, pod of a Deployment", deployed as fn(usize) -> Value),
        ("memory, pod of a StatefulSet", stateful),
        ("memory, pod of a DaemonSet", daemon),
    ] {
        measure(name, PODS, &mut rows, |number| {
            let pod = Pod::from_value(make(number)).unwrap();
            Cluster { pods: vec![pod], ..Cluster::default() }
        });
    }
}

fn measure(name: &str, count: usize, rows: &mut Rows, make: impl Fn(usize) -> Cluster) {
    let before = LIVE.load(Ordering::Relaxed);
    (0..count).for_each(|number| rows.add(make(number)));
    println!("{name}\t{}\tB", (LIVE.load(Ordering::Relaxed) - before) / count);
}

fn node(number: usize) -> Node {
    let name = format!("ip-10-0-{}-{}.eu-west-1.compute.internal", number / 256, number % 256);
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("eu-west-1{}", number % 3),
        "topology.kubernetes.io/region": "eu-west-1", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "m5.large", "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64"});
    let resources = json!({"cpu": "4", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let images: Vec<Value> = (0..20)
        .map(
            |image| json!({"names": [format!("registry.example.com/team/image-{image}:v1")], "sizeBytes": 100_000_000}),
        )
        .collect();
    let status = json!({"capacity": resources, "allocatable": resources, "images": images});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status});
    Node::from_value(node).unwrap()
}

fn pod(name: &str, number: usize, kind: &str, labels: Value, extra: Value) -> Value {
    let number = number % NODES;
    let node = format!("ip-10-0-{}-{}.eu-west-1.compute.internal", number / 256, number % 256);
    let uid = format!("00000000-0000-4000-8000-{name}");
    let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "web-7d4b9c", "uid": "u", "controller": true}]);
    let metadata =
        json!({"namespace": "production", "name": name, "uid": uid, "labels": labels, "ownerReferences": owner});
    let tolerations = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    let container = json!({"name": "c", "image": "registry.example.com/team/image-1:v1",
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}});
    let mut spec = json!({"nodeName": node, "containers": [container], "tolerations": tolerations,
        "schedulerName": "default-scheduler", "priority": 0});
    corten_meta::patch::merge_patch(&mut spec, &extra);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}})
}

fn deployed(number: usize) -> Value {
    let labels = json!({"app": "web", "pod-template-hash": "7d4b9c"});
    pod(&format!("web-7d4b9c-{number:05}"), number, "ReplicaSet", labels, json!({}))
}

fn stateful(number: usize) -> Value {
    let name = format!("db-{number:06}");
    let labels = json!({"app": "db", "controller-revision-hash": "db-6f5d", "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": number.to_string()});
    pod(&name, number, "StatefulSet", labels, json!({}))
}

fn daemon(number: usize) -> Value {
    let node = format!("ip-10-0-{}-{}.eu-west-1.compute.internal", number / 256, number % 256);
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [field]}]}}});
    let tolerate = |key: &str, effect: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect});
    let tolerations = json!([
        tolerate("not-ready", "NoExecute"),
        tolerate("unreachable", "NoExecute"),
        tolerate("disk-pressure", "NoSchedule"),
        tolerate("memory-pressure", "NoSchedule"),
        tolerate("pid-pressure", "NoSchedule"),
        tolerate("unschedulable", "NoSchedule")
    ]);
    let labels = json!({"app": "agent", "controller-revision-hash": "5f6d", "pod-template-generation": "1"});
    let extra = json!({"affinity": affinity, "tolerations": tolerations});
    pod(&format!("agent-{number:06}"), number, "DaemonSet", labels, extra)
}
