//! Addresses of load balancers on two nodes in namespaces: held by one node, and taken over when it is lost.

#![allow(clippy::unwrap_used, dead_code)]

#[path = "../../dns/tests/api/mod.rs"]
mod api;
mod namespaces;

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use api::Api;
use corten_network::namespace_node::{self, NodeNamespace};
use corten_network::{announce, enter};
use namespaces::{Pins, block_on, cable, link_is, listen, on_machine};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const BOUND: Duration = Duration::from_secs(300);
const ATTEMPT: Duration = Duration::from_secs(1);
/// Addresses of the nodes' subnets, so that the client is a neighbour.
const ADDRESSES: [&str; 2] = ["10.89.0.200", "fd89::200"];

fn node(api: &Api, name: &str, ready: bool) {
    let status = if ready { "True" } else { "Unknown" };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": status}]}});
    api.put("nodes", &node.to_string());
}

/// Starts a server that sends its node's name, on every address of the node.
fn serve(node: &NodeNamespace) {
    let listener = listen(&node.path);
    let name = node.name.clone();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut stream, name.as_bytes());
        }
    });
}

fn announcer(path: PathBuf, name: String, api: &Api, shutdown: CancellationToken) -> std::thread::JoinHandle<()> {
    let client = api.client();
    std::thread::spawn(move || {
        let pool = ADDRESSES.map(|address| address.parse::<IpAddr>().unwrap()).map(|address| (address, address));
        let config = announce::Config::new(name, pool.to_vec());
        enter(&path, || block_on(announce::run(config, client, shutdown)).unwrap()).unwrap();
    })
}

/// Returns the name of the node that answers at an address; empty if none does.
fn answers(address: &str) -> String {
    let ask = || {
        let to = SocketAddr::new(address.parse().unwrap(), 80);
        let mut stream = TcpStream::connect_timeout(&to, ATTEMPT).ok()?;
        stream.set_read_timeout(Some(ATTEMPT)).ok()?;
        let mut name = String::new();
        stream.read_to_string(&mut name).ok()?;
        Some(name)
    };
    ask().unwrap_or_default()
}

fn until_answered_by(address: &str, expected: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + BOUND;
    loop {
        let name = answers(address);
        if expected(&name) {
            return name;
        }
        assert!(Instant::now() < deadline, "{address} is answered by {name:?}");
    }
}

#[test]
fn a_lost_nodes_addresses_are_taken_over() {
    on_machine(|| {
        let pins = Pins::new();
        let ranges = ["10.244.0.0/16", "fd00:10:244::/48"].map(|range| range.parse().unwrap());
        let config = namespace_node::Config::new(pins.path(), &ranges);
        let nodes: Vec<NodeNamespace> = block_on(async {
            let mut made = Vec::new();
            for (index, name) in ["a", "b"].iter().enumerate() {
                let addresses = config.addresses(index).unwrap();
                made.push(namespace_node::create(&config, name, &addresses).await.unwrap());
            }
            made
        });
        let api = Api::default();
        let ingress: Vec<_> = ADDRESSES.iter().map(|address| json!({"ip": address})).collect();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "web"},
            "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": ingress}}});
        api.put("services", &service.to_string());
        for name in ["a", "b"] {
            node(&api, name, true);
        }
        let shutdown = CancellationToken::new();
        let running: Vec<_> = nodes
            .iter()
            .map(|node| {
                serve(node);
                announcer(node.path.clone(), node.name.clone(), &api, shutdown.clone())
            })
            .collect();
        for address in ADDRESSES {
            let holder = until_answered_by(address, |name| !name.is_empty());
            let other = if holder == "a" { "b" } else { "a" };
            // The holder's link goes down, and the control plane notices.
            let cable = cable(nodes.iter().find(|node| node.name == holder).unwrap());
            link_is(&cable, "down");
            node(&api, &holder, false);
            until_answered_by(address, |name| name == other);
            // The link comes up: the address returns to its holder, and no other node keeps it.
            link_is(&cable, "up");
            node(&api, &holder, true);
            until_answered_by(address, |name| name == holder);
        }
        shutdown.cancel();
        for thread in running {
            thread.join().unwrap();
        }
        assert_eq!(answers(ADDRESSES[0]), "", "addresses are released at the end");
        assert_eq!(answers(ADDRESSES[1]), "");
        block_on(namespace_node::cleanup(&config)).unwrap();
    });
}

#[test]
fn addresses_of_a_killed_announcer_are_taken_back_and_expire() {
    on_machine(|| {
        let pins = Pins::new();
        let ranges = ["10.244.0.0/16", "fd00:10:244::/48"].map(|range| range.parse().unwrap());
        let config = namespace_node::Config::new(pins.path(), &ranges);
        let made = block_on(namespace_node::create(&config, "a", &config.addresses(0).unwrap())).unwrap();
        let addresses = || {
            let output = enter(&made.path, || std::process::Command::new("ip").args(["-o", "addr"]).output().unwrap());
            let lines = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
            ADDRESSES.map(|one| lines.lines().find(|line| line.contains(&format!(" {one}/"))).map(str::to_owned))
        };
        let until = |description: &str, condition: &dyn Fn(&[Option<String>; 2]) -> bool| {
            let deadline = Instant::now() + BOUND;
            while !condition(&addresses()) {
                assert!(Instant::now() < deadline, "{description}: {:?}", addresses());
            }
        };
        let run = |commands: &[&str]| {
            for command in commands {
                let ip = || std::process::Command::new("ip").args(command.split(' ')).status().unwrap();
                assert!(enter(&made.path, ip).unwrap().success(), "{command}");
            }
        };
        // As a killed announcer left them, and no Service needs them any more.
        run(&[
            "link add corten.lb type bridge",
            "addr add 10.89.0.200/32 dev corten.lb",
            "addr add fd89::200/128 dev eth0",
        ]);
        let api = Api::default();
        node(&api, "a", true);
        let shutdown = CancellationToken::new();
        let running = announcer(made.path.clone(), made.name.clone(), &api, shutdown.clone());
        until("leftovers go", &|found| found.iter().all(Option::is_none));

        let ingress: Vec<_> = ADDRESSES.iter().map(|address| json!({"ip": address})).collect();
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "web"},
            "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": ingress}}});
        api.put("services", &service.to_string());
        // Each has a lifetime, which only the living holder renews.
        let ends = |line: &Option<String>| {
            line.as_ref().is_some_and(|line| line.contains("valid_lft") && !line.contains("valid_lft forever"))
        };
        until("addresses are lent", &|found| found.iter().all(ends));
        shutdown.cancel();
        running.join().unwrap();
        assert_eq!(addresses(), [None, None]);
        block_on(namespace_node::cleanup(&config)).unwrap();
    });
}
