//! Nodes in namespaces, their pods, and the routes between them.

#![allow(clippy::unwrap_used)]

#[path = "../../dns/tests/api/mod.rs"]
mod api;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::Api;
use corten_api::Typed;
use corten_network::namespace_node::{self, NodeNamespace};
use corten_network::routes::Backend;
use corten_network::{Config, PodNetwork, SetupRequest, enter, routes};
use k8s_openapi::api::core::v1::Node;
use nix::sched::{CloneFlags, unshare};
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Pins below a directory that go when the test ends.
struct Pins(tempfile::TempDir);

impl Drop for Pins {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.0.path().join("netns")).into_iter().flatten().flatten() {
            namespace_node::unpin(&entry.path()).unwrap();
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn node_object(name: &str, cidr: &str, address: Ipv4Addr) -> Node {
    let text = format!(
        r#"{{"metadata":{{"name":"{name}"}},"spec":{{"podCIDR":"{cidr}"}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"{address}"}}]}}}}"#
    );
    Node::decode(text.as_bytes()).unwrap()
}

fn routes_config(node_name: &str, cidr: &str, backend: Backend) -> routes::Config {
    routes::Config { node_name: node_name.to_owned(), backend, pod_cidrs: vec![cidr.parse().unwrap()] }
}

/// One pod on the node of the calling thread; its pin and address.
fn pod_on_node(directory: &Path, node: usize, nodes: &[Node], backend: Backend) -> (PathBuf, Ipv4Addr) {
    block_on(async {
        let state = directory.join(format!("node-{node}"));
        let cidr = format!("10.244.{node}.0/24").parse().unwrap();
        let mut network = Config::new(cidr, "10.244.0.0/16".parse().unwrap(), state);
        network.overhead = backend.overhead();
        let network = PodNetwork::start(network).await.unwrap();
        let config = routes_config(&format!("node-{node}"), &format!("10.244.{node}.0/24"), backend);
        for _ in 0..2 {
            assert_eq!(routes::reconcile(&config, nodes).await.unwrap(), routes::Outcome::Whole);
        }
        assert_eq!(routes::pending(&config, nodes).await.unwrap(), 0, "what stands is recognised");
        let netns_path = directory.join("netns").join(format!("pod-{node}"));
        namespace_node::pin_new_namespace(&netns_path).unwrap();
        let request = SetupRequest {
            sandbox_id: format!("pod-{node}"),
            netns_path: netns_path.clone(),
            pod_namespace: "default".to_owned(),
            pod_name: "web".to_owned(),
            pod_uid: String::new(),
            port_mappings: Vec::new(),
        };
        match network.setup(request).await.unwrap().ips[0] {
            IpAddr::V4(address) => (netns_path, address),
            IpAddr::V6(_) => unreachable!(),
        }
    })
}

/// What address a server in `to` sees of a client in `from`.
fn seen(from: &Path, to: &Path, address: Ipv4Addr) -> String {
    let listener = enter(to, || TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.ip().to_string().as_bytes()).unwrap();
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

/// Three nodes: the machine itself, whose address is of another subnet, and two in namespaces.
fn three_nodes(backend: Backend) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        let pins = Pins(tempfile::tempdir().unwrap());
        let directory = pins.0.path().to_owned();
        let cluster = "10.244.0.0/16".parse().unwrap();
        let config = namespace_node::Config::new(&directory, cluster);
        let namespaces: Vec<NodeNamespace> = block_on(async {
            let mut made = Vec::new();
            for index in 0..2 {
                let address = config.address(index).unwrap();
                made.push(namespace_node::create(&config, &format!("node-{}", index + 1), address).await.unwrap());
            }
            // Repeating it keeps a namespace that is whole, and replaces one that is not.
            let identity = |node: &NodeNamespace| std::fs::metadata(&node.path).unwrap().ino();
            let before = identity(&made[1]);
            namespace_node::create(&config, "node-2", made[1].address).await.unwrap();
            assert_eq!(identity(&made[1]), before);
            namespace_node::unpin(&made[1].path).unwrap();
            std::fs::write(&made[1].path, b"").unwrap();
            made[1] = namespace_node::create(&config, "node-2", made[1].address).await.unwrap();
            made
        });

        // Plain routes also lead to a machine whose address, here on its pod bridge, is not of the nodes' subnet. The
        // ends of an overlay must be outside of it.
        let own = match backend {
            Backend::HostGateway => Ipv4Addr::new(10, 244, 0, 1),
            Backend::Vxlan => config.gateway().unwrap(),
        };
        let nodes = [
            node_object("node-0", "10.244.0.0/24", own),
            node_object("node-1", "10.244.1.0/24", namespaces[0].address),
            node_object("node-2", "10.244.2.0/24", namespaces[1].address),
        ];
        let mut pods = vec![pod_on_node(&directory, 0, &nodes, backend)];
        for (index, node) in namespaces.iter().enumerate() {
            pods.push(enter(&node.path, || pod_on_node(&directory, index + 1, &nodes, backend)).unwrap());
        }
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0), (0, 2)] {
            let answer = seen(&pods[from].0, &pods[to].0, pods[to].1);
            assert_eq!(answer, pods[from].1.to_string(), "from node {from} to node {to}");
        }

        block_on(async {
            routes::reconcile(&routes_config("node-0", "10.244.0.0/24", backend), &nodes[..2]).await.unwrap();
            let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
            assert!(table.contains("0001F40A") && !table.contains("0002F40A"), "{table}");
            routes::cleanup().await.unwrap();
            namespace_node::cleanup(&config).await.unwrap();
        });
        let table = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(!table.contains("0001F40A") && !table.contains("corten-nodes"), "{table}");
        assert!(!namespaces[0].path.exists());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn pods_of_three_nodes_reach_each_other_without_translation() {
    three_nodes(Backend::HostGateway);
}

#[test]
fn pods_of_three_nodes_reach_each_other_through_vxlan() {
    three_nodes(Backend::Vxlan);
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

#[test]
fn routes_follow_the_nodes_of_the_api() {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        let directory = tempfile::tempdir().unwrap();
        block_on(async {
            let cidr = "10.244.0.0/24".parse().unwrap();
            let network = Config::new(cidr, "10.244.0.0/16".parse().unwrap(), directory.path());
            PodNetwork::start(network).await.unwrap();
            let api = Api::default();
            let node = |name: &str, cidr: &str, last: u8| {
                let node = node_object(name, cidr, Ipv4Addr::new(10, 244, 0, last));
                String::from_utf8(node.encode().to_vec()).unwrap()
            };
            api.put("nodes", &node("self", "10.244.0.0/24", 1));
            api.put("nodes", &node("b", "10.244.1.0/24", 201));
            let shutdown = CancellationToken::new();
            let config = routes_config("self", "10.244.0.0/24", Backend::HostGateway);
            let running = tokio::spawn(routes::run(config, api.client(), shutdown.clone()));
            route_becomes("0001F40A", true).await;
            api.put("nodes", &node("c", "10.244.2.0/24", 202));
            route_becomes("0002F40A", true).await;
            api.delete("nodes", "", "b");
            route_becomes("0001F40A", false).await;
            shutdown.cancel();
            running.await.unwrap().unwrap();
            route_becomes("0002F40A", true).await;
        });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
