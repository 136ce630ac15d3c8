//! The proxies that are compared, each as a process with one thread on its own processor.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The processor of the proxies.
pub const PROXY_PROCESSOR: &str = "0";
/// The processor of the client and the server behind the proxies.
pub const CLIENT_PROCESSOR: &str = "1";

/// A certificate in files: the chain, the key, and both in one.
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
    pub both: PathBuf,
}

/// Makes a certificate for localhost.
pub fn certificate(folder: &Path) -> Certificate {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let chain = made.cert.pem();
    let key = made.signing_key.serialize_pem();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    Certificate {
        both: write("both.pem", &format!("{chain}{key}")),
        chain: write("chain.pem", &chain),
        key: write("key.pem", &key),
    }
}

/// A process that ends with the benchmark.
pub struct Process(Child);

impl Process {
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGTERM lets a master end its workers.
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(0)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

#[derive(Clone, Copy)]
pub enum Peer {
    Corten,
    HaProxy,
    Nginx,
}

pub struct Proxy {
    pub peer: Peer,
    pub process: Process,
    pub port: u16,
    pub tls_port: u16,
}

/// The server behind the proxies.
pub struct Backend {
    _process: Process,
    pub port: u16,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn wait_for(port: u16) {
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "port {port} does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn on(processor: &str, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", processor]).arg(program).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn own() -> PathBuf {
    std::env::current_exe().expect("the benchmark's own path")
}

pub fn backend() -> Backend {
    let port = free_port();
    let child = on(CLIENT_PROCESSOR, &own()).arg("--serve-backend").env("PORT", port.to_string()).spawn();
    let process = Process(child.expect("the server starts"));
    wait_for(port);
    Backend { _process: process, port }
}

fn find(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    folders.push("/usr/sbin".into());
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.exists())
}

impl Peer {
    pub fn name(self) -> &'static str {
        match self {
            Peer::Corten => "corten",
            Peer::HaProxy => "haproxy",
            Peer::Nginx => "nginx",
        }
    }

    /// Starts the proxy; none if it is not installed.
    pub fn start(self, folder: &Path, certificate: &Certificate, backend: u16) -> Option<Proxy> {
        let port = free_port();
        let tls_port = free_port();
        let mut command = match self {
            Peer::Corten => {
                let mut command = on(PROXY_PROCESSOR, &own());
                command.arg("--serve-edge").args([port, tls_port, backend].map(|port| port.to_string()));
                command.arg(&certificate.chain).arg(&certificate.key);
                command
            }
            Peer::HaProxy => {
                let path = folder.join("haproxy.cfg");
                std::fs::write(&path, haproxy(port, tls_port, backend, certificate)).expect("a file");
                let mut command = on(PROXY_PROCESSOR, &find("haproxy")?);
                command.args(["-db", "-f"]).arg(path);
                command
            }
            Peer::Nginx => {
                let path = folder.join("nginx.conf");
                std::fs::write(&path, nginx(folder, port, tls_port, backend, certificate)).expect("a file");
                let mut command = on(PROXY_PROCESSOR, &find("nginx")?);
                command.arg("-p").arg(folder).arg("-c").arg(path);
                command
            }
        };
        let process = Process(command.spawn().expect("the proxy starts"));
        wait_for(port);
        wait_for(tls_port);
        Some(Proxy { peer: self, process, port, tls_port })
    }
}

fn haproxy(port: u16, tls_port: u16, backend: u16, certificate: &Certificate) -> String {
    let both = certificate.both.display();
    format!(
        "global\n  nbthread 1\n  maxconn 4096\n\
         defaults\n  mode http\n  option forwardfor\n  http-reuse always\n  timeout connect 5s\n  timeout client 60s\n  \
         timeout server 60s\n  timeout http-request 30s\n\
         frontend plain\n  bind 127.0.0.1:{port}\n  default_backend server\n\
         frontend tls\n  bind 127.0.0.1:{tls_port} ssl crt {both} alpn h2,http/1.1\n  default_backend server\n\
         backend server\n  server one 127.0.0.1:{backend}\n"
    )
}

fn nginx(folder: &Path, port: u16, tls_port: u16, backend: u16, certificate: &Certificate) -> String {
    let chain = certificate.chain.display();
    let key = certificate.key.display();
    let folder = folder.display();
    format!(
        "daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n  access_log off;\n  client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n  \
         keepalive_requests 100000000;\n  \
         upstream server {{ server 127.0.0.1:{backend}; keepalive 512; keepalive_requests 100000000; }}\n  \
         server {{\n    listen 127.0.0.1:{port};\n    listen 127.0.0.1:{tls_port} ssl http2;\n    \
         ssl_certificate {chain};\n    ssl_certificate_key {key};\n    \
         location / {{\n      proxy_pass http://server;\n      proxy_http_version 1.1;\n      \
         proxy_set_header Connection \"\";\n      proxy_set_header Host $host;\n      \
         proxy_set_header X-Forwarded-For $remote_addr;\n    }}\n  }}\n}}\n"
    )
}
