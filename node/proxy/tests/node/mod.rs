//! A node for tests: a network namespace with pods, servers in them, and a proxy.

#![allow(dead_code, unused_imports)]

#[path = "../../../network/tests/namespaces/mod.rs"]
pub mod namespaces;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use corten_api::Typed;
use corten_network::namespace_node::unpin;
use corten_network::{Config as NetworkConfig, PodNetwork, enter};
use corten_nftables::IpFamily;
use corten_proxy::{Config, Mode, Proxier, Service, ServiceKey, Slice, SliceKey, Synced};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
pub use namespaces::on_node;
use namespaces::{Pins, ip, link_is, request};

/// The bound of every answer, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// The time without an answer that counts as silence.
pub const SILENCE: Duration = Duration::from_secs(2);

struct Pod {
    namespace: PathBuf,
    addresses: Vec<IpAddr>,
}

pub struct Node {
    pods: BTreeMap<String, Pod>,
    network: PodNetwork,
    config: Config,
    proxier: Proxier,
    /// The proxy of the other IP family.
    proxier6: Proxier,
    pins: Pins,
    services: BTreeMap<String, String>,
    slices: BTreeMap<String, String>,
}

impl Node {
    /// Starts a node with these pods and an empty proxy.
    pub async fn start(pods: &[&str]) -> Node {
        Node::start_in(Mode::Nftables, pods).await
    }

    /// Starts the same in another mode.
    pub async fn start_in(mode: Mode, pods: &[&str]) -> Node {
        Node::with_range(mode, "10.244.0.0/24", pods).await
    }

    /// Starts the same with programs at the sockets of a control group.
    pub async fn start_at_sockets(cgroup: PathBuf, pods: &[&str]) -> Node {
        let mut node = Node::start_in(Mode::Nftables, pods).await;
        node.config = Config { mode: Mode::Ebpf, cgroup: Some(cgroup), ..node.config.clone() };
        node.restart_proxy();
        node
    }

    /// Starts the same with another range of pod addresses.
    pub async fn with_range(mode: Mode, range: &str, pods: &[&str]) -> Node {
        let pins = Pins::new();
        let ranges = |cidrs: [&str; 2]| cidrs.map(|cidr| cidr.parse().unwrap());
        let own = [range, "fd00:244::/64"];
        let cluster = ["10.244.0.0/16", "fd00:244::/32"];
        let network = NetworkConfig::new(&ranges(own), &ranges(cluster), pins.path());
        let network = PodNetwork::start(network).await.unwrap();
        let config =
            Config::new("self", vec![("10.244.0.0".parse().unwrap(), 16), ("fd00:244::".parse().unwrap(), 32)]);
        let config = Config { mode, iptables: Some(iptables()), ..config };
        let [proxier, proxier6] = proxiers(&config);
        let services = BTreeMap::new();
        let slices = BTreeMap::new();
        let mut node = Node { pods: BTreeMap::new(), network, config, proxier, proxier6, pins, services, slices };
        // As on any host, the loopback is up and there is a default route: to the pods' bridge, so that untranslated
        // packets go nowhere.
        let unused = if range.ends_with("/24") { 254 } else { 14 };
        link_is("lo", "up");
        ip(&["route", "add", "default", "via", &format!("10.244.0.{unused}")]);
        for pod in pods {
            node.add_pod(pod).await;
        }
        node
    }

    /// Removes a pod, and its namespace with it.
    pub async fn remove_pod(&mut self, name: &str) {
        self.network.teardown(name).await.unwrap();
        let pod = self.pods.remove(name).unwrap();
        unpin(&pod.namespace).unwrap();
    }

    pub fn namespace(&self, pod: &str) -> PathBuf {
        self.pods[pod].namespace.clone()
    }

    pub async fn add_pod(&mut self, name: &str) {
        let namespace = self.pins.add(name);
        let request = request(name, &namespace, Vec::new());
        let addresses = self.network.setup(request).await.unwrap().ips;
        self.pods.insert(name.to_owned(), Pod { namespace, addresses });
    }

    pub fn gateway(&self) -> IpAddr {
        self.network.gateways()[0]
    }

    pub fn gateway6(&self) -> IpAddr {
        self.network.gateways()[1]
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn address(&self, pod: &str) -> IpAddr {
        self.pods[pod].addresses[0]
    }

    pub fn address6(&self, pod: &str) -> IpAddr {
        self.pods[pod].addresses[1]
    }

    /// Runs a closure in a pod, or on the node.
    pub fn enter<T: Send>(&self, pod: Option<&str>, run: impl FnOnce() -> T + Send) -> T {
        match pod {
            Some(pod) => enter(&self.pods[pod].namespace, run).unwrap(),
            None => run(),
        }
    }

    pub fn service(&mut self, json: &str) {
        let object = core::Service::decode(json.as_bytes()).unwrap();
        self.services.insert(object.name().to_owned(), json.to_owned());
        for proxier in [&mut self.proxier, &mut self.proxier6] {
            let service = Service::from_object(&object, proxier.version());
            proxier.set_service(service_key(object.name()), service);
        }
    }

    pub fn delete_service(&mut self, name: &str) {
        self.services.remove(name);
        for proxier in [&mut self.proxier, &mut self.proxier6] {
            proxier.set_service(service_key(name), None);
        }
    }

    /// Sets a ServiceCIDR with one range of IPv4, or removes it.
    pub fn service_cidr(&mut self, name: &str, range: Option<([u8; 4], u8)>) {
        let ranges = range.map(|(first, length)| vec![(IpAddr::from(first), length)]);
        self.proxier.set_service_cidr(name, ranges);
    }

    pub fn slice(&mut self, name: &str, json: &str) {
        let object = discovery::EndpointSlice::decode(json.as_bytes()).unwrap();
        self.slices.insert(name.to_owned(), json.to_owned());
        for proxier in [&mut self.proxier, &mut self.proxier6] {
            proxier.set_slice(slice_key(name), Slice::from_object(&object, proxier.version()));
        }
    }

    pub fn delete_slice(&mut self, name: &str) {
        self.slices.remove(name);
        for proxier in [&mut self.proxier, &mut self.proxier6] {
            proxier.set_slice(slice_key(name), None);
        }
    }

    /// Syncs both families; returns the result of IPv4.
    pub fn sync(&mut self) -> Synced {
        self.proxier6.sync().unwrap();
        let synced = self.proxier.sync().unwrap();
        assert!(!self.proxier.is_dirty());
        synced
    }

    pub fn check(&mut self) {
        self.proxier.check().unwrap();
    }

    /// Starts a new proxy with the same objects; the kernel keeps the state of the old one.
    pub fn restart_proxy(&mut self) {
        [self.proxier, self.proxier6] = proxiers(&self.config);
        for json in self.services.clone().into_values() {
            self.service(&json);
        }
        for (name, json) in self.slices.clone() {
            self.slice(&name, &json);
        }
    }

    /// Makes this pod's address the only one of the cluster.
    pub fn narrow_cluster_to(&mut self, pod: &str) {
        self.config.cluster_cidrs = vec![(self.address(pod), 32), (self.address6(pod), 128)];
        self.restart_proxy();
    }

    /// Starts a server that sends its name and the client's address, until the test ends.
    pub fn serve_tcp(&self, pod: &str, port: u16) {
        let listener = self.enter(Some(pod), || TcpListener::bind(("::", port)).unwrap());
        let name = pod.to_owned();
        std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = listener.accept() {
                let _ = write!(stream, "{name} sees {}", peer.ip().to_canonical());
            }
        });
    }

    pub fn serve_udp(&self, pod: &str, port: u16) {
        let socket = self.enter(Some(pod), || UdpSocket::bind(("::", port)).unwrap());
        let name = pod.to_owned();
        std::thread::spawn(move || {
            while let Ok((_, peer)) = socket.recv_from(&mut [0; 64]) {
                let _ = socket.send_to(format!("{name} sees {}", peer.ip().to_canonical()).as_bytes(), peer);
            }
        });
    }

    pub fn ask_tcp(&self, from: Option<&str>, to: SocketAddr) -> io::Result<String> {
        self.ask_tcp_within(TIMEOUT, from, to)
    }

    /// Returns the error of a connection without an answer.
    pub fn refusal_of_tcp(&self, from: Option<&str>, to: SocketAddr) -> io::Error {
        self.ask_tcp_within(SILENCE, from, to).unwrap_err()
    }

    fn ask_tcp_within(&self, connects: Duration, from: Option<&str>, to: SocketAddr) -> io::Result<String> {
        self.enter(from, || {
            let mut stream = TcpStream::connect_timeout(&to, connects)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }

    pub fn ask_udp(&self, from: Option<&str>, to: SocketAddr) -> io::Result<String> {
        self.enter(from, || {
            let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.connect(to)?;
            socket.send(b"?")?;
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer)?;
            Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
        })
    }
}

/// Returns the directory of the iptables programs; `cargo xtask test` brings them.
fn iptables() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/iptables")
}

fn proxiers(config: &Config) -> [Proxier; 2] {
    IpFamily::ALL.map(|ip| Proxier::new(config.clone(), ip).unwrap())
}

fn service_key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "default".to_owned(), name: name.to_owned() }
}

fn slice_key(name: &str) -> SliceKey {
    SliceKey { namespace: "default".to_owned(), name: name.to_owned() }
}

/// Returns the same of the pods' IPv6 addresses.
pub fn slice6(service: &str, protocol: &str, port: u16, pods: &[(&str, &Node)]) -> String {
    let four = slice(service, protocol, port, pods).replace("IPv4", "IPv6");
    pods.iter().fold(four, |json, (pod, node)| {
        json.replace(&format!("\"{}\"", node.address(pod)), &format!("\"{}\"", node.address6(pod)))
    })
}

/// Returns a slice of a Service whose endpoints are pods of this node.
pub fn slice(service: &str, protocol: &str, port: u16, pods: &[(&str, &Node)]) -> String {
    let endpoints: Vec<String> = pods
        .iter()
        .map(|(pod, node)| format!(r#"{{"addresses":["{}"],"nodeName":"self"}}"#, node.address(pod)))
        .collect();
    format!(
        r#"{{"metadata":{{"name":"x","namespace":"default","labels":{{"kubernetes.io/service-name":"{service}"}}}},
            "addressType":"IPv4","ports":[{{"name":"p","protocol":"{protocol}","port":{port}}}],
            "endpoints":[{}]}}"#,
        endpoints.join(",")
    )
}
