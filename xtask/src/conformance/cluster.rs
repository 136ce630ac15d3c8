//! The cluster that a run proves: `corten up` on a machine made of namespaces, with the images of the suite imported.
//!
//! It must leave nothing behind: processes, links and mounts end with the machine, and the purge takes down the cgroups,
//! which are the host's. That holds for a run that fails or is interrupted too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit_machine::machine::Machine;

/// How long nodes may take to be Ready.
const READY_BOUND: Duration = Duration::from_secs(300);

pub struct Cluster {
    machine: Machine,
    corten: PathBuf,
    kubectl: PathBuf,
    dir: tempfile::TempDir,
}

impl Cluster {
    /// Boots the machine, starts the cluster and waits until all nodes are Ready.
    pub fn up(corten: &Path, kubectl: &Path, nodes: usize) -> Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("corten-conformance").tempdir()?;
        let cluster = Cluster { machine: Machine::boot(), corten: corten.into(), kubectl: kubectl.into(), dir };
        // As systemd has it: mounts of a pod with Bidirectional propagation reach the node and its other pods.
        said(cluster.machine.command(Path::new("mount")).args(["--make-rshared", "/"]))?;
        let kubeconfig = cluster.kubeconfig();
        let mut up = cluster.corten(&["up", "--timeout", "300", "--nodes", &nodes.to_string()]);
        said(up.arg("--kubeconfig").arg(kubeconfig))?;
        cluster.wait_for_nodes(nodes)?;
        Ok(cluster)
    }

    /// Applies the manifests of a folder: add-ons that specs want.
    pub fn apply(&self, manifests: &Path) -> Result<()> {
        let mut apply = self.command(&self.kubectl)?;
        said(apply.args(["apply", "--recursive", "--filename"]).arg(manifests))?;
        Ok(())
    }

    /// Imports archives into the image store, which all nodes share.
    pub fn import(&self, archives: &[PathBuf]) -> Result<()> {
        for archive in archives {
            said(self.corten(&["image", "import"]).arg(archive))?;
        }
        Ok(())
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// The kubelet's own directory on the first node.
    pub fn kubelet_root(&self) -> PathBuf {
        self.data().join("kubelet")
    }

    /// A command on the cluster's machine, with kubectl on PATH under its own name.
    pub fn command(&self, program: &Path) -> Result<Command> {
        let bin = self.dir.path().join("bin");
        if !bin.exists() {
            std::fs::create_dir(&bin)?;
            std::os::unix::fs::symlink(&self.kubectl, bin.join("kubectl"))?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = self.machine.command(program);
        command.env("PATH", format!("{}:{path}", bin.display())).env("HOME", self.dir.path());
        command.env("KUBECONFIG", self.kubeconfig()).current_dir(self.dir.path()).stdin(Stdio::null());
        Ok(command)
    }

    /// Copies the cluster's logs.
    pub fn keep_logs(&self, dir: &Path) -> Result<()> {
        for log in logs(&self.data())? {
            let name = log.strip_prefix(self.data()).unwrap_or(&log).display().to_string().replace('/', "-");
            std::fs::copy(&log, dir.join(name))?;
        }
        Ok(())
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn corten(&self, arguments: &[&str]) -> Command {
        let mut command = self.machine.command(&self.corten);
        command.args(arguments).arg("--data-dir").arg(self.data());
        command.env("HOME", self.dir.path()).env_remove("KUBECONFIG").stdin(Stdio::null());
        command
    }

    fn wait_for_nodes(&self, nodes: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut get = self.command(&self.kubectl)?;
            let text = said(get.args(["get", "nodes", "--no-headers"])).unwrap_or_else(|error| error.to_string());
            if text.lines().filter(|line| line.split_whitespace().nth(1) == Some("Ready")).count() == nodes {
                return Ok(());
            }
            if start.elapsed() > READY_BOUND {
                bail!("{nodes} nodes are not Ready after {READY_BOUND:?}: {text}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = said(&mut self.corten(&["down", "--purge"])) {
            eprintln!("the cluster cannot be taken down: {error:#}");
        }
    }
}

/// The log files below a directory.
fn logs(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        // Files of pods and images lie deeper, and are not the cluster's.
        let is_place = path.is_dir() && !path.is_symlink() && path.ends_with("nodes");
        if is_place || dir.ends_with("nodes") {
            found.extend(logs(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "log") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Runs a command and returns what it prints.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?} cannot be run"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {}", told.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
