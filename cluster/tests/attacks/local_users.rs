//! Local users: an unprivileged account on the node, with the files, processes, sockets and ports that it can see.
//!
//! It may notice that a cluster runs, and read nothing of its content.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use testkit::cluster::Cluster;
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The value of the Secret that the attacker searches for.
const SECRET: &str = "hunter2-correct-horse-battery-staple";
/// Paths that would reveal secrets if they were served without a credential.
const PATHS: [&str; 8] =
    ["/", "/metrics", "/pods", "/configz", "/debug/pprof/", "/logs/", "/api/v1/secrets", "/containerLogs/default/p/c"];
/// The number of connections that the attacker holds: more than the kubelet's API serves to unauthenticated clients at
/// once.
const FLOOD: usize = 300;

const POD: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: hunter2-correct-horse-battery-staple}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  securityContext: {runAsUser: 1000, fsGroup: 2000}
  containers:
  - name: c
    image: test.local/busybox:1
    command: [sleep, "3600"]
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: s, key: password}}}]
    volumeMounts: [{name: v, mountPath: /secret}, {name: d, mountPath: /data}]
  volumes: [{name: v, secret: {secretName: s}}, {name: d, emptyDir: {}}]
"#;

/// Returns a command on the machine that runs as the user `nobody`.
fn as_nobody(cluster: &Cluster, program: &Path) -> Command {
    let mut command = cluster.machine.command(Path::new("setpriv"));
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]).arg(program);
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn as_root(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = cluster.machine.command(&tools::busybox()).args(arguments).output();
    stdout(&output.expect("busybox runs"))
}

#[test]
fn a_local_user_reads_nothing_of_a_cluster() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--nodes", "2"]);
    // Every user can reach the directory that contains the data directory.
    std::fs::set_permissions(cluster.scratch(), PermissionsExt::from_mode(0o755)).expect("the test's own directory");
    audit(&cluster);
    cluster.apply(POD);
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/p"]);
    let seen = ["exec", "p", "--", "sh", "-c", "cat /secret/password; echo; touch /data/x; id -u"];
    assert_eq!(cluster.kubectl(&seen), format!("{SECRET}\n1000\n"), "a container that is not root's works");

    reads_no_file(&cluster);
    reads_no_process(&cluster);
    reads_no_port(&cluster);
    runs_no_command(&cluster);
    holds_no_port(&cluster);

    // The next start restricts directories that an earlier version left open.
    let data = cluster.data_dir();
    cluster.kill_hard();
    let run = ["/run/corten", "/run/corten/nodes"];
    as_root(&cluster, &[&["chmod", "0755"], &run[..]].concat());
    for path in [data.clone(), data.join("kubelet"), data.join("store"), data.join("nodes")] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("the directory is there");
    }
    cluster.start(&[]);
    assert_eq!(mode(&data), 0o700);
    assert_eq!(as_root(&cluster, &["stat", "-c", "%a", "/run/corten"]), "700\n");
    reads_no_file(&cluster);
}

/// Checks that a new cluster passes the benchmark, and that an open file fails it.
fn audit(cluster: &Cluster) {
    let report = cluster.corten(&["audit"]);
    assert!(report.contains(" 0 failed, "), "{report}");
    let store = cluster.data_dir().join("store");
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o755)).expect("the store is there");
    let output = cluster.corten_command(&["audit", "-o", "json"]).output().expect("corten runs");
    std::fs::set_permissions(&store, PermissionsExt::from_mode(0o700)).expect("the store is there");
    let report = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.contains("\"fail\": 1,") && report.contains("has mode 755"), "{report}");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it is there").mode() & 0o7777
}

/// Checks that nothing below the data and run directories can even be named.
fn reads_no_file(cluster: &Cluster) {
    let data = cluster.data_dir().to_string_lossy().into_owned();
    let everything = as_root(cluster, &["find", &data, "/run/corten", "-mindepth", "1"]);
    let everything: Vec<&str> = everything.lines().collect();
    for expected in ["cri.sock", "admin.conf", "password", "corten.log", ".sock", "spec.json", "secrets.key"] {
        assert!(everything.iter().any(|path| path.contains(expected)), "{expected} is among the files");
    }
    let script = r#"while read -r path; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done"#;
    let mut nobody = as_nobody(cluster, &tools::busybox());
    let mut child = nobody.args(["sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
    let mut input = child.stdin.take().expect("a pipe");
    let list = everything.join("\n") + "\n";
    let writer = std::thread::spawn(move || input.write_all(list.as_bytes()));
    let output = child.wait_with_output().expect("the script ends");
    writer.join().expect("the thread ends").expect("the script reads");
    assert_eq!(stdout(&output), "", "a local user reaches files");
    let kubeconfig = cluster.scratch().join(".kube/config");
    assert_eq!(mode(&kubeconfig), 0o600);
}

/// Checks that environments are closed, and command lines reveal nothing. There is no socket without a file.
fn reads_no_process(cluster: &Cluster) {
    let server = cluster.server_pid();
    let script = "for pid in $(ls /proc | grep '^[0-9]'); do cat /proc/$pid/cmdline /proc/$pid/environ; echo; done";
    let output = as_nobody(cluster, &tools::busybox()).args(["sh", "-c", script]).output().expect("sh runs");
    let printed = stdout(&output);
    assert!(printed.contains("corten"), "processes are seen: {printed}");
    assert!(!printed.contains(SECRET), "{printed}");
    let environment = format!("/proc/{server}/environ");
    let output = as_nobody(cluster, &tools::busybox()).args(["cat", &environment]).output().expect("cat runs");
    assert!(!output.status.success(), "the server's environment is readable");
    let sockets = as_root(cluster, &["cat", "/proc/net/unix"]);
    let hidden: Vec<&str> = sockets.lines().filter(|line| line.contains(" @")).collect();
    assert_eq!(hidden, Vec::<&str>::new(), "abstract sockets have no mode");
}

/// Returns the listening addresses of the machine, as any user reads them.
fn listening(cluster: &Cluster) -> Vec<SocketAddr> {
    let table = as_root(cluster, &["cat", "/proc/net/tcp"]);
    let listener = |line: &str| {
        let mut words = line.split_whitespace();
        let (address, port) = words.nth(1)?.split_once(':')?;
        (words.nth(1)? == "0A").then_some(())?;
        let address = u32::from_str_radix(address, 16).ok()?.to_ne_bytes();
        let address = if address == [0; 4] { [127, 0, 0, 1] } else { address };
        Some(SocketAddr::from((address, u16::from_str_radix(port, 16).ok()?)))
    };
    table.lines().filter_map(listener).collect()
}

fn ask_plainly(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Checks that only health and the metrics of DNS are served without a credential.
fn reads_no_port(cluster: &Cluster) {
    let addresses = listening(cluster);
    assert!(addresses.iter().any(|address| address.port() == 10250), "{addresses:?}");
    // Only DNS does not speak HTTP, and would wait for the rest of a query.
    for address in addresses.into_iter().filter(|address| address.port() != 53) {
        for path in PATHS {
            let answer = cluster.machine.in_network(|| ask_plainly(address, path)).unwrap_or_default();
            let is_public = address.port() == 9153 && path == "/metrics";
            let is_answered = answer.starts_with("HTTP/1.1 200");
            assert!(is_public || !is_answered, "{address}{path}: {answer}");
        }
    }
    for port in [6443, 10250, 10257, 10259] {
        for path in ["/metrics", "/pods", "/configz", "/api/v1/secrets"] {
            let server = format!("https://127.0.0.1:{port}");
            let arguments = ["--server", &server, "--insecure-skip-tls-verify", "get", "--raw", path];
            let output = as_nobody(cluster, &tools::kubectl()).args(arguments).output().expect("kubectl runs");
            assert!(!output.status.success(), "{server}{path}: {}", stdout(&output));
        }
    }
}

/// Checks that commands fail with one sentence that root is needed.
fn runs_no_command(cluster: &Cluster) {
    let data = cluster.data_dir().to_string_lossy().into_owned();
    for words in ["up", "down", "status", "logs", "audit", "token list", "image ls"] {
        let mut command = as_nobody(cluster, Path::new(CORTEN));
        let output = command.args(words.split(' ')).args(["--data-dir", &data]).output().expect("corten runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && printed.contains("root"), "corten {words}: {printed}");
        assert_eq!(printed.lines().count(), 1, "corten {words}: {printed}");
    }
}

/// Checks that connections that are opened and held do not keep others from the kubelet's API.
fn holds_no_port(cluster: &Cluster) {
    let address = SocketAddr::from(([127, 0, 0, 1], 10250));
    let held: Vec<TcpStream> = cluster.machine.in_network(|| {
        let connect = |_| TcpStream::connect(address).expect("the kubelet listens");
        (0..FLOOD).map(connect).collect()
    });
    assert_eq!(cluster.kubectl(&["exec", "p", "--", "echo", "served"]), "served\n");
    let mut oldest = &held[0];
    oldest.set_nonblocking(true).expect("a socket");
    wait::until("the end of the oldest connection", wait::BOUND, || match oldest.read(&mut [0]) {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
