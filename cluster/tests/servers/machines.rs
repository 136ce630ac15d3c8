//! Servers on machines made of namespaces: how they join, what they show, and signals to their etcd.

use std::path::{Path, PathBuf};

use corten_members::Credentials;
use testkit::cluster::Cluster;
use testkit::{tools, wait};

pub const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// Returns the etcd to test with; none where there is none, or not as root.
pub fn etcd() -> Option<PathBuf> {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return None;
    }
    let named = std::env::var_os("ETCD_BINARY").map(PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(corten_members::Binary::find(named.as_deref(), std::env::var_os("PATH").as_deref()));
    match found {
        Ok(binary) => Some(binary.path),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Returns the words of a printed command after the program.
pub fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().skip(1).collect()
}

/// Runs `corten` where it must fail, and returns its sentence.
pub fn refusal(on: &Cluster, arguments: &[&str]) -> String {
    let output = on.corten_command(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} did not fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a machine another server by one command; `own` are further flags of the machine.
pub fn join(on: &Cluster, from: &Cluster, name: &str, etcd: &str, own: &[&str]) {
    let command = from.corten(&["token", "create", "--server", "--print-join-command"]);
    let printed = words(&command);
    assert_eq!(printed[0], "server", "{command}");
    let flags = [&printed[1..], &["--node-name", name, "--etcd-binary", etcd], own].concat();
    on.start(&flags);
}

/// Returns the process id of a machine's etcd, as the machine sees it.
pub fn etcd_pid(on: &Cluster) -> String {
    let processes = on.machine.processes();
    let etcd = processes.iter().find(|line| line.contains("--listen-peer-urls")).expect("an etcd runs");
    etcd.split_whitespace().next().unwrap().to_owned()
}

/// Sends a signal to the etcd of a machine.
pub fn signal_etcd(on: &Cluster, signal: &str) {
    let pid = etcd_pid(on);
    let sent = on.machine.command(&tools::busybox()).args(["kill", signal, &pid]).status();
    assert!(sent.unwrap().success(), "kill {signal} {pid}");
}

/// Waits until a file of servers has these.
pub fn known_servers(file: &Path, expected: &[impl AsRef<str>]) {
    let expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
    wait::until(&format!("{expected:?} in {}", file.display()), wait::BOUND, || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let known: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        // The last release wrote the list alone.
        let servers = if known.is_array() { &known } else { &known["servers"] };
        if *servers == serde_json::json!(expected) { Ok(()) } else { Err(text) }
    });
}

/// Waits until the status of a server shows these members as healthy.
pub fn members(on: &Cluster, expected: &[&str]) {
    wait::until(&format!("the members {expected:?}"), wait::BOUND, || {
        let output = on.corten_command(&["status"]).output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let table = text.lines().skip_while(|line| !line.starts_with("MEMBER ")).skip(1);
        let rows: Vec<&str> = table.take_while(|line| !line.is_empty()).collect();
        let is_member = |row: &&&str| row.ends_with("healthy") && !row.contains(" learner ");
        let names: Vec<&str> = rows.iter().filter(is_member).filter_map(|row| row.split_whitespace().next()).collect();
        if names == expected && rows.len() == expected.len() { Ok(()) } else { Err(text) }
    });
}

/// Returns the credentials of a machine for the members.
pub fn credentials(on: &Cluster) -> Credentials {
    let folder = on.machine.path(on.data_dir().join("etcd/pki").to_str().unwrap());
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    Credentials { authority: read("ca.crt"), certificate: read("client.crt"), key: read("client.key") }
}

/// Two machines that are the servers of one cluster.
pub struct TwoServers {
    pub one: Cluster,
    pub two: Cluster,
}

impl TwoServers {
    pub fn up(etcd: &str) -> TwoServers {
        let servers = TwoServers::machines();
        servers.start(etcd);
        servers
    }

    /// Makes the machines, on which nothing runs.
    pub fn machines() -> TwoServers {
        let one = Cluster::machine(CORTEN);
        let two = Cluster::machine(CORTEN);
        one.machine.connect(&two.machine, "10.88.0.3");
        TwoServers { one, two }
    }

    pub fn start(&self, etcd: &str) {
        self.one.start(&["--cluster-init", "--node-name", "one", "--etcd-binary", etcd]);
        join(&self.two, &self.one, "two", etcd, &[]);
    }
}
