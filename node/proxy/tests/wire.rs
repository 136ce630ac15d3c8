//! The packets of Services, as captures at the pods show them: only the serving pods are reached, clients are seen with
//! their own addresses wherever that is possible, and two queries of one socket are both answered.

#![allow(clippy::unwrap_used, dead_code)]

mod node;
#[path = "../../network/tests/wire/mod.rs"]
mod wire;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Barrier;

use corten_network::enter;
use corten_proxy::Mode;
use node::{Node, TIMEOUT, on_node, slice};
use wire::Wire;

const CLUSTER_IP: &str = "10.96.0.10";
const NODE_PORT: u16 = 30080;
const PORT: u16 = 8080;

fn service(name: &str, extra: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default"}},"spec":{{"type":"NodePort","clusterIP":"{CLUSTER_IP}",
            "ports":[{{"name":"p","port":80,"nodePort":{NODE_PORT}}}]{extra}}}}}"#
    )
}

/// Returns the clients that have opened connections to the pod's port since the last call. The last packets of an
/// earlier connection may come late.
fn senders(wire: &Wire) -> BTreeSet<IpAddr> {
    wire.passed().into_iter().filter(|packet| packet.port == PORT && packet.opens).map(|packet| packet.from).collect()
}

/// A request, and the client's address that the serving pod is to see.
struct Request {
    name: &'static str,
    from: Option<&'static str>,
    to: SocketAddr,
    seen_as: IpAddr,
}

/// Checks the requests of one case.
fn check(node: &Node, requests: &[Request]) {
    let capture = |pod: &str| enter(&node.namespace(pod), || Wire::listen("eth0")).unwrap();
    let serving = capture("serving");
    let other = capture("other");
    for Request { name, from, to, seen_as } in requests {
        let answer = node.ask_tcp(*from, *to).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(answer, format!("serving sees {seen_as}"), "{name}");
        assert_eq!(senders(&serving), BTreeSet::from([*seen_as]), "{name}");
        assert_eq!(senders(&other), BTreeSet::new(), "{name}: a pod that serves nothing");
    }
}

fn clients_are_seen_as_themselves_wherever_possible(mode: Mode) {
    on_node(move || async move {
        let mut node = Node::start_in(mode, &["client", "outside", "serving", "other"]).await;
        for pod in ["serving", "other"] {
            node.serve_tcp(pod, PORT);
        }
        // Clients that are not of the cluster's range are outside of it; one pod is left within.
        node.narrow_cluster_to("client");
        let client = node.address("client");
        let outside = node.address("outside");
        let gateway = node.gateway();
        let cluster_ip = SocketAddr::new(CLUSTER_IP.parse().unwrap(), 80);
        let node_port = SocketAddr::new(gateway, NODE_PORT);

        node.service(&service("web", ""));
        let json = slice("web", "TCP", PORT, &[("serving", &node)]);
        node.slice("web-1", &json);
        node.sync();
        check(
            &node,
            &[
                Request { name: "a pod to the cluster address", from: Some("client"), to: cluster_ip, seen_as: client },
                Request {
                    name: "another to the cluster address",
                    from: Some("outside"),
                    to: cluster_ip,
                    seen_as: gateway,
                },
                Request { name: "the node to the cluster address", from: None, to: cluster_ip, seen_as: gateway },
                Request { name: "from outside to a node port", from: Some("outside"), to: node_port, seen_as: gateway },
            ],
        );
        node.service(&service("web", r#","externalTrafficPolicy":"Local""#));
        node.sync();
        check(
            &node,
            &[
                Request {
                    name: "Local, from outside to a node port",
                    from: Some("outside"),
                    to: node_port,
                    seen_as: outside,
                },
                Request { name: "Local, a pod to a node port", from: Some("client"), to: node_port, seen_as: client },
                Request { name: "Local, the node to a node port", from: None, to: node_port, seen_as: gateway },
            ],
        );
    });
}

#[test]
fn clients_are_seen_as_themselves_wherever_possible_by_nf_tables() {
    clients_are_seen_as_themselves_wherever_possible(Mode::Nftables);
}

#[test]
fn clients_are_seen_as_themselves_wherever_possible_by_iptables() {
    clients_are_seen_as_themselves_wherever_possible(Mode::Iptables);
}

/// Resolvers query both IP families at once from one socket. If the kernel drops one of the two, because both open the
/// same connection at the same moment, the name takes five seconds.
#[test]
fn two_questions_of_one_socket_at_once_are_both_answered() {
    const ROUNDS: usize = 500;
    on_node(|| async {
        let mut node = Node::start_in(Mode::Nftables, &["client", "dns"]).await;
        node.serve_udp("dns", 53);
        node.service(&format!(
            r#"{{"metadata":{{"name":"dns","namespace":"default"}},"spec":{{"clusterIP":"{CLUSTER_IP}",
                "ports":[{{"name":"p","port":53,"protocol":"UDP"}}]}}}}"#
        ));
        let json = slice("dns", "UDP", 53, &[("dns", &node)]);
        node.slice("dns-1", &json);
        node.sync();
        let to = SocketAddr::new(CLUSTER_IP.parse().unwrap(), 53);
        let client = node.namespace("client");
        let ask = |socket: &UdpSocket, both: &Barrier| {
            both.wait();
            socket.send_to(b"?", to).unwrap();
        };
        enter(&client, || {
            for round in 0..ROUNDS {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.set_read_timeout(Some(TIMEOUT)).unwrap();
                let both = Barrier::new(2);
                std::thread::scope(|scope| {
                    scope.spawn(|| ask(&socket, &both));
                    ask(&socket, &both);
                });
                for question in 0..2 {
                    socket.recv(&mut [0; 64]).unwrap_or_else(|error| panic!("round {round}, {question}: {error}"));
                }
            }
        })
        .unwrap();
    });
}
