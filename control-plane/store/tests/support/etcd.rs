//! Real etcd members as processes on loopback, and a proxy that can lose answers.
//!
//! The binary is that of the variable `ETCD_BINARY`, or `etcd` of the `PATH`. Without one, tests print that they are
//! skipped.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corten_store::etcd::{Config, Etcd, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The time that etcd has to elect a leader on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Files of a TLS server.
pub struct ServerTls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// One member.
struct Member {
    arguments: Vec<String>,
    process: Child,
    url: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An etcd cluster, which ends with this value.
pub struct EtcdCluster {
    members: Vec<Member>,
    binary: PathBuf,
    _dir: tempfile::TempDir,
}

/// Returns the etcd binary to test with, if it is new enough.
fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("ETCD_BINARY").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let binary = named.or_else(|| std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.exists()));
    let Some(binary) = binary else {
        eprintln!("skipped: there is no etcd (variable ETCD_BINARY, or PATH)");
        return None;
    };
    let version = Command::new(&binary).arg("--version").output().expect("etcd runs").stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    if version.contains("Version: 3.4.") {
        eprintln!("skipped: {} is older than 3.5.13", binary.display());
        return None;
    }
    Some(binary)
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn spawn(binary: &PathBuf, arguments: &[String]) -> Child {
    Command::new(binary)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd starts")
}

impl EtcdCluster {
    /// Starts a cluster; `None` without a binary.
    pub fn start(count: usize) -> Option<EtcdCluster> {
        EtcdCluster::start_with(count, None)
    }

    pub fn start_with(count: usize, tls: Option<&ServerTls>) -> Option<EtcdCluster> {
        let binary = binary()?;
        let dir = tempfile::tempdir().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let addresses: Vec<_> = (0..count).map(|_| (free_address(), free_address())).collect();
        let all: Vec<_> = addresses.iter().enumerate().map(|(i, (_, peer))| format!("m{i}=http://{peer}")).collect();
        let members = addresses.iter().enumerate().map(|(i, (client, peer))| {
            let url = format!("{scheme}://{client}");
            let data = dir.path().join(i.to_string());
            let mut arguments = vec![
                format!("--name=m{i}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{peer}"),
                format!("--initial-cluster={}", all.join(",")),
                format!("--initial-cluster-token={}", dir.path().display()),
                "--log-level=error".to_owned(),
            ];
            if let Some(tls) = tls {
                arguments.push(format!("--cert-file={}", tls.certificate.display()));
                arguments.push(format!("--key-file={}", tls.key.display()));
                arguments.push(format!("--trusted-ca-file={}", tls.ca.display()));
                arguments.push("--client-cert-auth=true".to_owned());
            }
            Member { process: spawn(&binary, &arguments), arguments, url }
        });
        let members = members.collect();
        Some(EtcdCluster { members, binary, _dir: dir })
    }

    pub fn urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.url.clone()).collect()
    }

    pub async fn open(&self) -> Arc<Etcd> {
        open(self.urls(), None).await.expect("etcd can be used")
    }

    /// Kills a member, as a power cut would.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill().unwrap();
        self.members[member].process.wait().unwrap();
    }

    pub fn restart(&mut self, member: usize) {
        self.members[member].process = spawn(&self.binary, &self.members[member].arguments);
    }

    /// Stops or continues the process of a member.
    pub fn pause(&self, member: usize, paused: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = Pid::from_child(&self.members[member].process);
        kill_process(pid, if paused { Signal::STOP } else { Signal::CONT }).unwrap();
    }
}

/// Opens a store that nothing else compacts.
pub async fn open(endpoints: Vec<String>, tls: Option<Tls>) -> Result<Arc<Etcd>, corten_store::Error> {
    let config = Config { tls, compaction_interval: Duration::ZERO, dial_timeout: PATIENCE, ..Config::new(endpoints) };
    Etcd::open(config).await
}

/// A proxy to a member, which can swallow answers: the request arrives, and its sender never learns what became of it.
pub struct Proxy {
    pub url: String,
    swallows: Arc<AtomicBool>,
}

impl Proxy {
    pub async fn start(target: &str) -> Proxy {
        let target: SocketAddr = target.trim_start_matches("http://").parse().unwrap();
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let swallows = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&swallows);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.load(Ordering::SeqCst) {
                    continue;
                }
                tokio::spawn(relay(client, target, Arc::clone(&shared)));
            }
        });
        Proxy { url, swallows }
    }

    /// Begins or ends to swallow answers. Connections on which one was swallowed are closed.
    pub fn swallow(&self, swallows: bool) {
        self.swallows.store(swallows, Ordering::SeqCst);
    }
}

async fn relay(client: TcpStream, target: SocketAddr, swallows: Arc<AtomicBool>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from_server.read(&mut buffer).await {
        if count == 0 || swallows.load(Ordering::SeqCst) || to_client.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    requests.abort();
}
