//! The clusters that the tests share, each started for its first test: a virtual machine is slow.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use testkit::cluster::{Cluster, IMAGE};
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The names of the nodes.
pub const FIRST: &str = "first";
pub const SECOND: &str = "first-2";
/// The most processes of a pod on the cluster of one node.
pub const POD_PIDS_LIMIT: u32 = 64;

/// The lines of a shell script that fetch pages: `f ADDRESS PORT` prints the last line of a page, or an empty line.
const FETCH: &str = r#"f() { printf "GET / HTTP/1.0\r\n\r\n" | nc -w 20 $1 $2 2>/dev/null | tail -n 1; echo; }"#;

#[derive(Default)]
pub struct Clusters {
    two_nodes: OnceCell<Cluster>,
    one_node: OnceCell<Cluster>,
}

impl Clusters {
    /// Returns a cluster of two nodes and both IP families, with WireGuard and IPVS as far as the kernel has them.
    pub fn two_nodes(&self) -> &Cluster {
        self.two_nodes.get_or_init(|| {
            let mut flags = vec!["--nodes", "2", "--node-name", FIRST];
            flags.extend(["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56"]);
            flags.extend(["--service-cidr", "10.96.0.0/16,fd00:10:96::/112"]);
            if crate::wireguard::missing().is_none() {
                flags.extend(["--network-backend", "wireguard"]);
            }
            if crate::ipvs::missing().is_none() {
                flags.extend(["--proxy-mode", "ipvs"]);
            }
            let cluster = Cluster::up(CORTEN, &flags);
            create(&cluster, &[web("one", FIRST), web("two", SECOND)].concat());
            cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/one", "pod/two"]);
            cluster
        })
    }

    /// Returns a cluster of one node with the default modes.
    pub fn one_node(&self) -> &Cluster {
        self.one_node.get_or_init(|| {
            let cluster = Cluster::machine(CORTEN);
            let kubelet = cluster.scratch().join("kubelet.yaml");
            let text = format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\npodPidsLimit: {POD_PIDS_LIMIT}\n"
            );
            std::fs::write(&kubelet, text).expect("the test's directory is writable");
            cluster.start(&["--node-name", FIRST, "--kubelet-config", &kubelet.to_string_lossy()]);
            cluster.import_image();
            cluster
        })
    }

    /// Prints the last lines of the clusters' logs.
    pub fn print_logs(&self) {
        for cluster in [&self.two_nodes, &self.one_node].into_iter().filter_map(OnceCell::get) {
            cluster.print_log();
        }
    }
}

/// Creates the objects of a manifest. They are valid, and the schemas that kubectl would check them by take long to make on
/// a slow machine.
pub fn create(cluster: &Cluster, manifest: &str) {
    let path = cluster.scratch().join("manifest.yaml");
    std::fs::write(&path, manifest).expect("the test's directory is writable");
    cluster.kubectl(&["create", "--validate=false", "-f", &path.to_string_lossy()]);
}

/// Returns the manifest of a web server that answers with its pod's name, and of SCTP on ports 5000 and 5001.
pub fn web(name: &str, node: &str) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web, pod: {name}}}}}
spec:
  terminationGracePeriodSeconds: 1
  tolerations: [{{operator: Exists}}]
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  containers:
  - name: web
    image: {IMAGE}
    command: [sh, -c, 'hostname > /www/index.html; exec httpd -f -p 80 -h /www']
    readinessProbe: {{httpGet: {{port: 80}}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 60}}
{sctp}"#,
        sctp = sctp_container()
    )
}

/// Returns the lines of a container that serves SCTP by this program, and of the volumes that it is in. On a
/// kernel without SCTP the container only waits.
fn sctp_container() -> String {
    let program = program();
    let mut files = tools::libraries(&program).expect("the loader lists libraries");
    files.push(program.clone());
    let mut mounts = String::new();
    let mut volumes = String::new();
    for (number, file) in files.iter().enumerate() {
        let path = file.display();
        mounts += &format!("    - {{name: file-{number}, mountPath: {path}, readOnly: true}}\n");
        volumes += &format!("  - {{name: file-{number}, hostPath: {{path: {path}, type: File}}}}\n");
    }
    let command = match crate::sctp::missing() {
        None => format!("{}, sctp-serve, '5000', '5001'", program.display()),
        Some(_) => "sleep, '86400'".to_owned(),
    };
    format!(
        "  - name: sctp\n    image: {IMAGE}\n    command: [{command}]\n    volumeMounts:\n{mounts}  volumes:\n{volumes}"
    )
}

/// Returns the path of this program, which pods run too.
pub fn program() -> PathBuf {
    std::env::current_exe().expect("procfs names this program")
}

/// Runs a script in the container of a pod that has this program.
pub fn run_in(cluster: &Cluster, pod: &str, script: &str) -> String {
    cluster.kubectl(&exec(pod, script))
}

pub fn exec<'a>(pod: &'a str, script: &'a str) -> [&'a str; 8] {
    ["exec", pod, "-c", "sctp", "--", "sh", "-c", script]
}

/// Fetches six pages from every address, on port 80, until all of them are answered; returns the names of the pods that
/// answered, by address.
pub fn answers(cluster: &Cluster, pod: &str, addresses: &[&str]) -> Vec<BTreeSet<String>> {
    let each: Vec<String> =
        addresses.iter().map(|address| format!("for i in 1 2 3 4 5 6; do f {address} 80; done")).collect();
    let script = format!("{FETCH}\n{}", each.join("\n"));
    let lines =
        |text: &str| -> Vec<String> { text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect() };
    let text = cluster.kubectl_until(&exec(pod, &script), |text| lines(text).len() == 6 * addresses.len());
    lines(&text).chunks(6).map(|names| names.iter().cloned().collect()).collect()
}

/// Waits until a script in a pod prints exactly these words.
pub fn until_printed(cluster: &Cluster, pod: &str, script: &str, expected: &str) {
    let script = format!("{FETCH}\n{script}");
    cluster.kubectl_until(&exec(pod, &script), |text| text.split_whitespace().eq(expected.split_whitespace()));
}

/// Reads a file of the first node.
pub fn read(cluster: &Cluster, path: impl AsRef<Path>) -> String {
    let output = cluster.machine.command(&tools::busybox()).arg("cat").arg(path.as_ref()).output().expect("cat runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
