//! The cost of a cluster: start, memory, idle CPU, size. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! Run by `cargo xtask bench`, as root, on a machine of its own (namespaces), with the release binary.

use std::time::{Duration, Instant};

use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The time for which the idle cluster is measured.
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    figure("start, first", timed(|| cluster.start(&[])), "s");
    cluster.corten(&["down"]);
    figure("start, second", timed(|| cluster.start(&[])), "s");

    let pid = cluster.server_pid();
    let before = cpu_seconds(&cluster, &pid);
    std::thread::sleep(IDLE);
    let used = cpu_seconds(&cluster, &pid) - before;
    figure("idle CPU of one core", used / IDLE.as_secs_f64() * 100.0, "%");
    figure("idle memory, PSS", pss_mebibytes(&cluster, &pid), "MiB");
    figure("binary, stripped", std::fs::metadata(CORTEN).map_or(0.0, |m| m.len() as f64 / 1e6), "MB");

    let archive = testkit::image::busybox_archive(cluster.scratch(), IMAGE);
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    let started = timed(|| {
        cluster.kubectl(&["run", "first", "--image", IMAGE, "--", "sleep", "3600"]);
        cluster.kubectl(&["wait", "--for=condition=Ready", "pod/first", "--timeout=60s"]);
    });
    figure("kubectl run to Ready", started, "s");
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

fn timed<T>(run: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
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

fn pss_mebibytes(cluster: &Cluster, pid: &str) -> f64 {
    let text = proc_file(cluster, pid, "smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
