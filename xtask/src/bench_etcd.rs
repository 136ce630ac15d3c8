//! `cargo xtask bench-etcd`: ours and upstream's API server over the same etcd cluster of three members, one after the
//! other in one run, with the same load. Figures of two machines, or of two days, say little about each other.
//!
//! It never builds: `--corten` names a release binary. Upstream's server is the variable `KUBE_APISERVER_BINARY` or
//! `kube-apiserver` of the PATH, etcd is `ETCD_BINARY` or `etcd`.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::tools;

const MEMBERS: usize = 3;
/// The time that a server or etcd has to start.
const PATIENCE: Duration = Duration::from_secs(120);
/// The arguments of the load, which the user's come after.
const LOAD: [&str; 3] = ["bench", "api", "--kubeconfig"];

pub fn run(flags: &[&str]) -> Result<()> {
    let Some((corten, load)) = flags.split_first_chunk::<2>().and_then(|([flag, path], rest)| {
        let path = std::path::absolute(path).ok()?;
        (*flag == "--corten").then_some((path, rest))
    }) else {
        bail!("bench-etcd --corten BINARY [flags of `corten bench api`]");
    };
    ensure!(tools::is_root(), "the API server runs as root");
    let etcd = program("ETCD_BINARY", "etcd")?;
    let theirs = program("KUBE_APISERVER_BINARY", "kube-apiserver")?;
    let folder = tempfile::tempdir()?;
    let mut cluster = Etcd::start(&etcd, folder.path())?;
    let ours = Server::ours(&corten, &cluster, folder.path())?;
    cluster.measure("ours", &corten, &ours, load)?;
    // The keys of the one are the other's too, so that one client has access to both.
    let pki = folder.path().join("data/pki");
    drop(ours);
    let theirs = Server::theirs(&theirs, &cluster, folder.path(), &pki)?;
    cluster.measure("upstream", &corten, &theirs, load)
}

/// Returns the program of a variable, or of the PATH.
fn program(variable: &str, name: &str) -> Result<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists()));
    found.with_context(|| format!("there is no {name} (variable {variable}, or PATH)"))
}

fn free_port() -> Result<u16> {
    free_ports(1)?.first().copied().context("there is no free port")
}

/// Returns free ports, each once: all are taken at the same time.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let taken = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<std::io::Result<Vec<_>>>()?;
    taken.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// A process that does not outlive the run.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command, log: &Path) -> Result<Process> {
        let log = File::create(log)?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        Ok(Process(child.with_context(|| format!("{} cannot be started", command.get_program().display()))?))
    }
}

/// An etcd cluster on the loopback.
struct Etcd {
    members: Vec<Process>,
    urls: Vec<String>,
}

impl Etcd {
    fn start(binary: &Path, folder: &Path) -> Result<Etcd> {
        let ports: Vec<[u16; 2]> = free_ports(MEMBERS * 2)?.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
        let all: Vec<String> =
            ports.iter().enumerate().map(|(i, [_, peer])| format!("m{i}=http://127.0.0.1:{peer}")).collect();
        let mut members = Vec::new();
        for (number, [client, peer]) in ports.iter().enumerate() {
            let data = folder.join(format!("etcd-{number}"));
            let mut command = Command::new(binary);
            command
                .arg(format!("--name=m{number}"))
                .arg(format!("--data-dir={}", data.display()))
                .arg(format!("--listen-client-urls=http://127.0.0.1:{client}"))
                .arg(format!("--advertise-client-urls=http://127.0.0.1:{client}"))
                .arg(format!("--listen-peer-urls=http://127.0.0.1:{peer}"))
                .arg(format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"))
                .arg(format!("--initial-cluster={}", all.join(",")))
                .args(["--log-level=error", "--quota-backend-bytes=8589934592"]);
            members.push(Process::start(&mut command, &folder.join(format!("etcd-{number}.log")))?);
        }
        let urls = ports.iter().map(|[client, _]| format!("http://127.0.0.1:{client}")).collect();
        Ok(Etcd { members, urls })
    }

    /// Runs the load against a server, and prints its figures.
    fn measure(&mut self, name: &str, corten: &Path, server: &Server, load: &[&str]) -> Result<()> {
        println!("{name}:");
        let mut command = Command::new(corten);
        command
            .args(LOAD)
            .arg(&server.kubeconfig)
            .args(["--server-pid", &server.process.0.id().to_string()])
            .args(load);
        let status = command.status().context("the load cannot be run")?;
        ensure!(status.success(), "the load on {name} failed");
        let ended = self.members.iter_mut().filter_map(|member| member.0.try_wait().ok().flatten()).count();
        ensure!(ended == 0, "{ended} members of etcd ended during the run");
        Ok(())
    }
}

/// An API server.
struct Server {
    process: Process,
    kubeconfig: PathBuf,
}

impl Server {
    fn ours(binary: &Path, etcd: &Etcd, folder: &Path) -> Result<Server> {
        let data = folder.join("data");
        let mut command = Command::new(binary);
        command
            .arg("apiserver")
            .arg("--data-dir")
            .arg(&data)
            .arg("--run-dir")
            .arg(folder.join("run"))
            .args(["--bind-address", "127.0.0.1", "--node-ip", "127.0.0.1"])
            .args(["--port", &free_port()?.to_string()])
            .args(["--etcd-servers", &etcd.urls.join(","), "--etcd-prefix", "/ours"]);
        let process = Process::start(&mut command, &folder.join("ours.log"))?;
        let kubeconfig = data.join("kubeconfig/admin.conf");
        Server { process, kubeconfig }.ready(&folder.join("ours.log"))
    }

    fn theirs(binary: &Path, etcd: &Etcd, folder: &Path, pki: &Path) -> Result<Server> {
        let port = free_port()?;
        let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
        let mut command = Command::new(binary);
        command
            .arg(format!("--etcd-servers={}", etcd.urls.join(",")))
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", folder.join("theirs").display()))
            .arg(file("client-ca-file", "ca.crt"))
            .arg(format!("--service-account-key-file={}", public_key(&pki.join("sa.key"), folder)?.display()))
            .arg(file("service-account-signing-key-file", "sa.key"))
            .args(["--etcd-prefix=/theirs", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
            ])
            .args(["--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none"]);
        let log = folder.join("theirs.log");
        let process = Process::start(&mut command, &log)?;
        let kubeconfig = folder.join("theirs.conf");
        std::fs::write(&kubeconfig, for_server(&folder.join("data/kubeconfig/admin.conf"), port)?)?;
        Server { process, kubeconfig }.ready(&log)
    }

    /// Waits until the server answers that it is ready.
    fn ready(mut self, log: &Path) -> Result<Server> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.0.try_wait()? {
                bail!("the server ended with {status}: {}", std::fs::read_to_string(log).unwrap_or_default());
            }
            let config = std::fs::read_to_string(&self.kubeconfig).unwrap_or_default();
            let address =
                config.split_once("server: https://").map(|(_, rest)| rest.lines().next().unwrap_or_default());
            let url = address.map(|address| format!("https://{address}/readyz"));
            let probe = url.map(|url| Command::new("curl").args(["-skf", "-o", "/dev/null", &url]).status());
            if probe.transpose().context("curl cannot be run")?.is_some_and(|status| status.success()) {
                return Ok(self);
            }
            ensure!(Instant::now() < deadline, "the server is not ready: see {}", log.display());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Writes the public half of a key: upstream's server does not take it from a private key in PKCS #8.
fn public_key(private: &Path, folder: &Path) -> Result<PathBuf> {
    let public = folder.join("sa.pub");
    let mut command = Command::new("openssl");
    command.args(["pkey", "-pubout", "-in"]).arg(private).arg("-out").arg(&public);
    ensure!(command.status().context("openssl cannot be run")?.success(), "openssl cannot read {}", private.display());
    Ok(public)
}

/// Returns a kubeconfig for another server with the same client certificate. Its serving certificate is self-signed.
fn for_server(path: &Path, port: u16) -> Result<String> {
    let config = std::fs::read_to_string(path)?;
    let lines = config.lines().map(|line| {
        let indent = &line[..line.len() - line.trim_start().len()];
        match line.trim_start() {
            rest if rest.starts_with("certificate-authority-data:") => {
                format!("{indent}insecure-skip-tls-verify: true")
            }
            rest if rest.starts_with("server:") => format!("{indent}server: https://127.0.0.1:{port}"),
            _ => line.to_owned(),
        }
    });
    Ok(lines.map(|line| line + "\n").collect())
}
