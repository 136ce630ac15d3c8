//! Upstream's kube-proxy in its mode nftables, beside ours on the same machine: run where `KUBE_PROXY` names its
//! binary.
//!
//! Its API is in this process and has only Services and EndpointSlices: the comparison is of the proxies' work with
//! their kernel, not of their API servers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use corten_nftables::{IpFamily, Socket};

const BOUND: Duration = Duration::from_secs(180);
/// The pause between two changes: it waits a second between two syncs.
const REST: Duration = Duration::from_secs(2);
const NODE: &str = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"node","uid":"n","resourceVersion":"1"},
    "spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]},
    "status":{"addresses":[{"type":"InternalIP","address":"10.244.0.1"}]}}"#;

/// The objects of each resource, by the last word of its path.
pub type Objects = BTreeMap<&'static str, Vec<String>>;
type Watchers = Arc<Mutex<Vec<mpsc::Sender<String>>>>;

pub struct KubeProxy {
    child: Child,
    watchers: Watchers,
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("nft").args(["delete", "table", "ip", "kube-proxy"]).status();
    }
}

impl KubeProxy {
    /// Starts it with these objects, if there is one to start.
    pub fn start(mut objects: Objects) -> Option<KubeProxy> {
        let binary = std::env::var_os("KUBE_PROXY")?;
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().ok()?;
        assert!(up.success(), "the loopback is up");
        objects.insert("nodes", vec![one_line(NODE)]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let objects = Arc::new(objects);
        let watchers = Watchers::default();
        let known = watchers.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let objects = objects.clone();
                let watchers = known.clone();
                std::thread::spawn(move || serve(stream, &objects, &watchers));
            }
        });
        let child = Command::new(binary)
            .args(["--proxy-mode=nftables", "--hostname-override=node", "--cluster-cidr=10.244.0.0/16"])
            .args(["--detect-local-mode=ClusterCIDR", "--conntrack-max-per-core=0", "--conntrack-min=0"])
            .arg(format!("--master=http://{address}"))
            .stdout(Stdio::null())
            .stderr(std::env::var_os("KUBE_PROXY_LOG").map_or(Stdio::null(), |_| Stdio::inherit()))
            .spawn()
            .expect("KUBE_PROXY names a program");
        Some(KubeProxy { child, watchers })
    }

    /// Waits until it has synced everything to the kernel; returns the processor time of its process.
    pub fn first_sync(&mut self, is_there: impl Fn() -> bool) -> Duration {
        let start = Instant::now();
        while !is_there() {
            assert!(start.elapsed() < BOUND, "kube-proxy makes its rules");
            assert!(self.child.try_wait().expect("a child").is_none(), "kube-proxy runs");
            std::thread::sleep(Duration::from_millis(5));
        }
        start.elapsed()
    }

    /// Changes an EndpointSlice; returns the time until the kernel had another generation of rules.
    pub fn change(&self, slice: &str) -> Duration {
        std::thread::sleep(REST);
        let mut socket = Socket::open().expect("a netlink socket");
        let before = socket.generation().expect("a generation");
        let start = Instant::now();
        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, one_line(slice));
        self.watchers.lock().expect("no thread panicked").retain(|watcher| watcher.send(event.clone()).is_ok());
        while socket.generation().expect("a generation") == before {
            assert!(start.elapsed() < BOUND, "kube-proxy syncs the change");
            std::thread::sleep(Duration::from_micros(200));
        }
        start.elapsed()
    }

    pub fn resident_mebibytes(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
    }

    /// Reports whether its table exists, and holds a Service with this address.
    pub fn knows(address: &str) -> bool {
        let table = IpFamily::V4.table("kube-proxy");
        let stands = Socket::open().and_then(|mut socket| socket.tables()).is_ok_and(|all| all.contains(&table));
        let element = format!("{{ {address} }}");
        let ask = || Command::new("nft").args(["get", "element", "ip", "kube-proxy", "cluster-ips", &element]).output();
        stands && ask().is_ok_and(|output| output.status.success())
    }
}

fn one_line(json: &str) -> String {
    json.replace('\n', " ")
}

/// Answers the requests of one connection, until it is a watch, which lasts.
fn serve(stream: TcpStream, objects: &Objects, watchers: &Watchers) {
    let mut reader = BufReader::new(stream.try_clone().expect("a connection"));
    let mut out = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            let _ = reader.read_line(&mut header);
            match header.to_ascii_lowercase().trim().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap_or(0),
                Some(_) => {}
                None => break,
            }
        }
        let _ = std::io::copy(&mut std::io::Read::take(&mut reader, length), &mut std::io::sink());
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let resource = path.rsplit('/').next().unwrap_or_default();
        match objects.get(resource) {
            Some(all) if query.contains("watch=true") => return watch(&mut out, query, resource, all, watchers),
            Some(all) => answer(&mut out, "200 OK", &list(resource, all)),
            None if resource == "node" => answer(&mut out, "200 OK", &one_line(NODE)),
            None if line.starts_with("POST") => answer(&mut out, "201 Created", "{}"),
            None => answer(&mut out, "404 Not Found", r#"{"kind":"Status","apiVersion":"v1","code":404}"#),
        }
    }
}

/// Returns kind and version of a resource.
fn kind(resource: &str) -> (&'static str, &'static str) {
    match resource {
        "services" => ("Service", "v1"),
        "nodes" => ("Node", "v1"),
        _ => ("EndpointSlice", "discovery.k8s.io/v1"),
    }
}

fn list(resource: &str, all: &[String]) -> String {
    let (kind, version) = kind(resource);
    let items = all.join(",");
    format!(
        r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
    )
}

fn answer(out: &mut TcpStream, status: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = out.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice());
}

fn watch(out: &mut TcpStream, query: &str, resource: &str, all: &[String], watchers: &Watchers) {
    let (sender, changes) = mpsc::channel();
    let _ = write!(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = |out: &mut TcpStream, data: &str| write!(out, "{:x}\r\n{data}\r\n", data.len()).is_ok();
    if query.contains("sendInitialEvents=true") {
        for object in all {
            chunk(out, &format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n"));
        }
        let (kind, version) = kind(resource);
        let end = r#"{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}"#;
        let object = format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{end}}}"#);
        chunk(out, &format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n"));
    }
    if resource == "endpointslices" {
        watchers.lock().expect("no thread panicked").push(sender.clone());
    }
    // The sender is kept, so that the watch lasts until its client disconnects.
    while let Ok(change) = changes.recv() {
        if !chunk(out, &format!("{change}\n")) {
            return;
        }
    }
    drop(sender);
}
