//! A node with its own settings: a configuration file, static pods, its measurements, and pods that exceed limits.

use testkit::cluster::{Cluster, IMAGE};
use testkit::{image, tools};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

const CONFIGURATION: &str = "
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: 17
kubeReserved: {cpu: 100m}
evictionHard: {memory.available: 50Mi}
podPidsLimit: 64
";

#[test]
fn a_node_follows_its_settings() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let path = |name: &str| cluster.scratch().join(name).to_string_lossy().into_owned();
    let file = path("kubelet.yaml");
    let manifests = path("manifests");
    std::fs::create_dir_all(&manifests).expect("a directory of manifests");
    std::fs::write(&file, CONFIGURATION.replace("maxPods", "maxpods")).expect("a file");
    let flags = ["--node-name", "n1", "--kubelet-config", &file, "--pod-manifest-path", &manifests];
    let refused = cluster.corten_command(&[&["up"], &flags[..]].concat()).output().expect("corten runs");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("unknown field \"maxpods\""), "{words}");

    std::fs::write(&file, CONFIGURATION).expect("a file");
    cluster.start(&flags);
    let archive = image::busybox_archive(cluster.scratch(), IMAGE);
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    let capacity = cluster.kubectl(&["get", "node", "n1", "-o", "jsonpath={.status.allocatable.pods}"]);
    assert_eq!(capacity, "17");
    let configuration = cluster.kubectl(&["get", "--raw", "/api/v1/nodes/n1/proxy/configz"]);
    assert!(configuration.contains("\"podPidsLimit\":64"), "{configuration}");

    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - {{name: web, image: {IMAGE}, imagePullPolicy: Never, command: [sleep, '3600']}}\n"
    );
    std::fs::write(format!("{manifests}/web.yaml"), manifest).expect("a manifest");
    cluster.kubectl_until(&["get", "pods"], |pods| pods.contains("web-n1") && pods.contains("Running"));

    // The limit of the pod stops a bomb of processes, and a bomb of bytes is evicted.
    let bomb = "for i in $(seq 100); do sleep 1000 & done";
    let fork = ["exec", "web-n1", "--", "sh", "-c", bomb];
    let failed = cluster.kubectl_command(&fork).output().expect("kubectl runs");
    let words = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(words.contains("can't fork"), "{words}");
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: greedy}}\nspec:\n  volumes: [{{name: v, emptyDir: {{sizeLimit: 1Mi}}}}]\n  containers:\n  - {{name: c, image: {IMAGE}, command: [sh, -c, 'dd if=/dev/zero of=/v/f bs=1M count=4; sleep 3600'], volumeMounts: [{{name: v, mountPath: /v}}]}}\n"
    ));
    cluster.kubectl_until(&["get", "pod", "greedy", "-o", "jsonpath={.status.reason} {.status.message}"], |text| {
        text.starts_with("Evicted Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\".")
    });

    cluster.kubectl_until(&["top", "node"], |table| table.contains("n1"));
    cluster.kubectl_until(&["top", "pod", "web-n1"], |table| table.contains("web-n1"));
    cluster.kubectl(&["delete", "pod", "web-n1", "--grace-period=0", "--force"]);
    cluster.kubectl_until(&["get", "pods"], |pods| pods.contains("web-n1") && pods.contains("Running"));
    std::fs::remove_file(format!("{manifests}/web.yaml")).expect("the manifest goes");
    cluster.kubectl_until(&["get", "pods"], |pods| !pods.contains("web-n1"));
}
