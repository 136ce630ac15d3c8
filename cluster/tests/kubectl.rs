//! kubectl beyond a first hour: the requests that it makes only in some cases must be answered too.

use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn kubectl_gets_its_answers() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    lists_are_applied(&cluster);
    older_schema_is_read(&cluster);
    absent_logs_are_explained(&cluster);
    claims_are_mounted(&cluster);
    claims_are_provisioned(&cluster);
    a_second_cluster_is_not_mixed_up(&cluster);
}

/// kubectl validates a `List` with OpenAPI v2, in protobuf.
fn lists_are_applied(cluster: &Cluster) {
    let item = |name: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{a: b}}}}");
    let list = format!("apiVersion: v1\nkind: List\nitems: [{}, {}]\n", item("first"), item("second"));
    let printed = cluster.apply(&list);
    assert!(printed.contains("configmap/first created") && printed.contains("configmap/second created"), "{printed}");
}

fn older_schema_is_read(cluster: &Cluster) {
    let explained = cluster.kubectl(&["explain", "pod.spec.nodeName", "--output=plaintext-openapiv2"]);
    assert!(explained.contains("nodeName <string>"), "{explained}");
}

fn absent_logs_are_explained(cluster: &Cluster) {
    cluster.kubectl(&["run", "alive", "--image", IMAGE, "--", "sleep", "3600"]);
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/alive"]);
    let printed = cluster.kubectl_fails(&["logs", "alive", "--previous"]);
    assert!(printed.contains("previous terminated container \"alive\" in pod \"alive\" not found"), "{printed}");

    let nowhere = r#"{"spec": {"nodeSelector": {"no": "where"}}}"#;
    cluster.kubectl(&["run", "pending", "--image", IMAGE, "--overrides", nowhere, "--", "true"]);
    assert_eq!(cluster.kubectl(&["logs", "pending"]), "", "a pod without a node has logged nothing");
}

fn claims_are_mounted(cluster: &Cluster) {
    let path = cluster.scratch().join("volume");
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: data}}
spec: {{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], hostPath: {{path: {}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec: {{accessModes: [ReadWriteOnce], storageClassName: "", resources: {{requests: {{storage: 1Mi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: writer}}
spec:
  restartPolicy: Never
  containers:
  - {{name: c, image: {IMAGE}, command: [sh, -c, 'echo kept > /data/file'], volumeMounts: [{{name: v, mountPath: /data}}]}}
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: data}}}}]
"#,
        path.display()
    ));
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer"]);
    assert_eq!(std::fs::read_to_string(path.join("file")).expect("the pod wrote it"), "kept\n");
}

/// A claim without a class gets a volume of the node's storage driver, which a pod of any user may write and which is
/// removed with it.
fn claims_are_provisioned(cluster: &Cluster) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: fresh}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: user}}
spec:
  restartPolicy: Never
  securityContext: {{runAsUser: 1000}}
  containers:
  - {{name: c, image: {IMAGE}, command: [sh, -c, 'echo kept > /data/file'], volumeMounts: [{{name: v, mountPath: /data}}]}}
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: fresh}}}}]
"#
    ));
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/user"]);
    let volume = cluster.kubectl(&["get", "pvc", "fresh", "-o", "jsonpath={.spec.volumeName}"]);
    let driver = cluster.kubectl(&["get", "pv", &volume, "-o", "jsonpath={.spec.csi.driver}"]);
    assert_eq!(driver, "storage.corten.dev");
    cluster.kubectl(&["delete", "pod/user", "pvc/fresh"]);
    cluster.kubectl_until(&["get", "pv", "-o", "name"], |volumes| !volumes.contains(&volume));
}

/// Commands with another data directory than the running cluster's must not touch it.
fn a_second_cluster_is_not_mixed_up(cluster: &Cluster) {
    let other = cluster.scratch().join("other");
    for command in ["up", "down", "status"] {
        let mut corten = cluster.machine.command(CORTEN.as_ref());
        let output = corten
            .args([command, "--data-dir"])
            .arg(&other)
            .env("HOME", cluster.scratch())
            .output()
            .expect("corten runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && printed.contains("has the data directory"), "{command}: {printed}");
    }
    assert!(cluster.corten(&["status"]).contains("Ready"));
}
