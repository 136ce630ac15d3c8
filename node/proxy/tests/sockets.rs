//! Services at the sockets of a control group, on a node that is a network namespace. The rules of nf_tables are
//! deleted first, so that the programs translated everything that arrives.

#![allow(clippy::unwrap_used)]

mod node;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corten_nftables::{Batch, IpFamily, Socket};
use corten_proxy::{Mode, supports_sockets};
use node::{Node, SILENCE, TIMEOUT, on_node, slice, slice6};

/// A control group that this process is in, until it is dropped.
struct Group {
    path: PathBuf,
    before: PathBuf,
}

impl Group {
    fn enter() -> Option<Group> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 ")))?;
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let before = Path::new(mount).join(own);
        let path = Path::new(mount).join(format!("corten-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("cgroup.procs"), "0").unwrap();
        Some(Group { path, before })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::write(self.before.join("cgroup.procs"), "0").unwrap();
        std::fs::remove_dir(&self.path).unwrap();
    }
}

fn service(name: &str, protocol: &str, addresses: [&str; 2], spec: &str) -> String {
    let [four, six] = addresses;
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default"}},
            "spec":{{"clusterIP":"{four}","clusterIPs":["{four}","{six}"],
                     "ports":[{{"name":"p","protocol":"{protocol}","port":80}}]{spec}}}}}"#
    )
}

/// Deletes the rules; the proxy does not notice before its next check.
fn delete_rules(node: &Node) {
    let mut batch = Batch::new();
    for ip in IpFamily::ALL {
        batch.destroy_table(&ip.table(&node.config().table));
    }
    Socket::open().unwrap().apply(batch).unwrap();
}

/// Returns the answer of a server, and the socket's peer.
fn ask(node: &Node, to: SocketAddr) -> std::io::Result<(String, SocketAddr)> {
    ask_within(TIMEOUT, node, to)
}

fn is_refused(node: &Node, to: SocketAddr) -> bool {
    ask_within(SILENCE, node, to).is_err()
}

fn ask_within(connects: Duration, node: &Node, to: SocketAddr) -> std::io::Result<(String, SocketAddr)> {
    node.enter(Some("c"), || {
        let mut stream = TcpStream::connect_timeout(&to, connects)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok((answer, stream.peer_addr()?))
    })
}

#[test]
fn sockets_are_connected_to_endpoints_and_see_the_service() {
    let Some(group) = supports_sockets().ok().and_then(|()| Group::enter()) else {
        eprintln!("skipped: this kernel takes no programs at sockets");
        return;
    };
    let cgroup = group.path.clone();
    on_node(move || async move {
        let mut node = Node::start_at_sockets(cgroup, &["a", "b", "c"]).await;
        node.service(&service("web", "TCP", ["10.96.0.1", "fd00:96::1"], ""));
        node.service(&service("dns", "UDP", ["10.96.0.2", "fd00:96::2"], ""));
        node.service(&service("sticky", "TCP", ["10.96.0.3", "fd00:96::3"], r#","sessionAffinity":"ClientIP""#));
        for (name, protocol) in [("web", "TCP"), ("dns", "UDP"), ("sticky", "TCP")] {
            node.slice(&format!("{name}-4"), &slice(name, protocol, 8080, &[("a", &node), ("b", &node)]));
            node.slice(&format!("{name}-6"), &slice6(name, protocol, 8080, &[("a", &node), ("b", &node)]));
        }
        node.sync();
        for pod in ["a", "b"] {
            node.serve_tcp(pod, 8080);
            node.serve_udp(pod, 8080);
        }
        let sticky: SocketAddr = "10.96.0.3:80".parse().unwrap();
        assert!(ask(&node, sticky).is_ok(), "the rules translate a Service with affinity");
        connected_udp(&node);

        delete_rules(&node);
        assert!(is_refused(&node, sticky), "and only the rules do");
        let own = [("10.96.0.1:80", node.address("c")), ("[fd00:96::1]:80", node.address6("c"))];
        for (service, client) in own {
            let service: SocketAddr = service.parse().unwrap();
            let answers: BTreeSet<_> = (0..40).map(|_| ask(&node, service).unwrap()).collect();
            // Both endpoints, each of which sees the client itself; and the client sees the Service.
            let expected = ["a", "b"].map(|pod| (format!("{pod} sees {client}"), service));
            assert_eq!(answers, BTreeSet::from(expected));
            // A port that the Service does not have is refused.
            assert!(is_refused(&node, SocketAddr::new(service.ip(), 81)));
        }
        mapped_addresses(&node);
        for service in ["10.96.0.2:80", "[fd00:96::2]:80"] {
            unconnected_udp(&node, service.parse().unwrap());
        }

        changes(&mut node);
    });
    drop(group);
}

/// Checks a connected socket: it would take no answer of another address, so the rules translate it.
fn connected_udp(node: &Node) {
    for to in ["10.96.0.2:80", "[fd00:96::2]:80"] {
        let answer = node.ask_udp(Some("c"), to.parse().unwrap()).unwrap();
        assert!(answer.contains(" sees "), "{answer}");
    }
}

/// Checks a socket of IPv6 that connects to an address of IPv4, as those of Java do.
fn mapped_addresses(node: &Node) {
    let mapped = SocketAddr::new(Ipv4Addr::new(10, 96, 0, 1).to_ipv6_mapped().into(), 80);
    let (answer, peer) = ask(node, mapped).unwrap();
    assert!(answer.ends_with(&format!("sees {}", node.address("c"))), "{answer}");
    assert_eq!(peer, mapped);
}

fn unconnected_udp(node: &Node, service: SocketAddr) {
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let (answer, from) = node.enter(Some("c"), || {
            let socket = UdpSocket::bind(if service.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let mut buffer = [0; 64];
            let mut exchange = || {
                socket.send_to(b"?", service).unwrap();
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                (String::from_utf8_lossy(&buffer[..length]).into_owned(), from)
            };
            let first = exchange();
            assert_eq!(first, exchange(), "a socket stays with its endpoint");
            first
        });
        assert_eq!(from, service, "the answer is the Service's");
        seen.insert(answer[..1].to_owned());
    }
    assert_eq!(seen, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}

/// Checks endpoints that are added and deleted, a deleted Service, and the end of the proxy.
fn changes(node: &mut Node) {
    let web: SocketAddr = "10.96.0.1:80".parse().unwrap();
    node.slice("web-4", &slice("web", "TCP", 8080, &[("b", node)]));
    node.sync();
    delete_rules(node);
    for _ in 0..20 {
        assert!(ask(node, web).unwrap().0.starts_with("b sees"));
    }
    node.delete_service("web");
    node.sync();
    delete_rules(node);
    assert!(is_refused(node, web), "the Service is deleted");
    assert!(is_refused(node, "[fd00:96::1]:80".parse().unwrap()));
    node.service(&service("web", "TCP", ["10.96.0.1", "fd00:96::1"], ""));
    node.sync();
    delete_rules(node);
    assert!(ask(node, web).is_ok());
    assert_eq!(node.config().mode, Mode::Ebpf);
    node.restart_proxy();
    assert!(is_refused(node, web), "the programs end with their proxy");
}
