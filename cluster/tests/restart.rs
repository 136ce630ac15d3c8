//! Recovery: a killed cluster finds everything again, and a purged one leaves nothing.

#![allow(clippy::unwrap_used)]

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn a_killed_cluster_comes_back_and_its_containers_never_stopped() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    cluster.kubectl(&["create", "deployment", "sleeper", "--image", IMAGE, "--", "sleep", "3600"]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/sleeper"]);
    cluster.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    let pod = [
        "get",
        "pods",
        "-l",
        "app=sleeper",
        "-o",
        "jsonpath={.items[0].metadata.uid} {.items[0].status.containerStatuses[0].containerID} {.items[0].status.containerStatuses[0].restartCount}",
    ];
    let before = cluster.kubectl(&pod);

    for _ in 0..3 {
        cluster.kill_hard();
        cluster.start(&[]);
        cluster.kubectl_wait(&["wait", "--for=condition=Ready", "node", "--all"]);
        assert_eq!(cluster.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
        assert_eq!(cluster.kubectl(&pod), before, "the container was not restarted");
        cluster.kubectl_until(&["exec", "deployment/sleeper", "--", "echo", "alive"], |printed| printed == "alive\n");
    }

    // An ordinary stop stops the containers; the objects stay.
    cluster.corten(&["down"]);
    no_processes(&cluster);
    cluster.start(&[]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/sleeper"]);
    assert_eq!(cluster.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");

    purge_leaves_nothing(&cluster);
}

/// Exited processes are visible until the machine's init has reaped them.
fn no_processes(cluster: &Cluster) {
    wait::until("the end of all processes", wait::BOUND, || match cluster.machine.processes() {
        none if none.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

fn purge_leaves_nothing(cluster: &Cluster) {
    let cgroup = cgroup(cluster);
    let ours = format!("find /sys/fs/cgroup -type d -name {cgroup}");
    let sh = |script: &str| {
        let output = cluster.machine.command(&tools::busybox()).args(["sh", "-c", script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_ne!(sh(&ours), "", "the cgroup's name is right");
    assert_ne!(cluster.machine.nft_tables(), Vec::<String>::new(), "a running cluster has tables");
    cluster.corten(&["down", "--purge"]);
    no_processes(cluster);
    assert_eq!(cluster.machine.nft_tables(), Vec::<String>::new(), "nft tables");
    let links = sh("ip -o link | awk -F': ' '{print $2}'");
    assert!(
        links
            .lines()
            .all(|link| link == "lo" || link.starts_with("eth0") || !link.contains("corten") && !link.contains("veth")),
        "{links}"
    );
    let mounts = sh("cat /proc/mounts");
    assert!(!mounts.contains(&*cluster.data_dir().to_string_lossy()) && !mounts.contains("/run/corten"), "{mounts}");
    assert!(!cluster.data_dir().exists(), "the data directory is still there");
    assert_eq!(sh("ls /run/corten 2>/dev/null"), "");
    assert_eq!(sh(&ours), "", "cgroups");
    assert!(!std::fs::read_to_string(cluster.scratch().join(".kube/config")).unwrap().contains("corten"));
}

/// Returns the name of the cluster's cgroup, from its status.
fn cgroup(cluster: &Cluster) -> String {
    let status = cluster.corten(&["status"]);
    let line = status.lines().find_map(|line| line.strip_prefix("cgroup")).expect("the status names the cgroup");
    line.trim().trim_start_matches('/').to_owned()
}

#[test]
fn errors_are_one_sentence() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let fails = |arguments: &[&str]| {
        let output = cluster.corten_command(arguments).output().unwrap();
        assert!(!output.status.success(), "corten {arguments:?} did not fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };

    let mut squatter = cluster.machine.command(&tools::busybox()).args(["nc", "-l", "-p", "6443"]).spawn().unwrap();
    wait::until("the squatter", wait::BOUND, || {
        let listens = ["grep", "-q", ":192B", "/proc/net/tcp", "/proc/net/tcp6"];
        let status = cluster.machine.command(&tools::busybox()).args(listens).status();
        if status.is_ok_and(|status| status.success()) { Ok(()) } else { Err("not listening".into()) }
    });
    let taken = fails(&["up"]);
    assert!(taken.contains("port 6443 is taken"), "{taken}");
    let _ = cluster.machine.command(&tools::busybox()).args(["sh", "-c", "kill $(pidof nc)"]).status();
    squatter.kill().ok();
    squatter.wait().unwrap();

    std::fs::create_dir_all(cluster.data_dir()).unwrap();
    std::fs::write(cluster.data_dir().join("format"), "99\n").unwrap();
    let old = fails(&["up"]);
    assert!(old.contains("format 99"), "{old}");
    std::fs::remove_dir_all(cluster.data_dir()).unwrap();

    std::fs::create_dir_all(cluster.data_dir()).unwrap();
    let mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let data = cluster.data_dir();
    assert!(cluster.machine.command(&tools::busybox()).args(mount).arg(&data).status().unwrap().success());
    let full = fails(&["up"]);
    assert!(full.contains("is full"), "{full}");
    assert!(cluster.machine.command(&tools::busybox()).args(["umount"]).arg(&data).status().unwrap().success());

    let plain = cluster
        .machine
        .command(std::path::Path::new("setpriv"))
        .args(["--reuid", "65534", "--clear-groups", CORTEN, "up"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&plain.stderr);
    assert!(!plain.status.success() && printed.contains("must run as root"), "{printed}");
    assert_eq!(fails(&["logs"]).lines().count(), 1);
}

/// Gives the data directory a file system of its own, with this many megabytes.
fn small_disk(cluster: &Cluster, megabytes: u32) {
    std::fs::create_dir_all(cluster.data_dir()).unwrap();
    let size = format!("size={megabytes}m,mode=0700");
    let mount = ["mount", "-t", "tmpfs", "-o", &size, "tmpfs"];
    let mounted = cluster.machine.command(&tools::busybox()).args(mount).arg(cluster.data_dir()).status();
    assert!(mounted.unwrap().success());
}

fn create_map(cluster: &Cluster, name: &str) -> Result<(), String> {
    let file = cluster.scratch().join("big");
    std::fs::write(&file, "x".repeat(900_000)).unwrap();
    let from = format!("--from-file={}", file.display());
    let output = cluster.kubectl_command(&["create", "configmap", name, &from]).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn a_full_disk_is_reported_and_writes_go_on_once_there_is_space() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    small_disk(&cluster, 160);
    cluster.start(&[]);
    cluster.kubectl(&["create", "configmap", "before", "--from-literal=a=b"]);
    let sh = |script: &str| cluster.machine.command(&tools::busybox()).args(["sh", "-c", script]).status().unwrap();
    let filler = cluster.data_dir().join("filler");
    sh(&format!("dd if=/dev/zero of={} bs=1M", filler.display()));

    let refused = (0..60).find_map(|number| create_map(&cluster, &format!("big-{number}")).err());
    let refused = refused.expect("the disk fills up");
    assert!(refused.contains("etcdserver: mvcc: database space exceeded"), "{refused}");
    let ready = cluster.kubectl_fails(&["get", "--raw", "/readyz/etcd-readiness"]);
    assert!(ready.contains("takes no writes"), "{ready}");
    cluster.kubectl_fails(&["get", "--raw", "/readyz"]);
    assert_eq!(cluster.kubectl(&["get", "--raw", "/livez"]), "ok", "a restart would not help");
    assert_eq!(cluster.kubectl(&["get", "configmap", "before", "-o", "jsonpath={.data.a}"]), "b");
    let condition = ["get", "componentstatus", "etcd-0", "-o", "jsonpath={.conditions[0].status}"];
    assert_eq!(cluster.kubectl(&condition), "False");
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
    assert!(metrics.contains("corten_store_health{state=\"failing\"} 1"), "the metric is there");

    assert!(sh(&format!("rm {}", filler.display())).success());
    create_map(&cluster, "after").expect("there is space again");
    assert_eq!(cluster.kubectl(&["get", "--raw", "/readyz"]), "ok");
    assert_eq!(cluster.kubectl(&condition), "True");
}

/// Makes every sync of file data fail once the file of the environment variable exists.
const FAILING_SYNC: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
int fdatasync(int descriptor) {
    const char *failing = getenv("SYNCS_FAIL_IF");
    if (failing && access(failing, F_OK) == 0) { errno = EIO; return -1; }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(descriptor);
}
"#;

#[test]
fn a_failed_sync_ends_the_server_and_the_status_shows_the_error() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let source = cluster.scratch().join("sync.c");
    let library = cluster.scratch().join("sync.so");
    let failing = cluster.scratch().join("fail");
    std::fs::write(&source, FAILING_SYNC).unwrap();
    let mut compile = std::process::Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(compile.status().expect("a C compiler, which the build needs too").success());
    let mut up = cluster.corten_command(&["up", "--timeout", "600"]);
    up.env("LD_PRELOAD", &library).env("SYNCS_FAIL_IF", &failing);
    assert!(up.output().unwrap().status.success());
    cluster.kubectl(&["create", "configmap", "before", "--from-literal=a=b"]);

    std::fs::write(&failing, "").unwrap();
    let status = wait::until("the end of the server", wait::BOUND, || {
        let output = cluster.corten_command(&["status"]).output().map_err(|error| error.to_string())?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        if printed.contains("not running") { Ok(printed) } else { Err(printed) }
    });
    assert!(status.contains("store: it takes no writes until it is opened again"), "{status}");
    assert_eq!(status.lines().count(), 1, "{status}");
    std::fs::remove_file(&failing).unwrap();
    cluster.start(&[]);
    assert_eq!(cluster.kubectl(&["get", "configmap", "before", "-o", "jsonpath={.data.a}"]), "b");
}
