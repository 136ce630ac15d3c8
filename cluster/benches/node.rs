//! The performance of a node: the start of a pod, of fifty at once, a hundred idle ones (with the complete cluster, and
//! on a node that is a process of its own), the memory of a shim, the unpacking of an image, also by containerd where
//! it is installed. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! A client in the machine's own network watches the pods and takes the times, so that they include no program's start.
//! Run by `cargo xtask bench`, as root, on a machine of its own (namespaces), with the release binary.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Client, ListOptions, WatchEvent};
use futures::StreamExt;
use serde_json::json;
use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const ONE_BY_ONE: usize = 40;
const AT_ONCE: usize = 50;
const AT_REST: usize = 100;
/// The time after which the work of the start is over.
const SETTLE: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(60);
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
    let idle = idle_percent(&cluster);
    figure("idle CPU of one core with 100 pods, whole cluster", idle, "%");
    figure("shim, PSS", shim_mebibytes(&cluster), "MiB");
    figure("idle CPU of one core with 100 pods, node alone", node_alone(&cluster), "%");

    let archive = testkit::image::large_archive(cluster.scratch(), "test.local/large:1", IMAGE_MEBIBYTES);
    let begun = Instant::now();
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    figure("import and unpacking of a 200 MiB image", begun.elapsed().as_secs_f64(), "s");
    match containerd_import(&cluster, &archive) {
        Some(time) => figure("the same by Debian's containerd", time.as_secs_f64(), "s"),
        None => eprintln!("skipped: containerd is not in target/tools"),
    }
}

/// Returns the CPU time of the cluster's process while nothing happens.
fn idle_percent(cluster: &Cluster) -> f64 {
    let pid = cluster.server_pid();
    std::thread::sleep(SETTLE);
    let before = cpu_seconds(cluster, &pid);
    std::thread::sleep(IDLE);
    (cpu_seconds(cluster, &pid) - before) / IDLE.as_secs_f64() * 100.0
}

/// Returns the same for a node that joined from a machine of its own: kubelet, runtime, network, proxy and DNS.
fn node_alone(cluster: &Cluster) -> f64 {
    let node = Cluster::machine(CORTEN);
    cluster.machine.connect(&node.machine, "10.88.0.3");
    let command = cluster.corten(&["token", "create", "--print-join-command"]);
    let words: Vec<&str> = command.split_whitespace().skip(1).chain(["--node-name", "alone"]).collect();
    let log = std::fs::File::create(node.scratch().join("agent.log")).expect("the directory is writable");
    let mut command = node.corten_command(&words);
    let mut agent = command.stdout(log.try_clone().expect("a file")).stderr(log).spawn().expect("an agent");
    cluster.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 2);
    let image = testkit::image::busybox_archive(node.scratch(), IMAGE);
    node.corten(&["image", "import", &image.to_string_lossy()]);
    let names: Vec<String> = (0..AT_REST).map(|number| format!("alone-{number}")).collect();
    let placed = |name: &str| {
        let mut pod = pod(name);
        pod.spec.get_or_insert_default().node_name = Some("alone".into());
        pod
    };
    pods(cluster, |client| async move { start_as(&client, &names, "Ready", placed).await });
    let percent = idle_percent(&node);
    node.corten(&["down"]);
    agent.wait().expect("the agent ends");
    percent
}

/// Returns the time of containerd for the same archive: `ctr image import`, which unpacks too.
fn containerd_import(cluster: &Cluster, archive: &Path) -> Option<Duration> {
    let tools = tools::busybox().parent()?.join("containerd");
    let folder = cluster.scratch().join("containerd");
    std::fs::create_dir_all(&folder).ok()?;
    let socket = folder.join("containerd.sock");
    let config = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {socket:?}\n",
        folder.join("root"),
        folder.join("state")
    );
    std::fs::write(folder.join("config.toml"), config).ok()?;
    let log = std::fs::File::create(folder.join("log")).ok()?;
    let mut containerd = cluster.machine.command(&tools.join("containerd"));
    containerd.arg("--config").arg(folder.join("config.toml")).stderr(log);
    let mut containerd = tools.join("ctr").exists().then(|| containerd.spawn().ok())??;
    let ctr = |arguments: &[&str]| {
        let mut command = cluster.machine.command(&tools.join("ctr"));
        command.arg("--address").arg(&socket).args(arguments).output().expect("ctr runs")
    };
    wait::until("containerd", BOUND, || match ctr(&["version"]) {
        output if output.status.success() => Ok(()),
        output => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    });
    let begun = Instant::now();
    let imported = ctr(&["image", "import", &archive.to_string_lossy()]);
    let time = begun.elapsed();
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    // The program that entered the machine forwards no signal: the machine ends containerd when it is removed.
    let _ = containerd.kill();
    let _ = containerd.wait();
    Some(time)
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Runs a client of the cluster in its own network.
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

/// Creates the pods; returns the time until all of them were seen in the wanted state.
async fn start(client: &Client, names: &[String], wanted: &str) -> Duration {
    start_as(client, names, wanted, pod).await
}

async fn start_as(client: &Client, names: &[String], wanted: &str, made: impl Fn(&str) -> Pod) -> Duration {
    let now = client.list::<Pod>("default", &ListOptions::default()).await.expect("pods are listed");
    let options = ListOptions { resource_version: Some(now.resource_version.clone()), ..ListOptions::default() };
    let mut events = client.watch::<Pod>("default", &options).await.expect("pods are watched");
    let begun = Instant::now();
    for name in names {
        client.create(&made(name)).await.expect("the pod is created");
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

/// Reads a file below /proc of one of the machine's processes.
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

/// Returns the proportional memory of a shim, averaged over all of them.
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
