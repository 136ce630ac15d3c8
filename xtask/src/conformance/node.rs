//! A node of a run's cluster: a machine made of namespaces with its own /var/lib, and `corten` on it.
//!
//! Every node has its kubelet's directory at the same path, where plugins expect it: drivers of CSI and DRA that specs
//! deploy could not work on nodes that share one file tree.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use testkit_machine::machine::{ADDRESS, Machine};

/// The kubelet's directory on every node.
pub const KUBELET_ROOT: &str = "/var/lib/kubelet";

pub struct Node {
    pub machine: Machine,
    name: String,
    corten: PathBuf,
    runc: PathBuf,
    /// The node's own directory.
    dir: PathBuf,
    agent: Option<Child>,
}

impl Node {
    /// Boots the machine; nothing runs on it yet.
    pub fn boot(number: usize, corten: &Path, runc: &Path, cluster_dir: &Path) -> Result<Node> {
        let name = format!("node-{number}");
        let dir = cluster_dir.join(&name);
        let kubelet = dir.join("kubelet");
        std::fs::create_dir_all(&kubelet)?;
        let node = Node { machine: Machine::boot(), name, corten: corten.into(), runc: runc.into(), dir, agent: None };
        // Pods on the node's network bear its name.
        output_of(node.machine.command(Path::new("hostname")).arg(&node.name))?;
        // As under systemd: mounts of a pod with Bidirectional propagation reach the node and its other pods.
        node.mount(&["--make-rshared", "/"])?;
        node.mount(&["-t", "tmpfs", "tmpfs", "/var/lib"])?;
        output_of(node.machine.command(Path::new("mkdir")).arg(KUBELET_ROOT))?;
        node.mount(&["--bind", &kubelet.to_string_lossy(), KUBELET_ROOT])?;
        Ok(node)
    }

    /// Gives the machine an address of IPv6, and a default route that leads nowhere.
    pub fn add_ipv6(&self, number: usize) {
        self.machine.in_network(|| {
            // Addresses are usable at once: there can be no duplicates.
            std::fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0").expect("a kernel with IPv6");
        });
        self.machine.ip(&format!("addr add fd88::{:x}/64 dev eth0", number + 1));
        self.machine.ip("-6 route add default via fd88::ffff");
    }

    fn mount(&self, arguments: &[&str]) -> Result<()> {
        output_of(self.machine.command(Path::new("mount")).args(arguments)).map(drop)
    }

    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Returns the path of the node's registry configuration.
    pub fn registries(&self) -> PathBuf {
        self.dir.join("registries.yaml")
    }

    /// The flags of every node: its name, a zone of its own, where its kubelet keeps what is its, registries, and the handler
    /// of RuntimeClasses that specs name.
    pub fn flags(&self) -> [String; 10] {
        let zone = format!("topology.kubernetes.io/zone=zone-of-{}", self.name);
        let registries = self.registries().display().to_string();
        let handlers = format!("test-handler={}", self.runc.display());
        let flags = [
            "--node-name",
            &self.name,
            "--node-labels",
            &zone,
            "--root-dir",
            KUBELET_ROOT,
            "--registry-config",
            &registries,
            "--runtime-handlers",
            &handlers,
        ];
        flags.map(str::to_owned)
    }

    /// Copies the log of the server or of the agent.
    pub fn keep_log(&self, dir: &Path) -> Result<()> {
        let log = if self.agent.is_some() { self.dir.join("agent.log") } else { self.data().join("corten.log") };
        std::fs::copy(&log, dir.join(format!("{}.log", self.name)))
            .with_context(|| format!("cannot keep {}", log.display()))?;
        Ok(())
    }

    /// Returns a `corten` command for this node.
    pub fn corten(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(&self.corten);
        command.args(arguments).arg("--data-dir").arg(self.data());
        command.env("HOME", &self.dir).env_remove("KUBECONFIG").stdin(Stdio::null());
        command
    }

    /// Starts an agent with the images of another node. It lives until the node is dropped.
    pub fn start_agent(&mut self, arguments: &[&str], images: &Path) -> Result<()> {
        let log = File::create(self.dir.join("agent.log"))?;
        let mut command = self.corten(arguments);
        command.args(self.flags()).arg("--image-dir").arg(images);
        command.stdout(log.try_clone()?).stderr(log);
        self.agent = Some(command.spawn().context("corten agent cannot be run")?);
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Processes end with the machine; cgroups are the host's, and the purge removes them.
        if let Err(error) = output_of(&mut self.corten(&["down", "--purge"])) {
            eprintln!("{} cannot be taken down: {error:#}", self.name);
        }
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Joins a machine's link with another's, and gives it the address of its number.
pub fn connect(machine: &Machine, other: &Machine, number: usize) {
    machine.cable(other);
    machine.ip(&format!("addr del {ADDRESS}/24 dev eth0"));
    machine.ip(&format!("addr add 10.88.0.{}/24 dev eth0", number + 1));
    machine.ip("route add default via 10.88.0.1");
}

/// Runs a command and returns what it prints.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
