//! A full disk: the cluster stays readable, says so, and heals when there is space.

#![allow(clippy::unwrap_used)]

use testkit::cluster::Cluster;
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The size of the disk: as small as a cluster can start on.
const DISK: &str = "size=400m";

#[test]
fn a_full_disk_leaves_the_cluster_readable_until_there_is_space() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let data = cluster.data_dir();
    let data = data.to_str().unwrap();
    let shell = |script: &str| {
        let output = cluster.machine.command(&tools::busybox()).args(["sh", "-c", script]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    shell(&format!("mkdir -p -m 0700 {data} && mount -t tmpfs -o mode=0700,{DISK} tmpfs {data}"));
    cluster.start(&[]);
    cluster.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    shell(&format!("dd if=/dev/zero of={data}/fill bs=1M"));

    // The log was made in advance, and takes some more.
    let big = cluster.scratch().join("big");
    std::fs::write(&big, vec![b'x'; 900 << 10]).unwrap();
    let from = format!("--from-file={}", big.display());
    let mut written = 0;
    let refused = loop {
        let name = format!("big-{written}");
        let output = cluster.kubectl_command(&["create", "configmap", &name, &from]).output().unwrap();
        if !output.status.success() {
            break String::from_utf8_lossy(&output.stderr).into_owned();
        }
        written += 1;
        assert!(written < 200, "the disk never filled");
    };
    assert!(refused.contains("database space exceeded"), "{refused}");
    let ready = |pleases: &dyn Fn(&str) -> bool| {
        wait::until("the readiness", wait::BOUND, || {
            let output = cluster.kubectl_command(&["get", "--raw", "/readyz?verbose"]).output();
            let output = output.map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            if pleases(&text) { Ok(()) } else { Err(text) }
        });
    };
    ready(&|text| text.contains("[-]etcd") || text.contains("no space left") || text.contains("takes no writes"));
    let metrics = cluster.kubectl(&["get", "--raw", "/metrics"]);
    assert!(
        metrics.lines().any(|line| line.contains("\"failing\"") && line.ends_with(" 1")),
        "no metric of the failure"
    );
    assert_eq!(cluster.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    assert_eq!(cluster.kubectl(&["get", "configmaps", "-o", "name"]).matches("/big-").count(), written);

    shell(&format!("rm {data}/fill"));
    cluster
        .kubectl_until(&["create", "configmap", "after", "--from-literal=of=after"], |text| text.contains("created"));
    ready(&|text| text.contains("readyz check passed"));
    cluster.kubectl_until(&["get", "events", "-A"], |text| {
        text.contains("StoreWritable") && text.contains("StoreDiskNearlyFull")
    });
    assert_eq!(cluster.kubectl(&["get", "configmaps", "-o", "name"]).matches("/big-").count(), written);
}
