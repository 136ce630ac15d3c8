//! A volume with a copy on another node, on a whole cluster with the real kubectl: its node is cut off while a pod writes,
//! the copy takes its place, the node returns and gets a copy itself, and takes the volume back.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn a_copy_takes_the_place_of_a_lost_node() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    if !std::env::split_paths(&path).chain(system).any(|directory| directory.join("mkfs.xfs").exists()) {
        eprintln!("skipped: copies need mkfs.xfs, of the package xfsprogs");
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--nodes", "3", "--node-name", "first"]);
    let established = "jsonpath={.status.conditions[?(@.type==\"Established\")].status}";
    cluster.kubectl_until(&["get", "crd/volumereplicas.storage.corten.dev", "-o", established], |one| one == "True");
    cluster.apply(CLASSES);
    run(&cluster, "writer", WRITER);
    let volume = cluster.kubectl(&["get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"]);
    let replica = Replica { cluster: &cluster, name: volume };
    cluster.kubectl_wait(&["wait", "--for=condition=Synced", "--timeout=120s", &replica.path()]);
    let primary = cluster.kubectl(&["get", "pod", "writer", "-o", "jsonpath={.spec.nodeName}"]);
    let standby = replica.field("spec.standbyNode");
    assert_eq!(replica.field("spec.primaryNode"), primary);
    assert!(standby.starts_with("first-") && standby != primary, "{standby}");

    // The copy has everything that was written before it was last synchronised.
    let written = last_line(&cluster, "writer");
    replica.next_copy();
    let lost = Agent::of(&cluster, &primary);
    lost.stop();
    // The pod on the lost node goes on writing. Nothing is promoted before an administrator says that the node is off.
    assert_eq!(replica.field("spec.epoch"), "1");
    cluster.kubectl(&["taint", "node", &primary, "node.kubernetes.io/out-of-service=lost:NoExecute"]);
    let unknown = r#"{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"Lost"}]}}"#;
    cluster.kubectl(&["patch", "node", &primary, "--subresource=status", "-p", unknown]);
    cluster.kubectl_until(&["get", &replica.path(), "-o", "jsonpath={.spec.epoch}"], |epoch| epoch == "2");
    assert_eq!(replica.field("spec.primaryNode"), standby);
    run(&cluster, "second", SECOND);
    assert_eq!(cluster.kubectl(&["get", "pod", "second", "-o", "jsonpath={.spec.nodeName}"]), standby);
    let found = last_line(&cluster, "second");
    assert!(found >= written, "line {found} is the last of the copy, and {written} was synchronised");

    // The node returns: its pod loses the volume, and the volume is overwritten by that of the new primary.
    cluster.kubectl(&["exec", "second", "--", "sh", "-c", "echo 1000000 >> /data/log && sync"]);
    lost.resume();
    let report = "jsonpath={.status.standby.nodeName} {.status.standby.epoch} {.status.standby.syncedTime}";
    let back = format!("{primary} 2 2");
    cluster.kubectl_until(&["get", &replica.path(), "-o", report], |report| report.starts_with(&back));
    assert_eq!(last_line(&cluster, "second"), 1_000_000, "only one node writes");
    replica.next_copy();
    cluster.kubectl(&["taint", "node", &primary, "node.kubernetes.io/out-of-service-"]);
    cluster.kubectl(&["delete", "pod", "second", "--now"]);
    cluster.kubectl(&["annotate", &replica.path(), "storage.corten.dev/promote=2"]);
    cluster.kubectl_until(&["get", &replica.path(), "-o", "jsonpath={.spec.epoch}"], |epoch| epoch == "3");
    run(&cluster, "third", SECOND);
    assert_eq!(cluster.kubectl(&["get", "pod", "third", "-o", "jsonpath={.spec.nodeName}"]), primary);
    assert_eq!(last_line(&cluster, "third"), 1_000_000);

    // Both copies go with the claim.
    cluster.kubectl(&["delete", "pod/third", "pvc/data", "--now"]);
    for node in [&primary, &standby] {
        let agent = Agent::of(&cluster, node);
        wait::until("the volume to be deleted", wait::BOUND, || match agent.volumes() {
            left if left.is_empty() => Ok(()),
            left => Err(left.join(", ")),
        });
    }
    cluster.kubectl_until(&["get", "volumereplicas", "-o", "name"], str::is_empty);
    let labels = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.labels}"]);
    assert!(!labels.contains("replica.storage.corten.dev"), "{labels}");

    // A class that cannot be served says so.
    let events = ["get", "events", "--field-selector", "involvedObject.name=bad", "-o", "jsonpath={.items[*].message}"];
    cluster.kubectl_until(&events, |events| events.contains(r#"replicas is "1" or "2", and not "3""#));
}

const WRITER: &str = "i=0; while true; do i=$((i+1)); echo $i >> /data/log; sync /data/log; sleep 0.2; done";
const SECOND: &str = "sleep 1000000";

const CLASSES: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: copied}
provisioner: storage.corten.dev
volumeBindingMode: WaitForFirstConsumer
parameters: {replicas: "2", replicaInterval: 5s}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: bad}
provisioner: storage.corten.dev
parameters: {replicas: "3"}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: copied, resources: {requests: {storage: 32Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bad}
spec: {accessModes: [ReadWriteOnce], storageClassName: bad, resources: {requests: {storage: 32Mi}}}
"#;

/// The VolumeReplica of the claim's volume.
struct Replica<'a> {
    cluster: &'a Cluster,
    name: String,
}

impl Replica<'_> {
    fn path(&self) -> String {
        format!("volumereplica/{}", self.name)
    }

    fn field(&self, path: &str) -> String {
        self.cluster.kubectl(&["get", &self.path(), "-o", &format!("jsonpath={{.{path}}}")])
    }

    /// Waits for an increment that begins after this moment.
    fn next_copy(&self) {
        let path = "jsonpath={.status.standby.syncedTime}";
        for _ in 0..2 {
            let before = self.field("status.standby.syncedTime");
            self.cluster.kubectl_until(&["get", &self.path(), "-o", path], |time| time > before.as_str());
        }
    }
}

/// Returns the last line of the log that a pod sees: a number.
fn last_line(cluster: &Cluster, pod: &str) -> u64 {
    cluster.kubectl(&["exec", pod, "--", "tail", "-n", "1", "/data/log"]).trim().parse().unwrap()
}

/// Runs a script in a pod with the claim, and waits until it runs.
fn run(cluster: &Cluster, name: &str, script: &str) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, '{script}']
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]
"#
    ));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "--timeout=120s", &format!("pod/{name}")]);
}

/// The agent of a node, which is stopped as if the node were cut off. Its pods go on.
struct Agent {
    pid: Pid,
    directory: PathBuf,
}

impl Agent {
    fn of(cluster: &Cluster, node: &str) -> Agent {
        let directory = cluster.data_dir().join("nodes").join(node);
        let is_agent = |pid: &i32| {
            let words = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split('\0');
            words.clone().nth(1) == Some("agent") && words.any(|word| word == directory.to_string_lossy())
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let pid = pids.find(is_agent).unwrap_or_else(|| panic!("node {node} has no agent"));
        Agent { pid: Pid::from_raw(pid), directory }
    }

    fn stop(&self) {
        kill(self.pid, Signal::SIGSTOP).unwrap();
    }

    fn resume(&self) {
        kill(self.pid, Signal::SIGCONT).unwrap();
    }

    /// Returns the files of volumes, as the node sees them.
    fn volumes(&self) -> Vec<String> {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let storage = root.join(self.directory.strip_prefix("/").unwrap()).join("storage");
        let files = ["files", "pool/files"].map(|name| std::fs::read_dir(storage.join(name)));
        let entries = files.into_iter().flatten().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A test that fails must not leave a stopped process behind.
        let _ = kill(self.pid, Signal::SIGCONT);
    }
}
