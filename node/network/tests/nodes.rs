//! Nodes in namespaces, their pods, and the routes between them.

#![allow(clippy::unwrap_used)]

#[path = "../../dns/tests/api/mod.rs"]
mod api;
mod namespaces;
mod wire;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::Api;
use bytes::Bytes;
use corten_api::Typed;
use corten_client::{Body, Client, Error, Transport};
use corten_network::namespace_node::{self, NodeNamespace};
use corten_network::routes::Backend;
use corten_network::{Cidr, Config, PodNetwork, enter, routes};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use namespaces::{Pins, block_on, cable, ip, link_is, listen, on_machine, request};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wire::{Packet, Wire};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The time for a connection to recover: TCP waits longer the longer it was without an answer.
const HEALED: Duration = Duration::from_secs(300);

fn node_object(name: &str, cidrs: &[String], addresses: &[IpAddr]) -> Node {
    let addresses: Vec<_> = addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
    let node = json!({"metadata": {"name": name}, "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {"addresses": addresses}});
    Node::decode(node.to_string().as_bytes()).unwrap()
}

fn routes_config(node_name: &str, cidrs: &[String], backend: Backend, node_address: IpAddr) -> routes::Config {
    let pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
    routes::Config {
        node_name: node_name.to_owned(),
        backend,
        pod_cidrs,
        node_address,
        node_addresses: vec![node_address],
        cluster_cidrs: ["10.244.0.0/16", "fd00:10:244::/48"].map(|range| range.parse().unwrap()).to_vec(),
        service_cidrs: ["10.96.0.0/12", "fd00:10:96::/112"].map(|range| range.parse().unwrap()).to_vec(),
        api_servers: tokio::sync::watch::channel(Vec::new()).1,
    }
}

/// Returns the ranges of a node's pods.
fn cidrs(node: usize, ipv6_first: bool) -> Vec<String> {
    let mut both = vec![format!("10.244.{node}.0/24"), format!("fd00:10:244:{node}::/64")];
    if ipv6_first {
        both.reverse();
    }
    both
}

/// A cluster of three nodes: its backend, and the IP family that comes first.
#[derive(Clone, Copy)]
struct Case {
    backend: Backend,
    ipv6_first: bool,
}

/// Makes one pod on the node of the calling thread; returns its pin and addresses.
fn pod_on_node(directory: &Path, node: usize, own: IpAddr, nodes: &[Node], case: Case) -> (PathBuf, Vec<IpAddr>) {
    block_on(async {
        let state = directory.join(format!("node-{node}"));
        let pod_cidrs: Vec<Cidr> = cidrs(node, case.ipv6_first).iter().map(|cidr| cidr.parse().unwrap()).collect();
        let mut network = Config::new(&pod_cidrs, &cluster(case), state);
        network.overhead = case.backend.overhead();
        let network = PodNetwork::start(network).await.unwrap();
        let config = routes_config(&format!("node-{node}"), &cidrs(node, case.ipv6_first), case.backend, own);
        for _ in 0..2 {
            assert_eq!(routes::reconcile(&config, nodes).await.unwrap(), routes::Outcome::Complete);
        }
        assert_eq!(routes::pending(&config, nodes).await.unwrap(), 0, "existing entries are recognised");
        let netns_path = directory.join("netns").join(format!("pod-{node}"));
        namespace_node::pin_new_namespace(&netns_path).unwrap();
        let request = request(&format!("pod-{node}"), &netns_path, Vec::new());
        (netns_path, network.setup(request).await.unwrap().ips)
    })
}

fn cluster(case: Case) -> Vec<Cidr> {
    let mut both: Vec<Cidr> = ["10.244.0.0/16", "fd00:10:244::/48"].map(|cidr| cidr.parse().unwrap()).to_vec();
    if case.ipv6_first {
        both.reverse();
    }
    both
}

/// Returns the address of a client in `from` that a server in `to` sees.
fn seen(from: &Path, to: &Path, address: IpAddr) -> String {
    let listener = listen(to);
    let server = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.ip().to_canonical().to_string().as_bytes()).unwrap();
    });
    let answer = enter(from, || {
        let mut stream = TcpStream::connect_timeout(&(address, 80).into(), TIMEOUT).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    server.join().unwrap();
    answer.unwrap()
}

/// Checks that the wire has unchanged packets of pods, or only encapsulated ones.
fn check_wire(passed: &BTreeSet<Packet>, case: Case, [clients, servers]: [&[IpAddr]; 2]) {
    let of_pods: BTreeSet<(IpAddr, IpAddr)> =
        passed.iter().filter(|packet| packet.protocol == 6).map(|packet| (packet.from, packet.to)).collect();
    match case.backend {
        Backend::HostGateway => {
            let pairs =
                clients.iter().zip(servers).flat_map(|(client, server)| [(*client, *server), (*server, *client)]);
            // The last packets of earlier connections may come late; none of those opens one.
            assert!(pairs.collect::<BTreeSet<_>>().is_subset(&of_pods), "there and back: {of_pods:?}");
            let opened: BTreeSet<(IpAddr, IpAddr)> =
                passed.iter().filter(|packet| packet.opens).map(|packet| (packet.from, packet.to)).collect();
            let expected = clients.iter().copied().zip(servers.iter().copied());
            assert_eq!(opened, expected.collect(), "nothing is translated");
        }
        Backend::Vxlan | Backend::Wireguard => {
            assert!(of_pods.is_empty(), "{of_pods:?}");
            let wraps = |packet: &&Packet| packet.port == 8472 && packet.from.is_ipv6() == case.ipv6_first;
            assert!(passed.iter().filter(wraps).count() >= 2, "there and back: {passed:?}");
        }
    }
}

/// Checks that a node that is cut off is not reached; when its link comes up, open connections go on and new ones are
/// served.
fn cut_and_heal(cable: &str, from: &Path, to: &Path, address: IpAddr) {
    let listener = enter(to, || TcpListener::bind("[::]:0").unwrap()).unwrap();
    let there = SocketAddr::new(address, listener.local_addr().unwrap().port());
    let connect = |timeout: Duration| enter(from, || TcpStream::connect_timeout(&there, timeout)).unwrap();
    let mut client = connect(TIMEOUT).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    link_is(cable, "down");
    connect(Duration::from_millis(300)).expect_err("the node is cut off");
    client.write_all(b"sent while it was").unwrap();
    link_is(cable, "up");
    server.set_read_timeout(Some(HEALED)).unwrap();
    let mut received = [0; 17];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"sent while it was");
    connect(HEALED).unwrap();
}

async fn two_namespaces(config: &namespace_node::Config) -> Vec<NodeNamespace> {
    let mut made = Vec::new();
    for index in 0..2 {
        let addresses = config.addresses(index).unwrap();
        made.push(namespace_node::create(config, &format!("node-{}", index + 1), &addresses).await.unwrap());
    }
    // Repeating it keeps a complete namespace, and replaces an incomplete one.
    let identity = |node: &NodeNamespace| std::fs::metadata(&node.path).unwrap().ino();
    let before = identity(&made[1]);
    let addresses = made[1].addresses.clone();
    namespace_node::create(config, "node-2", &addresses).await.unwrap();
    assert_eq!(identity(&made[1]), before);
    namespace_node::unpin(&made[1].path).unwrap();
    std::fs::write(&made[1].path, b"").unwrap();
    made[1] = namespace_node::create(config, "node-2", &addresses).await.unwrap();
    made
}

/// Gives the machine addresses on a link without neighbours.
fn addresses_elsewhere() -> Vec<IpAddr> {
    for arguments in [
        &["link", "add", "elsewhere", "type", "bridge"][..],
        &["address", "add", "192.0.2.1/24", "dev", "elsewhere"],
        &["address", "add", "2001:db8::1/64", "dev", "elsewhere", "nodad"],
        &["link", "set", "elsewhere", "up"],
    ] {
        ip(arguments);
    }
    ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap()).to_vec()
}

/// Tests three nodes: the machine itself, whose address is of another subnet, and two in namespaces.
fn three_nodes(case: Case) {
    on_machine(move || {
        let pins = Pins::new();
        let directory = pins.path().to_owned();
        let mut config = namespace_node::Config::new(&directory, &cluster(case));

        // Plain routes also lead to a machine whose addresses, here on a link of their own, are not of the nodes'
        // subnet.
        let own: Vec<IpAddr> = match case.backend {
            Backend::HostGateway => addresses_elsewhere(),
            Backend::Vxlan | Backend::Wireguard => config.gateways().unwrap(),
        };
        config.host_addresses = own.clone();
        let namespaces = block_on(two_namespaces(&config));
        let addresses = [own, namespaces[0].addresses.clone(), namespaces[1].addresses.clone()];
        let nodes: Vec<Node> =
            (0..3).map(|n| node_object(&format!("node-{n}"), &cidrs(n, case.ipv6_first), &addresses[n])).collect();
        let mut pods = vec![pod_on_node(&directory, 0, addresses[0][0], &nodes, case)];
        for (node, own) in namespaces.iter().zip(&addresses[1..]) {
            let index = pods.len();
            pods.push(enter(&node.path, || pod_on_node(&directory, index, own[0], &nodes, case)).unwrap());
        }
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0), (0, 2)] {
            for (own, address) in pods[from].1.iter().zip(&pods[to].1) {
                let answer = seen(&pods[from].0, &pods[to].0, *address);
                assert_eq!(answer, own.to_string(), "from node {from} to node {to}");
            }
        }

        let wire = Wire::listen(&cable(&namespaces[0]));
        for address in &pods[1].1 {
            seen(&pods[2].0, &pods[1].0, *address);
        }
        check_wire(&wire.passed(), case, [&pods[2].1, &pods[1].1]);
        for address in &pods[1].1 {
            cut_and_heal(&cable(&namespaces[0]), &pods[2].0, &pods[1].0, *address);
        }

        block_on(async {
            let config_of = routes_config("node-0", &cidrs(0, case.ipv6_first), case.backend, addresses[0][0]);
            routes::reconcile(&config_of, &nodes[..2]).await.unwrap();
            let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
            assert!(table.contains("0001F40A") && !table.contains("0002F40A"), "{table}");
            let table = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
            assert!(table.contains("fd00001002440001") && !table.contains("fd00001002440002"), "{table}");
            routes::cleanup().await.unwrap();
            namespace_node::cleanup(&config).await.unwrap();
        });
        let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(!table.contains("0001F40A") && !table.contains("corten-nodes"), "{table}");
        assert!(!namespaces[0].path.exists());
    });
}

#[test]
fn pods_of_three_nodes_reach_each_other_without_translation() {
    three_nodes(Case { backend: Backend::HostGateway, ipv6_first: false });
}

#[test]
fn pods_of_three_nodes_reach_each_other_through_vxlan() {
    three_nodes(Case { backend: Backend::Vxlan, ipv6_first: false });
}

#[test]
fn vxlan_may_be_carried_over_ipv6() {
    three_nodes(Case { backend: Backend::Vxlan, ipv6_first: true });
}

/// Waits until the routing table of the calling thread's namespace has, or has not, a destination.
async fn route_becomes(hexadecimal: &str, present: bool) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        if table.contains(hexadecimal) == present {
            return;
        }
        assert!(Instant::now() < deadline, "{hexadecimal}: {table}");
        tokio::task::yield_now().await;
    }
}

/// Tests that the routes of a node are restored with their link, and deleted ones are made again: at once, long before
/// the next periodic check.
fn routes_return(backend: Backend) {
    on_machine(move || {
        block_on(async {
            for arguments in [
                &["link", "add", "uplink", "type", "bridge"][..],
                &["address", "add", "192.0.2.1/24", "dev", "uplink"],
                &["link", "set", "uplink", "up"],
                // This link leads elsewhere while the uplink is down, and must not keep the routes when it is up again.
                &["link", "add", "other", "type", "bridge"],
                &["address", "add", "198.51.100.1/24", "dev", "other"],
                &["link", "set", "other", "up"],
                &["route", "add", "default", "via", "198.51.100.2", "dev", "other"],
            ] {
                ip(arguments);
            }
            let api = Api::default();
            for (number, name) in ["self", "b"].into_iter().enumerate() {
                let address = Ipv4Addr::new(192, 0, 2, 1 + number as u8);
                let node = node_object(name, &cidrs(number, false), &[address.into()]);
                api.put("nodes", std::str::from_utf8(&node.encode()).unwrap());
            }
            let shutdown = CancellationToken::new();
            let config = routes_config("self", &cidrs(0, false), backend, IpAddr::from([192, 0, 2, 1]));
            let running = tokio::spawn(routes::run(config, api.client(), api.client(), shutdown.clone()));
            let link = if backend == Backend::Vxlan { "corten.vxlan" } else { "uplink" };
            route_becomes(&format!("{link}\t0001F40A"), true).await;
            ip(&["route", "del", "10.244.1.0/24"]);
            route_becomes(&format!("{link}\t0001F40A"), true).await;
            ip(&["link", "set", link, "down"]);
            if backend == Backend::HostGateway {
                route_becomes("uplink\t", false).await;
                ip(&["link", "set", link, "up"]);
            }
            route_becomes(&format!("{link}\t0001F40A"), true).await;
            if backend == Backend::Vxlan {
                ip(&["link", "del", link]);
                route_becomes(&format!("{link}\t0001F40A"), true).await;
                // Node ports of localhost have endpoints on other nodes.
                let setting = format!("/proc/sys/net/ipv4/conf/{link}/route_localnet");
                assert_eq!(std::fs::read_to_string(setting).unwrap(), "1\n");
            }
            shutdown.cancel();
            running.await.unwrap().unwrap();
        });
    });
}

#[test]
fn plain_routes_return_with_their_link() {
    routes_return(Backend::HostGateway);
}

#[test]
fn routes_of_the_overlay_return_with_their_link() {
    routes_return(Backend::Vxlan);
}

/// An API that keeps the patches of a node.
#[derive(Clone, Default)]
struct OwnNode(Arc<Mutex<Vec<String>>>);

impl Transport for OwnNode {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>> {
        if request.method() == http::Method::PATCH {
            self.0.lock().unwrap().push(String::from_utf8_lossy(request.body()).into_owned());
        }
        let node = node_object("self", &cidrs(0, false), &[]).encode();
        Box::pin(async move { Ok(http::Response::new(Body::Full(node))) })
    }
}

impl OwnNode {
    /// Waits for a patch.
    async fn patch(&self, index: usize) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(patch) = self.0.lock().unwrap().get(index) {
                return patch.clone();
            }
            assert!(Instant::now() < deadline, "the node was not changed: {:?}", self.0);
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn a_wireguard_link_that_is_made_anew_has_a_key_that_is_published() {
    if let Err(error) = corten_network::wireguard::supported() {
        assert!(std::env::var_os("NOTHING_SKIPPED").is_none(), "{error}");
        eprintln!("skipped: {error}; `cargo xtask vm` runs it on a kernel that has it");
        return;
    }
    on_machine(|| {
        block_on(async {
            ip(&["link", "add", "uplink", "type", "bridge"]);
            ip(&["address", "add", "192.0.2.1/24", "dev", "uplink"]);
            ip(&["link", "set", "uplink", "up"]);
            ip(&["route", "add", "default", "via", "192.0.2.254", "dev", "uplink"]);
            let shutdown = CancellationToken::new();
            let config = routes_config("self", &cidrs(0, false), Backend::Wireguard, IpAddr::from([192, 0, 2, 1]));
            let own = OwnNode::default();
            let client = Client::new(Arc::new(own.clone()));
            let running = tokio::spawn(routes::run(config, Api::default().client(), client, shutdown.clone()));
            let first = own.patch(0).await;
            assert!(first.contains("corten/wireguard-public-key"), "{first}");
            ip(&["link", "del", "corten.wg"]);
            assert_ne!(own.patch(1).await, first, "keys are kept nowhere but in the link");
            shutdown.cancel();
            running.await.unwrap().unwrap();
        });
    });
}

#[test]
fn routes_follow_the_nodes_of_the_api() {
    on_machine(|| {
        let directory = tempfile::tempdir().unwrap();
        block_on(async {
            let own: Vec<Cidr> = cidrs(0, false).iter().map(|cidr| cidr.parse().unwrap()).collect();
            let case = Case { backend: Backend::HostGateway, ipv6_first: false };
            PodNetwork::start(Config::new(&own, &cluster(case), directory.path())).await.unwrap();
            for arguments in [
                &["link", "add", "uplink", "type", "bridge"][..],
                &["address", "add", "192.0.2.1/24", "dev", "uplink"],
                &["link", "set", "uplink", "up"],
            ] {
                ip(arguments);
            }
            let api = Api::default();
            let put = |name: &str, ranges: &[String], last: u8| {
                let node = node_object(name, ranges, &[Ipv4Addr::new(192, 0, 2, last).into()]);
                api.put("nodes", std::str::from_utf8(&node.encode()).unwrap());
            };
            let node = |name: &str, number: usize, last: u8| put(name, &cidrs(number, false), last);
            node("self", 0, 1);
            node("b", 1, 201);
            let shutdown = CancellationToken::new();
            let config = routes_config("self", &cidrs(0, false), Backend::HostGateway, IpAddr::from([192, 0, 2, 1]));
            let running = tokio::spawn(routes::run(config, api.client(), api.client(), shutdown.clone()));
            route_becomes("0001F40A", true).await;
            // Invalid claims are skipped: another node's range and address, and ranges outside of the cluster.
            put("a-thief", &["10.244.1.0/24".to_owned(), "198.51.100.0/24".to_owned()], 201);
            put("another", &["10.244.4.0/25".to_owned(), "10.244.0.0/24".to_owned()], 204);
            node("c", 2, 202);
            route_becomes("0002F40A", true).await;
            // A node that comes back with another address is found there.
            node("c", 2, 203);
            route_becomes("CB0200C0", true).await;
            let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
            assert!(!table.contains("006433C6") && !table.contains("0004F40A"), "{table}");
            // Packets for pods of no node end here; a fence that is deleted is restored.
            let fence = "*\t0000F40A";
            route_becomes(fence, true).await;
            ip(&["route", "del", "unreachable", "10.244.0.0/16"]);
            route_becomes(fence, true).await;
            api.delete("nodes", "", "a-thief");
            api.delete("nodes", "", "b");
            route_becomes("0001F40A", false).await;
            shutdown.cancel();
            running.await.unwrap().unwrap();
            route_becomes("0002F40A", true).await;
            route_becomes(fence, true).await;
            routes::cleanup().await.unwrap();
            route_becomes(fence, false).await;
        });
    });
}
