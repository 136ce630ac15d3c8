//! What a node does in what time: a pod's start, fifty at once, a hundred at rest, the memory of a shim, the unpacking of
//! an image. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! Times are taken by a client on the machine's own network that watches the pods, so that no program's start is in them.
//! Run by `cargo xtask bench`, as root, on a machine of its own (namespaces), with the release binary.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Client, ListOptions, WatchEvent};
use futures::StreamExt;
use serde_json::json;
use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const ONE_BY_ONE: usize = 40;
const AT_ONCE: usize = 50;
const AT_REST: usize = 100;
const IDLE: Duration = Duration::from_secs(30);
const IMAGE_MEBIBYTES: usize = 200;
const BOUND: Duration = Duration::from_secs(120);

fn main() {
    if !tools::is_root() {
        eprintln!("skipped: a node needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    cluster.kubectl_until(&["get", "serviceaccount", "default"], |text| text.contains("default"));
    let mut times = pods(&cluster, |client| async move {
        let mut times = Vec::new();
        for number in 0..ONE_BY_ONE {
            times.push(start(&client, &[format!("one-{number}")], "Running").await);
        }
        times
    });
    times.sort();
    figure("pod created to Running, p50", milliseconds(times[ONE_BY_ONE / 2]), "ms");
    figure("pod created to Running, p99", milliseconds(times[ONE_BY_ONE * 99 / 100]), "ms");
    let names: Vec<String> = (0..AT_ONCE).map(|number| format!("many-{number}")).collect();
    let many = pods(&cluster, |client| async move { start(&client, &names, "Ready").await });
    figure("50 pods at once to Ready", many.as_secs_f64(), "s");

    let more: Vec<String> = (0..AT_REST - ONE_BY_ONE - AT_ONCE).map(|number| format!("rest-{number}")).collect();
    pods(&cluster, |client| async move { start(&client, &more, "Ready").await });
    let pid = cluster.server_pid();
    std::thread::sleep(Duration::from_secs(5));
    let before = cpu_seconds(&cluster, &pid);
    std::thread::sleep(IDLE);
    let used = cpu_seconds(&cluster, &pid) - before;
    figure("idle CPU of one core with 100 pods, whole cluster", used / IDLE.as_secs_f64() * 100.0, "%");
    figure("shim, PSS", shim_mebibytes(&cluster), "MiB");

    let archive = testkit::image::large_archive(cluster.scratch(), "test.local/large:1", IMAGE_MEBIBYTES);
    let begun = Instant::now();
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    figure("import and unpacking of a 200 MiB image", begun.elapsed().as_secs_f64(), "s");
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Runs a client of the cluster on its own network.
fn pods<T, F>(cluster: &Cluster, work: impl FnOnce(Client) -> F + Send) -> T
where
    T: Send,
    F: Future<Output = T>,
{
    let kubeconfig = cluster.scratch().join(".kube/config");
    cluster.machine.in_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let client = Client::from_kubeconfig(&kubeconfig, None).expect("the cluster's kubeconfig");
            work(client).await
        })
    })
}

/// Creates the pods and returns how long it took until all of them were seen as they should be.
async fn start(client: &Client, names: &[String], wanted: &str) -> Duration {
    let now = client.list::<Pod>("default", &ListOptions::default()).await.expect("pods are listed");
    let options = ListOptions { resource_version: Some(now.resource_version.clone()), ..ListOptions::default() };
    let mut events = client.watch::<Pod>("default", &options).await.expect("pods are watched");
    let begun = Instant::now();
    for name in names {
        client.create(&pod(name)).await.expect("the pod is created");
    }
    let mut missing: HashSet<&str> = names.iter().map(String::as_str).collect();
    let seen = async {
        while !missing.is_empty() {
            let event = events.next().await.expect("the watch goes on").expect("the watch is well");
            let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event else { continue };
            let pod: Pod = corten_api::decode_object(&object).expect("a pod");
            if is(&pod, wanted) {
                missing.remove(pod.metadata.name.as_deref().unwrap_or_default());
            }
        }
    };
    tokio::time::timeout(BOUND, seen).await.expect("the pods start in time");
    begun.elapsed()
}

fn is(pod: &Pod, wanted: &str) -> bool {
    let Some(status) = &pod.status else { return false };
    match wanted {
        "Running" => status.phase.as_deref() == Some("Running"),
        condition => status.conditions.iter().flatten().any(|it| it.type_ == condition && it.status == "True"),
    }
}

fn pod(name: &str) -> Pod {
    Pod::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "86400"]}],
        },
    }))
    .expect("a pod")
}

/// A file below /proc of one of the machine's processes.
fn proc_file(cluster: &Cluster, pid: &str, file: &str) -> String {
    let path = format!("/proc/{pid}/{file}");
    let output = cluster.machine.command(&tools::busybox()).args(["cat", &path]).output().expect("cat runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn cpu_seconds(cluster: &Cluster, pid: &str) -> f64 {
    let stat = proc_file(cluster, pid, "stat");
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 = after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// The proportional memory of a shim, averaged over all of them.
fn shim_mebibytes(cluster: &Cluster) -> f64 {
    let output = cluster.machine.command(&tools::busybox()).args(["ps", "-o", "pid,comm"]).output().expect("ps runs");
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let shims = listed.lines().filter(|line| line.trim().ends_with("corten-shim"));
    let sizes: Vec<f64> = shims
        .filter_map(|line| {
            let text = proc_file(cluster, line.split_whitespace().next()?, "smaps_rollup");
            let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        })
        .collect();
    sizes.iter().sum::<f64>() / sizes.len().max(1) as f64 / 1024.0
}
