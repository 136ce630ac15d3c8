//! Volume backups on a whole cluster, with the real kubectl: a claim is backed up to a directory, deleted, and restored
//! as another claim with the same content.

#![allow(clippy::unwrap_used)]

use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const READY: &str = "jsonpath={.status.conditions[?(@.type==\"Ready\")].reason}";

#[test]
fn a_deleted_claim_is_restored_from_its_backup() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    let directory = cluster.scratch().join("backups");
    std::fs::create_dir_all(&directory).unwrap();
    let established = "jsonpath={.status.conditions[?(@.type==\"Established\")].status}";
    let kind = "crd/volumebackups.storage.corten.dev";
    cluster.kubectl_until(&["get", kind, "-o", established], |status| status == "True");
    cluster.apply(&repository(&directory.display().to_string()));
    let ready = ["wait", "--for=condition=Ready", "volumebackuprepository/main"];
    cluster.kubectl_wait(&ready);

    let script = "dd if=/dev/urandom of=/data/random bs=1M count=16 2>/dev/null && mkdir /data/sub && echo kept > /data/sub/file";
    run(&cluster, "writer", "data", &format!("{script} && {CHECKSUM}"));
    let written = cluster.kubectl(&["logs", "writer"]);
    back_up(&cluster, "one", "data");
    // A volume that hardly changed is hardly sent.
    let changed = format!("echo more > /data/more && {CHECKSUM}");
    run(&cluster, "changer", "data", &changed);
    let changed = cluster.kubectl(&["logs", "changer"]);
    assert_ne!(written, changed);
    back_up(&cluster, "two", "data");
    let number = |name: &str, field: &str| -> u64 {
        let path = format!("jsonpath={{.status.{field}}}");
        cluster.kubectl(&["get", "volumebackup", name, "-o", &path]).parse().unwrap()
    };
    assert!(number("one", "sentBytes") >= 16 << 20);
    assert!(number("two", "sentBytes") < 4 << 20, "{} bytes were sent", number("two", "sentBytes"));

    cluster.kubectl(&["delete", "pod/writer", "pod/changer", "pvc/data", "--now"]);
    cluster.apply(&restored("old", "one"));
    cluster.apply(&restored("new", "two"));
    run(&cluster, "reader-old", "old", CHECKSUM);
    run(&cluster, "reader-new", "new", CHECKSUM);
    assert_eq!(cluster.kubectl(&["logs", "reader-old"]), written);
    assert_eq!(cluster.kubectl(&["logs", "reader-new"]), changed);

    // The claim is gone, and a backup of it says so.
    cluster.apply(&backup("gone", "data"));
    cluster.kubectl_until(&["get", "volumebackup", "gone", "-o", READY], |reason| reason == "ClaimNotFound");
    // A deleted backup leaves the repository, and its chunks go with the next prune.
    let chunks = || files(&directory.join("chunks"));
    let before = chunks();
    cluster.kubectl(&["delete", "volumebackup", "one", "gone"]);
    assert_eq!(files(&directory.join("backups")), 1);
    let annotate = ["annotate", "volumebackuprepository", "main", "storage.corten.dev/prune=1"];
    cluster.kubectl(&[&annotate[..], &["storage.corten.dev/verify=1"]].concat());
    let request = ["get", "volumebackuprepository", "main", "-o", "jsonpath={.status.lastPruneRequest}"];
    cluster.kubectl_until(&request, |request| request == "1");
    assert!(chunks() < before, "{} chunks of {before} are left", chunks());
    cluster.kubectl_wait(&["wait", "--for=condition=Intact", "volumebackuprepository/main"]);
    cluster.apply(&restored("again", "two"));
    run(&cluster, "reader-again", "again", CHECKSUM);
    assert_eq!(cluster.kubectl(&["logs", "reader-again"]), changed);
}

const CHECKSUM: &str = "cd /data && find . -type f | sort | xargs md5sum";

fn files(directory: &std::path::Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let below = entries.map(|entry| entry.unwrap().path());
    below.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

fn repository(directory: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Secret
metadata: {{name: main, namespace: corten-backup}}
stringData: {{passphrase: correct horse battery}}
---
apiVersion: storage.corten.dev/v1alpha1
kind: VolumeBackupRepository
metadata: {{name: main}}
spec: {{secretName: main, directory: {{path: {directory}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 64Mi}}}}}}
"#
    )
}

fn backup(name: &str, claim: &str) -> String {
    format!(
        r#"
apiVersion: storage.corten.dev/v1alpha1
kind: VolumeBackup
metadata: {{name: {name}}}
spec: {{repositoryName: main, source: {{persistentVolumeClaimName: {claim}}}}}
"#
    )
}

fn restored(name: &str, backup: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 64Mi}}}}
  dataSourceRef: {{apiGroup: storage.corten.dev, kind: VolumeBackup, name: {backup}}}
"#
    )
}

/// Backs a claim up, and waits until it is done.
fn back_up(cluster: &Cluster, name: &str, claim: &str) {
    cluster.apply(&backup(name, claim));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", &format!("volumebackup/{name}")]);
}

/// Runs a script in a pod with a claim, and waits until it has succeeded.
fn run(cluster: &Cluster, name: &str, claim: &str, script: &str) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, '{script}']
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]
"#
    ));
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", &format!("pod/{name}")]);
}
