//! The cluster of a run: `corten up` on a machine made of namespaces, further machines that joined it by a token, and
//! the suite's images.
//!
//! It must leave nothing behind: processes, links and mounts end with the machines, and the purge removes the cgroups,
//! which are the host's. That also holds for a run that fails or is interrupted.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use testkit_machine::machine::{ADDRESS, Machine};

use super::node::{self, Node, output_of};
use super::registry::{self, Registry};

/// The time limit for nodes to become Ready.
const READY_BOUND: Duration = Duration::from_secs(300);

/// The programs that the cluster is made with.
pub struct Programs<'a> {
    pub corten: &'a Path,
    pub kubectl: &'a Path,
    pub runc: &'a Path,
}

pub struct Cluster {
    /// The nodes. They come before the directory, which their purge still reads.
    nodes: Vec<Node>,
    /// Where the suite runs: on the nodes' link, and none of them, as a person who uses the cluster is.
    outside: Machine,
    kubectl: PathBuf,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Boots the machines, starts the cluster with flags of `corten up`, and waits until all nodes are Ready.
    pub fn up(programs: &Programs<'_>, registry: Registry, nodes: usize, flags: &[String]) -> Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("corten-conformance").tempdir()?;
        // Specs find a node's kubelet by the name of its process.
        let corten = dir.path().join("kubelet");
        std::fs::copy(programs.corten, &corten)
            .with_context(|| format!("cannot copy {}", programs.corten.display()))?;
        let outside = Machine::boot();
        let mut cluster = Cluster { nodes: Vec::new(), outside, kubectl: programs.kubectl.into(), dir };
        for number in 1..=nodes {
            cluster.nodes.push(Node::boot(number, &corten, programs.runc, cluster.dir.path())?);
        }
        cluster.connect(flags);
        cluster.serve(registry)?;
        cluster.start(flags)?;
        for number in 1..nodes {
            cluster.join(number)?;
        }
        cluster.wait_for_nodes()?;
        cluster.forget_roles()?;
        Ok(cluster)
    }

    /// Connects the machines by one link. IPv6 ranges among the flags need machines that have IPv6.
    fn connect(&self, flags: &[String]) {
        for (number, pair) in self.nodes.windows(2).enumerate() {
            node::connect(&pair[1].machine, &pair[0].machine, number + 2);
        }
        if let Some(last) = self.nodes.last() {
            node::connect(&self.outside, &last.machine, self.nodes.len() + 1);
        }
        if flags.iter().any(|flag| flag.contains("::")) {
            self.nodes.iter().enumerate().for_each(|(number, node)| node.add_ipv6(number + 1));
        }
    }

    /// Serves the images on the first machine, and configures every node to pull from it.
    fn serve(&self, registry: Registry) -> Result<()> {
        for node in &self.nodes {
            std::fs::write(node.registries(), registry.settings(ADDRESS))?;
        }
        let listener = self.nodes[0].machine.in_network(|| TcpListener::bind((ADDRESS, registry::PORT)));
        registry.serve(listener.context("the registry's port is taken")?);
        Ok(())
    }

    fn start(&self, flags: &[String]) -> Result<()> {
        let [first, ..] = self.nodes.as_slice() else { bail!("a cluster has a node") };
        let mut up = first.corten(&["up", "--timeout", "300"]);
        output_of(up.arg("--kubeconfig").arg(self.kubeconfig()).args(first.flags()).args(flags))?;
        let kubeconfig = std::fs::read_to_string(self.kubeconfig())?;
        std::fs::write(self.kubeconfig(), kubeconfig.replace("https://127.0.0.1:", &format!("https://{ADDRESS}:")))?;
        Ok(())
    }

    /// Joins a machine by a token. It has the images of the first.
    fn join(&mut self, number: usize) -> Result<()> {
        let command = output_of(&mut self.nodes[0].corten(&["token", "create", "--print-join-command"]))?;
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        let images = self.nodes[0].data().join("images");
        self.nodes[number].start_agent(&words, &images)
    }

    /// Applies the manifests of a folder: add-ons that specs need.
    pub fn apply(&self, manifests: &Path) -> Result<()> {
        let mut apply = self.command(&self.kubectl)?;
        output_of(apply.args(["apply", "--recursive", "--filename"]).arg(manifests))?;
        Ok(())
    }

    /// Imports archives into the image store, which all nodes share.
    pub fn import(&self, archives: &[PathBuf]) -> Result<()> {
        for archive in archives {
            output_of(self.nodes[0].corten(&["image", "import"]).arg(archive))?;
        }
        Ok(())
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// A command outside of the nodes, with kubectl on PATH under its own name.
    pub fn command(&self, program: &Path) -> Result<Command> {
        let bin = self.dir.path().join("bin");
        if !bin.exists() {
            std::fs::create_dir(&bin)?;
            std::os::unix::fs::symlink(&self.kubectl, bin.join("kubectl"))?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        // The suite's kubectl must not find discovery that ours kept: short names of new resources are not in it.
        let cache = program.file_name().map(|name| self.dir.path().join("caches").join(name));
        let mut command = self.outside.command(program);
        command.envs(cache.map(|cache| ("KUBECACHEDIR", cache)));
        command.env("PATH", format!("{}:{path}", bin.display())).env("HOME", self.dir.path());
        command.env("KUBECONFIG", self.kubeconfig()).current_dir(self.dir.path()).stdin(Stdio::null());
        Ok(command)
    }

    /// Copies the nodes' logs.
    pub fn keep_logs(&self, dir: &Path) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.keep_log(dir))
    }

    /// Makes the first node like the others: a control plane's zone has no part in topology aware routing.
    fn forget_roles(&self) -> Result<()> {
        let mut label = self.command(&self.kubectl)?;
        output_of(label.args(["label", "nodes", "--all", "node-role.kubernetes.io/control-plane-"])).map(drop)
    }

    fn wait_for_nodes(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut get = self.command(&self.kubectl)?;
            let text = output_of(get.args(["get", "nodes", "--no-headers"])).unwrap_or_else(|error| error.to_string());
            let ready = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("Ready")).count();
            if ready == self.nodes.len() {
                return Ok(());
            }
            if start.elapsed() > READY_BOUND {
                bail!("{} nodes are not Ready after {READY_BOUND:?}: {text}", self.nodes.len());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
