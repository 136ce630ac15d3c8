//! `corten status`: the running components, their addresses, versions and memory.

use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node};
use corten_client::{Client, ListOptions};
use corten_meta::Value;
use rustix::fs::{Mode, OFlags};

use super::conditions::{Facts, conditions};
use super::member_table;
use crate::cli::DirectoryFlags;
use crate::cli::NetworkBackend;
use crate::components::node_dns::dns_of;
use crate::components::readiness;
use crate::directories::Directories;
use crate::node_object::is_ready;
use crate::pki::{ENCRYPTION_KEYS, SERVICE_ACCOUNT_KEYS, keys, rotation};
use crate::version::VERSION;
use crate::{certificates, instance, preflight};

/// The sentence for servers that cannot go on without others.
const LOST: &str = "Start the other servers; if they are lost for good, stop this one and run `corten recover`";

pub async fn run(directories: &DirectoryFlags) -> Result<()> {
    preflight::root_for("status")?;
    let directories = Directories::of(directories);
    let Some(pid) = instance::running(&directories)? else {
        match instance::last_failure(&directories) {
            Some(why) => bail!("corten is not running; it failed at {why}; start it by `corten up`"),
            None => bail!("corten is not running; start it by `corten up`"),
        }
    };
    let admin = directories.kubeconfig("admin");
    let client = Client::from_kubeconfig(&admin, None).context("the administrator's kubeconfig cannot be used")?;
    let members = member_table::gather(&directories).await;
    let version = match get(&client, "/version").await {
        Ok(version) => version,
        Err(error) => match members.filter(|members| !members.is_healthy) {
            Some(members) => bail!("{error:#}. etcd: {}. {LOST}", members.summary),
            None => return Err(error),
        },
    };
    println!("corten       {VERSION}, serving Kubernetes {}", version["gitVersion"].as_str().unwrap_or("?"));
    println!("server       pid {pid}");
    println!("API server   {}", crate::kubeconfig::server(&admin)?);
    println!("data         {}", directories.data.display());
    println!("cgroup       {}", directories.cgroup());
    println!();

    // A cluster whose store cannot be read has more to show than this error.
    let nodes = client.list::<Node>("", &ListOptions::default()).await.map_err(|error| error.to_string());
    let nodes = nodes.map(|list| list.items.iter().map(corten_api::Typed::to_value).collect::<Vec<Value>>());
    super::print_table(&components(&client, nodes.as_deref().ok(), members.as_ref()).await);
    println!();
    if let Ok(nodes) = &nodes {
        super::print_table(&node_rows(nodes));
        println!();
    }
    if let Some(members) = &members {
        super::print_table(&members.rows);
        println!();
    }
    super::print_table(&memory_rows(&directories, pid));
    let found = conditions(&facts(&client, &directories, nodes, members.as_ref()).await);
    if !found.is_empty() {
        println!();
        let mut rows = vec![["PROBLEM", "HELP"].map(str::to_owned)];
        rows.extend(found.into_iter().map(|one| [one.problem, one.help]));
        super::print_table(&rows);
    }
    Ok(())
}

/// Gathers the facts by which bad conditions are decided.
async fn facts(
    client: &Client,
    directories: &Directories,
    nodes: Result<Vec<Value>, String>,
    members: Option<&member_table::Table>,
) -> Facts {
    let ready = client.get_raw("/readyz").await;
    let metrics = client.get_raw("/metrics").await.unwrap_or_default();
    let pki = directories.pki();
    let file = |name: &str| std::fs::read_to_string(pki.join(name)).unwrap_or_default();
    let lost_quorum = members.filter(|table| !table.has_quorum).map(|table| table.summary.clone());
    let members = members.map(|table| table.rows.as_slice()).unwrap_or_default();
    let failing = members.iter().skip(1).filter(|row| row[0] != "-" && row[7] != "healthy");
    let certificates = certificates::list(directories);
    let first = client.find::<Namespace>("", "kube-system").await.ok().flatten();
    Facts {
        now: corten_meta::time::now(),
        made: first.and_then(|namespace| Some(namespace.metadata.creation_timestamp?.0)),
        certificates,
        rotation: rotation::read(&pki).ok().flatten(),
        service_account_keys: keys::parse_pem(&file(SERVICE_ACCOUNT_KEYS)).ok().map(|ring| ring.stage()),
        encryption_keys: keys::parse_lines(&file(ENCRYPTION_KEYS)).ok().map(|ring| ring.stage()),
        not_listed: nodes.as_ref().err().cloned(),
        nodes: nodes.unwrap_or_default(),
        lost_quorum,
        not_ready: ready.err().map(|error| error.to_string()),
        free: rustix::fs::statvfs(&directories.data).ok().map(|disk| disk.f_bavail * disk.f_frsize),
        write: small_write(&directories.data),
        backup: std::fs::read(directories.data.join("backup.json"))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default(),
        failing_members: failing.map(|row| [row[0].clone(), row[7].clone()]).collect(),
        metrics: String::from_utf8_lossy(&metrics).into_owned(),
    }
}

/// Returns the time of a small write to the disk of a directory, in seconds: the median of three. The file has no name.
fn small_write(directory: &Path) -> Option<f64> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).ok()?);
    let mut times = [0.0; 3];
    for time in &mut times {
        let begun = Instant::now();
        (&file).write_all(&[0; 4096]).ok()?;
        file.sync_data().ok()?;
        *time = begun.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    Some(times[1])
}

async fn get(client: &Client, path: &str) -> Result<Value> {
    let body = client.get_raw(path).await.with_context(|| format!("the API server does not answer {path}"))?;
    Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Returns each component with its observed state.
async fn components(
    client: &Client,
    nodes: Option<&[Value]>,
    members: Option<&member_table::Table>,
) -> Vec<[String; 3]> {
    let row = |name: &str, good: bool, note: String| {
        [name.to_owned(), if good { "healthy" } else { "failing" }.to_owned(), note]
    };
    let mut rows = vec![["COMPONENT".to_owned(), "STATE".to_owned(), "SEEN".to_owned()]];
    let ready = get(client, "/readyz").await;
    rows.push(row("apiserver", ready.is_ok(), ready.map_or_else(|e| e.to_string(), |_| "/readyz is ok".into())));
    if let Some(members) = members {
        rows.push(row("etcd", members.is_healthy, members.summary.clone()));
    }
    let Some(nodes) = nodes else { return rows };
    let assigned = nodes.iter().filter(|node| node.pointer("/spec/podCIDR").is_some()).count();
    rows.push(row(
        "controllers",
        assigned == nodes.len(),
        format!("{assigned} of {} nodes have a pod range", nodes.len()),
    ));
    let alive = nodes.iter().filter(|node| is_ready(node)).count();
    rows.push(row("nodes", alive == nodes.len(), format!("{alive} of {} are Ready", nodes.len())));
    let gateways: Vec<IpAddr> =
        nodes.iter().flat_map(|node| dns_of(node, NetworkBackend::HostGw)).map(|address| address.ip()).collect();
    for node in nodes {
        let name = corten_meta::name(node);
        // The Node object does not show which network the node has; its DNS answers at one of the two addresses.
        let all_directories = [NetworkBackend::HostGw, NetworkBackend::Cni].map(|backend| dns_of(node, backend));
        let mut answer = None;
        for address in all_directories.iter().filter_map(|addresses| addresses.first()) {
            answer = match readiness::ask(*address, "kubernetes.default.svc.cluster.local", &gateways).await {
                Ok(()) => Some(Ok(address)),
                Err(error) => answer.or(Some(Err(error))),
            };
            if matches!(answer, Some(Ok(_))) {
                break;
            }
        }
        let Some(answer) = answer else { continue };
        let note =
            answer.as_ref().map_or_else(ToString::to_string, |address| format!("{} answers names", address.ip()));
        rows.push(row(&format!("dns on {name}"), answer.is_ok(), note));
    }
    rows
}

fn node_rows(nodes: &[Value]) -> Vec<[String; 5]> {
    let mut rows = vec![["NODE", "STATUS", "ADDRESS", "PODS", "KUBELET"].map(str::to_owned)];
    for node in nodes {
        let text = |path: &str| node.pointer(path).and_then(Value::as_str).unwrap_or("<none>").to_owned();
        let state = if is_ready(node) { "Ready" } else { "NotReady" };
        rows.push([
            corten_meta::name(node).to_owned(),
            state.to_owned(),
            text("/status/addresses/0/address"),
            text("/spec/podCIDR"),
            text("/status/nodeInfo/kubeletVersion"),
        ]);
    }
    rows
}

/// Returns the proportional memory of the server, of further nodes and of the shims.
fn memory_rows(directories: &Directories, server: i32) -> Vec<[String; 3]> {
    let mut rows = vec![["PROCESS", "COUNT", "MEMORY (PSS)"].map(str::to_owned)];
    let mebibytes = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    rows.push(["server".into(), "1".into(), mebibytes(pss_kib(server).unwrap_or(0))]);
    let mut agents = Vec::new();
    let mut shims = Vec::new();
    let data = directories.data.to_string_lossy();
    let run = directories.run.to_string_lossy();
    for (pid, words) in processes().into_iter().filter(|(pid, _)| *pid != server) {
        let line = words.join(" ");
        let ours = line.contains(&*data) || line.contains(&*run);
        match words.get(1).map(String::as_str) {
            Some("agent") if ours => agents.push(pid),
            Some("zygote" | "pause") if ours => shims.push(pid),
            _ => {}
        }
    }
    for (name, pids) in [("agent", agents), ("shim", shims)] {
        if !pids.is_empty() {
            let total = pids.iter().filter_map(|pid| pss_kib(*pid)).sum();
            rows.push([name.to_owned(), pids.len().to_string(), mebibytes(total)]);
        }
    }
    rows
}

/// Returns every process that was started from this very binary, with its command line. Those that containers see run
/// it through a path-less view.
fn processes() -> Vec<(i32, Vec<String>)> {
    let Ok(own) = std::env::current_exe() else { return Vec::new() };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
            Some((pid, words.collect::<Vec<_>>()))
        })
        .filter(|(_, words)| words.first().is_some_and(|name| Path::new(name) == own))
        .collect()
}

fn pss_kib(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("smaps_rollup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix("kB")?.trim().parse().ok())
}
