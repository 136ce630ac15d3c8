//! The cost of traffic between nodes: bytes from pod to pod of two nodes through our VXLAN, beside the same through a
//! VXLAN that `ip` made by hand. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! Run by `cargo xtask bench`, as root: it works in network namespaces of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_network::namespace_node::{self, NodeNamespace, pin_new_namespace, unpin};
use corten_network::routes::{self, Backend};
use corten_network::{Config, Limits, PodNetwork, SetupRequest, enter};
use k8s_openapi::api::core::v1::Node;
use nix::sched::{CloneFlags, unshare};

const DURATION: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;
const PORT: u16 = 8080;

fn main() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let config = namespace_node::Config::new(directory.path(), &["10.244.0.0/16".parse().expect("a range")]);
    let nodes: Vec<NodeNamespace> = block_on(async {
        let mut made = Vec::new();
        for index in 0..2 {
            let addresses = config.addresses(index).expect("an address");
            made.push(namespace_node::create(&config, &format!("node-{index}"), &addresses).await.expect("a node"));
        }
        made
    });
    let ours: Vec<(PathBuf, IpAddr)> = (0..2).map(|index| our_pod(directory.path(), &nodes, index)).collect();
    let theirs: Vec<(PathBuf, IpAddr)> = (0..2).map(|index| their_pod(directory.path(), &nodes, index)).collect();
    for pods in [&ours, &theirs] {
        serve(&pods[1].0);
    }
    // In turn, so that other load of the machine affects both.
    let measure = |pods: &[(PathBuf, IpAddr)]| enter(&pods[0].0, || throughput(pods[1].1)).expect("the pod exists");
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (measure(&ours), measure(&theirs))).collect();
    let best = |of: fn(&(f64, f64)) -> f64| rounds.iter().map(of).fold(0.0, f64::max);
    let own = best(|round| round.0);
    let hand = best(|round| round.1);
    figure("VXLAN, pod to pod", own, "Gbit/s");
    figure("VXLAN made by hand, pod to pod", hand, "Gbit/s");
    figure("VXLAN, of one made by hand", own / hand * 100.0, "%");
    for (namespace, _) in ours.iter().chain(&theirs) {
        unpin(namespace).expect("delete the namespace");
    }
    block_on(namespace_node::cleanup(&config)).expect("delete the nodes");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Makes a pod of our network on a node.
fn our_pod(directory: &Path, nodes: &[NodeNamespace], index: usize) -> (PathBuf, IpAddr) {
    let objects: Vec<Node> = nodes.iter().enumerate().map(|(number, node)| object(number, node)).collect();
    let namespace = directory.join("pins").join(format!("ours-{index}"));
    pin_new_namespace(&namespace).expect("a namespace");
    let own = nodes[index].addresses[0];
    let setup = async {
        let range = format!("10.244.{index}.0/24").parse().expect("a range");
        let mut config =
            Config::new(&[range], &["10.244.0.0/16".parse().expect("a range")], directory.join(index.to_string()));
        config.overhead = Backend::Vxlan.overhead();
        let network = PodNetwork::start(config).await.expect("a pod network");
        let routes = routes::Config {
            node_name: format!("node-{index}"),
            backend: Backend::Vxlan,
            pod_cidrs: vec![range],
            node_address: own,
            node_addresses: vec![own],
            cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a range")],
            service_cidrs: Vec::new(),
            api_servers: tokio::sync::watch::channel(Vec::new()).1,
        };
        routes::reconcile(&routes, &objects).await.expect("routes");
        let request = SetupRequest {
            sandbox_id: format!("ours-{index}"),
            netns_path: namespace.clone(),
            pod_namespace: "default".to_owned(),
            pod_name: "pod".to_owned(),
            pod_uid: String::new(),
            pod_labels: Default::default(),
            static_pod: false,
            port_mappings: Vec::new(),
            limits: Limits::default(),
        };
        network.setup(request).await.expect("a pod").ips[0]
    };
    let address = enter(&nodes[index].path, || block_on(setup)).expect("the node exists");
    (namespace, address)
}

fn object(number: usize, node: &NodeNamespace) -> Node {
    let json = format!(
        r#"{{"metadata":{{"name":"node-{number}"}},"spec":{{"podCIDR":"10.244.{number}.0/24"}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"{}"}}]}}}}"#,
        node.addresses[0]
    );
    Node::decode(json.as_bytes()).expect("a Node")
}

/// Makes the same with a link, a VXLAN and routes, and nothing else.
fn their_pod(directory: &Path, nodes: &[NodeNamespace], index: usize) -> (PathBuf, IpAddr) {
    let namespace = directory.join("pins").join(format!("theirs-{index}"));
    pin_new_namespace(&namespace).expect("a namespace");
    let other = 1 - index;
    let remote = nodes[1 - index].addresses[0];
    let pin = namespace.display().to_string();
    enter(&nodes[index].path, || {
        ip(&format!("link add by-hand type vxlan id 99 dstport 4790 remote {remote} dev eth0"));
        ip("link set by-hand mtu 1430 up");
        ip(&format!("addr add 10.99.0.{index}/31 dev by-hand"));
        ip(&format!("route add 10.98.{other}.0/24 via 10.99.0.{other}"));
        ip("link add hand0 mtu 1430 type veth peer name hand1 mtu 1430");
        ip(&format!("addr add 10.98.{index}.1/24 dev hand0"));
        ip("link set hand0 up");
        // A name for `ip`, which knows namespaces by process or by name only.
        let holder = hold(&namespace);
        ip(&format!("link set hand1 netns {holder}"));
    })
    .unwrap_or_else(|error| panic!("{pin}: {error}"));
    enter(&namespace, || {
        ip("link set lo up");
        ip(&format!("addr add 10.98.{index}.2/24 dev hand1"));
        ip("link set hand1 up");
        ip(&format!("route add default via 10.98.{index}.1"));
    })
    .expect("the pod exists");
    (namespace, format!("10.98.{index}.2").parse().expect("an address"))
}

/// Starts a process in the namespace that stays for a while; returns its pid.
fn hold(namespace: &Path) -> u32 {
    enter(namespace, || Command::new("sleep").arg("5").spawn().expect("sleep runs").id()).expect("the pod exists")
}

fn ip(arguments: &str) {
    let ended = Command::new("ip").args(arguments.split(' ')).status().expect("ip runs");
    assert!(ended.success(), "ip {arguments}");
}

fn serve(namespace: &Path) {
    let listener = enter(namespace, || TcpListener::bind(("0.0.0.0", PORT)).expect("a port")).expect("the pod exists");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut buffer = vec![0; 1 << 18];
            while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
        }
    });
}

fn throughput(to: IpAddr) -> f64 {
    let mut stream = TcpStream::connect(SocketAddr::new(to, PORT)).expect("the server exists");
    let buffer = vec![0; 1 << 18];
    let start = Instant::now();
    let mut sent = 0u64;
    while start.elapsed() < DURATION {
        stream.write_all(&buffer).expect("the server reads");
        sent += buffer.len() as u64;
    }
    sent as f64 * 8.0 / 1e9 / start.elapsed().as_secs_f64()
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}
