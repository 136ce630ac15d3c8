//! A cluster of one node on a machine made of namespaces, each part a process of its own: ours, or upstream's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testkit_machine::machine::{ADDRESS, Machine};
use testkit_machine::tools;

use super::identity::Identity;
use super::{Combination, Part, image};
use crate::conformance::node::output_of;

/// The name of the node.
const NODE: &str = "swap";
/// The ranges of pods and Services: those that `corten` has without flags.
const POD_RANGE: &str = "10.244.0.0/16";
const SERVICE_RANGE: &str = "10.96.0.0/16";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The client URL of etcd.
const ETCD: &str = "http://127.0.0.1:2379";
/// The socket of the runtime.
const RUNTIME: &str = "unix:///run/corten/cri.sock";
/// The time limit of a start.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(200);

/// The programs of both.
pub struct Programs {
    pub corten: PathBuf,
    pub upstream: PathBuf,
    pub etcd: PathBuf,
}

impl Programs {
    /// Returns upstream's programs that a combination needs and that are not there.
    pub fn missing(&self, combination: &Combination) -> Vec<&'static str> {
        let programs = combination.upstream.iter().map(|part| part.program());
        programs.filter(|program| !self.upstream.join(program).exists()).collect()
    }
}

/// A running cluster; dropping it ends its processes and its machine.
pub struct Cluster {
    corten: PathBuf,
    upstream: PathBuf,
    processes: Vec<Child>,
    machine: Machine,
    dir: tempfile::TempDir,
}

impl Cluster {
    pub fn start(programs: &Programs, combination: &Combination) -> Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("corten-swap").tempdir()?;
        let mut cluster = Cluster {
            corten: programs.corten.clone(),
            upstream: programs.upstream.clone(),
            processes: Vec::new(),
            machine: Machine::boot(),
            dir,
        };
        output_of(cluster.machine.command(Path::new("hostname")).arg(NODE))?;
        let identity = cluster.api_server(programs, combination)?;
        cluster.control_plane(combination, &identity)?;
        cluster.node(combination, &identity)?;
        let archive = image::write(&tools::busybox(), cluster.dir.path())?;
        let mut import = cluster.machine.command(&programs.corten);
        import.args(["image", "import"]).arg(&archive).arg("--data-dir").arg(cluster.data());
        cluster.retry("the import of the image", || output_of(&mut import).map(drop))?;
        Ok(cluster)
    }

    /// Returns the path of a file of the run.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn data(&self) -> PathBuf {
        self.file("data")
    }

    /// Runs kubectl as the administrator.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.machine.command(&tools::kubectl());
        command.arg("--kubeconfig").arg(self.file("identity/admin.conf")).args(arguments).stdin(Stdio::null());
        output_of(&mut command)
    }

    /// Fetches the page of a Service from the node.
    pub fn fetch(&self, address: &str) -> Result<String> {
        self.machine.fetch(address, "80").map_err(|error| anyhow!("{error}"))
    }

    /// Copies the logs of the parts to a directory that stays.
    pub fn keep_logs(&self) -> PathBuf {
        let kept = std::env::temp_dir().join(format!("corten-swap-logs-{}", std::process::id()));
        let _ = std::fs::create_dir_all(&kept);
        for entry in std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let _ = std::fs::copy(&path, kept.join(entry.file_name()));
            }
        }
        kept
    }

    /// Starts a process of the machine; its log is a file of the run.
    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let log = File::create(self.file(&format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.processes.push(command.spawn().with_context(|| format!("{name} cannot be started"))?);
        Ok(())
    }

    /// Ends the last process.
    fn end_last(&mut self) {
        if let Some(mut process) = self.processes.pop() {
            end(&mut process);
        }
    }

    fn ours(&self, part: &str) -> Command {
        let mut command = self.machine.command(&self.corten);
        command.arg(part);
        command
    }

    fn theirs(&self, part: Part) -> Command {
        self.machine.command(&self.upstream.join(part.program()))
    }

    fn retry(&self, title: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let began = Instant::now();
        loop {
            let Err(error) = check() else { return Ok(()) };
            let logs = || format!("{title} (the logs are in {})", self.keep_logs().display());
            ensure!(began.elapsed() < PATIENCE, "{}: {error:#}", logs());
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts the API server. Ours makes the authorities for both.
    fn api_server(&mut self, programs: &Programs, combination: &Combination) -> Result<Identity> {
        let mut command = self.ours("apiserver");
        command.arg("--data-dir").arg(self.data()).args(["--node-name", NODE, "--service-cidr", SERVICE_RANGE]);
        self.spawn("apiserver", &mut command)?;
        let made = self.data().join("kubeconfig/admin.conf");
        self.retry("the API server's files", || {
            ensure!(made.exists(), "{} is not there", made.display());
            Ok(())
        })?;
        let identity = Identity::make(&self.data().join("pki"), &self.file("identity"), NODE)?;
        if combination.is_upstream(Part::ApiServer) {
            self.end_last();
            let mut etcd = self.machine.command(&programs.etcd);
            etcd.arg("--data-dir").arg(self.file("etcd")).args(["--listen-client-urls", ETCD]);
            self.spawn("etcd", etcd.args(["--advertise-client-urls", ETCD]))?;
            let mut command = self.theirs(Part::ApiServer);
            command.args(api_server_flags(&identity));
            self.spawn("kube-apiserver", &mut command)?;
        }
        self.retry("the API server", || self.kubectl(&["get", "--raw", "/readyz"]).map(drop))?;
        Ok(identity)
    }

    fn control_plane(&mut self, combination: &Combination, identity: &Identity) -> Result<()> {
        let kubeconfig = identity.kubeconfig("controller-manager");
        let mut command = match combination.is_upstream(Part::ControllerManager) {
            true => self.theirs(Part::ControllerManager),
            false => self.ours("controller-manager"),
        };
        command.args(controller_manager_flags(identity, combination.is_upstream(Part::ControllerManager)));
        self.spawn("controller-manager", command.arg(flag("kubeconfig", &kubeconfig)))?;
        let mut command = match combination.is_upstream(Part::Scheduler) {
            true => self.theirs(Part::Scheduler),
            false => self.ours("scheduler"),
        };
        self.spawn("scheduler", command.arg(flag("kubeconfig", &identity.kubeconfig("scheduler"))))
    }

    /// Starts runtime, kubelet and proxy.
    fn node(&mut self, combination: &Combination, identity: &Identity) -> Result<()> {
        let data = self.data();
        let mut runtime = self.ours("runtime");
        self.spawn("runtime", runtime.arg("--data-dir").arg(&data))?;
        let kubeconfig = flag("kubeconfig", &identity.kubeconfig("kubelet"));
        let mut command = match combination.is_upstream(Part::Kubelet) {
            true => {
                let settings = self.file("kubelet.yaml");
                std::fs::write(&settings, kubelet_settings(identity))?;
                let mut command = self.theirs(Part::Kubelet);
                command.arg(flag("config", &settings)).arg(flag("root-dir", &self.file("kubelet")));
                command.args([format!("--hostname-override={NODE}"), format!("--node-ip={ADDRESS}")]);
                command
            }
            false => {
                let mut command = self.ours("kubelet");
                command.arg("--data-dir").arg(&data).args(["--node-name", NODE, "--node-ip", ADDRESS]);
                command
            }
        };
        self.spawn("kubelet", command.arg(kubeconfig))?;
        let mut proxy = self.ours("proxy");
        self.spawn("proxy", proxy.arg(flag("kubeconfig", &identity.kubeconfig("proxy"))).args(["--node-name", NODE]))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.processes.iter_mut().rev().for_each(end);
        // Containers and cgroups are left by the processes; the purge removes them.
        let mut down = self.machine.command(&self.corten);
        let _ = down.args(["down", "--purge", "--data-dir"]).arg(self.data()).output();
    }
}

/// Ends a process, which is a child of the program that entered the machine.
fn end(process: &mut Child) {
    let id = process.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    for child in children.split_whitespace() {
        let _ = Command::new(tools::busybox()).args(["kill", "-9", child]).status();
    }
    let _ = process.kill();
    let _ = process.wait();
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn api_server_flags(identity: &Identity) -> Vec<String> {
    vec![
        format!("--etcd-servers={ETCD}"),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        format!("--service-account-issuer={ISSUER}"),
        format!("--advertise-address={ADDRESS}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged".to_owned(),
        // The node's name is in no DNS.
        "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
        flag("client-ca-file", &identity.authority("ca.crt")),
        flag("tls-cert-file", &identity.file("apiserver.crt")),
        flag("tls-private-key-file", &identity.file("apiserver.key")),
        flag("service-account-key-file", &identity.file("sa.pub")),
        flag("service-account-signing-key-file", &identity.authority("sa.key")),
        flag("kubelet-certificate-authority", &identity.authority("kubelet-ca.crt")),
        flag("kubelet-client-certificate", &identity.file("apiserver-kubelet-client.crt")),
        flag("kubelet-client-key", &identity.file("apiserver-kubelet-client.key")),
    ]
}

/// Returns the flags of the controller manager, which are the same for both; ours has no key of tokens, because the API
/// server signs them.
fn controller_manager_flags(identity: &Identity, is_upstream: bool) -> Vec<String> {
    let mut flags = vec![
        flag("root-ca-file", &identity.authority("ca.crt")),
        flag("cluster-signing-cert-file", &identity.authority("ca.crt")),
        flag("cluster-signing-key-file", &identity.authority("ca.key")),
        format!("--cluster-cidr={POD_RANGE}"),
        "--allocate-node-cidrs=true".to_owned(),
    ];
    if is_upstream {
        flags.push(flag("service-account-private-key-file", &identity.authority("sa.key")));
        flags.push("--use-service-account-credentials=true".to_owned());
    }
    flags
}

fn kubelet_settings(identity: &Identity) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {{anonymous: {{enabled: false}}, x509: {{clientCAFile: '{}'}}}}
tlsCertFile: '{}'
tlsPrivateKeyFile: '{}'
containerRuntimeEndpoint: '{RUNTIME}'
failSwapOn: false
evictionHard: {{memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}}
",
        identity.authority("ca.crt").display(),
        identity.file("kubelet-serving.crt").display(),
        identity.file("kubelet-serving.key").display(),
    )
}
