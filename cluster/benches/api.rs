//! The cost of the API server under load: `corten bench api` against `corten apiserver`, both in one machine made of
//! namespaces. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! Run by `cargo xtask bench`, as root, with the release binary. Rates need a quiet machine; CPU times do not.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use testkit::cluster::Cluster;
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// The API server, which ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended by itself, which the benchmark has noticed by then.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    if !tools::is_root() {
        eprintln!("skipped: a machine made of namespaces needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let pid_file = cluster.scratch().join("apiserver.pid");
    let data = cluster.data_dir();
    let pid_path = pid_file.display();
    let data_path = data.display();
    // The shell has its process id in the machine's namespace, and keeps it when it becomes the server.
    let script = format!("echo $$ > {pid_path}; exec {CORTEN} apiserver --log warn --data-dir {data_path}");
    let mut command = cluster.machine.command(&tools::busybox());
    let server = command.args(["sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let _server = Server(server.expect("the API server starts"));
    let kubeconfig = data.join("kubeconfig").join("admin.conf");
    wait_until_ready(&cluster, &kubeconfig);
    let pid = std::fs::read_to_string(&pid_file).expect("the shell wrote its number");
    let output = cluster
        .machine
        .command(Path::new(CORTEN))
        .args(["bench", "api", "--output", "tsv", "--server-pid", pid.trim(), "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .expect("corten bench runs");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn wait_until_ready(cluster: &Cluster, kubeconfig: &Path) {
    wait::until("the API server", Duration::from_secs(30), || {
        let path = kubeconfig.to_string_lossy();
        let output = cluster.kubectl_command(&["--kubeconfig", &path, "get", "--raw", "/readyz"]).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    });
}
