//! Real pods' namespaces on a real bridge, in a network namespace that stands for the node.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corten_network::namespace_node::{pin_new_namespace, unpin};
use corten_network::{Config, Error, PodNetwork, PortMapping, Protocol, SetupRequest, enter};
use nix::sched::{CloneFlags, unshare};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A directory of pinned namespaces; all of them go when the test ends, also by a panic.
struct Pins(tempfile::TempDir);

impl Pins {
    fn new() -> Pins {
        Pins(tempfile::tempdir().unwrap())
    }

    fn add(&self, name: &str) -> PathBuf {
        let path = self.0.path().join("pins").join(name);
        pin_new_namespace(&path).unwrap();
        path
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.0.path().join("pins")).into_iter().flatten().flatten() {
            unpin(&entry.path()).unwrap();
        }
    }
}

/// Runs a test on a thread that is a node of its own.
fn on_node<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn config(directory: &Path) -> Config {
    Config::new("10.244.7.0/24".parse().unwrap(), "10.244.0.0/16".parse().unwrap(), directory)
}

fn request(sandbox_id: &str, netns_path: &Path, port_mappings: Vec<PortMapping>) -> SetupRequest {
    SetupRequest {
        sandbox_id: sandbox_id.to_owned(),
        netns_path: netns_path.to_owned(),
        pod_namespace: "default".to_owned(),
        pod_name: sandbox_id.to_owned(),
        pod_uid: String::new(),
        port_mappings,
    }
}

fn host_port(host_port: u16, protocol: Protocol) -> PortMapping {
    PortMapping { protocol, host_ip: None, host_port, container_port: 80 }
}

/// A server that tells its clients the address they come from; one connection.
fn serve_tcp(namespace: &Path) -> std::thread::JoinHandle<()> {
    let listener = enter(namespace, || TcpListener::bind("0.0.0.0:80").unwrap()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.ip().to_string().as_bytes()).unwrap();
    })
}

/// Connects and reads the address the server saw.
fn ask_tcp(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut seen = String::new();
    stream.read_to_string(&mut seen)?;
    Ok(seen)
}

fn ipv4(ips: &[IpAddr]) -> Ipv4Addr {
    match ips {
        [IpAddr::V4(address)] => *address,
        other => panic!("one IPv4 address expected, got {other:?}"),
    }
}

#[test]
fn pods_reach_each_other_and_the_node_with_their_own_addresses() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        let (a, b) = (pins.add("a"), pins.add("b"));
        let at_a = ipv4(&network.setup(request("a", &a, vec![])).await.unwrap().ips);
        let at_b = ipv4(&network.setup(request("b", &b, vec![])).await.unwrap().ips);
        assert_eq!((at_a.octets()[3], at_b.octets()[3]), (2, 3));

        // The forced way through the node's IP stack must not depend on br_netfilter.
        for bridge_filter in ["1", "0"] {
            let _ = std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", bridge_filter);
            let server = serve_tcp(&b);
            let seen = enter(&a, || ask_tcp((at_b, 80).into()).unwrap()).unwrap();
            assert_eq!(seen, at_a.to_string());
            server.join().unwrap();
        }
        // From the node to the pod, as probes do.
        let server = serve_tcp(&a);
        assert_eq!(ask_tcp((at_a, 80).into()).unwrap(), network.gateway().to_string());
        server.join().unwrap();
    });
}

#[test]
fn what_leaves_the_cluster_is_masqueraded() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        let pod = pins.add("pod");
        network.setup(request("pod", &pod, vec![])).await.unwrap();
        // A node elsewhere, as another network of this node.
        let outside = pins.add("outside");
        let mut elsewhere = config(&pins.0.path().join("elsewhere"));
        elsewhere.bridge = "outside0".to_owned();
        elsewhere.table = "outside".to_owned();
        elsewhere.pod_cidr = "192.0.2.0/24".parse().unwrap();
        let elsewhere = PodNetwork::start(elsewhere).await.unwrap();
        let at_outside = ipv4(&elsewhere.setup(request("outside", &outside, vec![])).await.unwrap().ips);

        let server = serve_tcp(&outside);
        let seen = enter(&pod, || ask_tcp((at_outside, 80).into()).unwrap()).unwrap();
        assert_eq!(seen, elsewhere.gateway().to_string());
        server.join().unwrap();
    });
}

#[test]
fn host_ports_work_from_pods_from_the_node_on_localhost_and_back_to_the_pod_itself() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        bring_loopback_up();
        let (server_pod, client_pod) = (pins.add("server"), pins.add("client"));
        let ports = vec![host_port(8080, Protocol::Tcp), host_port(8080, Protocol::Udp)];
        let at = ipv4(&network.setup(request("server", &server_pod, ports)).await.unwrap().ips);
        let at_client = ipv4(&network.setup(request("client", &client_pod, vec![])).await.unwrap().ips);
        let node: SocketAddr = (network.gateway(), 8080).into();
        let localhost: SocketAddr = (Ipv4Addr::LOCALHOST, 8080).into();
        let gateway = network.gateway().to_string();

        for (from, to, seen) in [
            (Some(&client_pod), node, at_client.to_string()),
            (Some(&server_pod), node, gateway.clone()),
            (None, node, gateway.clone()),
            (None, localhost, gateway.clone()),
        ] {
            let server = serve_tcp(&server_pod);
            let answer = match from {
                Some(pod) => enter(pod, || ask_tcp(to)).unwrap(),
                None => ask_tcp(to),
            };
            assert_eq!(answer.unwrap_or_else(|error| panic!("{from:?} to {to}: {error}")), seen);
            server.join().unwrap();
        }

        let server = enter(&server_pod, || UdpSocket::bind("0.0.0.0:80").unwrap()).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let client = enter(&client_pod, || UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        client.send_to(b"hello", node).unwrap();
        let (_, peer) = server.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(peer.ip(), at_client);

        // The port goes with the pod, and is free for the next one.
        network.teardown("server").await.unwrap();
        assert!(ask_tcp(node).is_err());
        let next = pins.add("next");
        let next_at = network.setup(request("next", &next, vec![host_port(8080, Protocol::Tcp)])).await.unwrap();
        assert_ne!(ipv4(&next_at.ips), at);
        let late = pins.add("late");
        let refused = network.setup(request("late", &late, vec![host_port(8080, Protocol::Tcp)])).await;
        assert!(matches!(refused, Err(Error::HostPortInUse { port: 8080, .. })), "{refused:?}");
        assert_eq!(network.addresses("late"), [] as [IpAddr; 0]);
    });
}

#[test]
fn a_pod_cannot_reach_the_nodes_localhost() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        bring_loopback_up();
        let pod = pins.add("pod");
        network.setup(request("pod", &pod, vec![])).await.unwrap();
        let server = UdpSocket::bind("127.0.0.1:5353").unwrap();
        server.set_nonblocking(true).unwrap();
        let gateway = network.gateway();
        let reachable = UdpSocket::bind((gateway, 5354)).unwrap();
        reachable.set_read_timeout(Some(TIMEOUT)).unwrap();
        enter(&pod, || {
            // The pod sends what is for 127.0.0.1 out by its link, to the node.
            std::fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &"eth0".into()).unwrap();
            socket.send_to(b"hello", "127.0.0.1:5353").unwrap();
            socket.send_to(b"sync", (gateway, 5354)).unwrap();
        })
        .unwrap();
        // One that does arrive bounds the wait for the one that must not.
        reachable.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(server.recv_from(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    });
}

#[test]
fn a_restart_keeps_pods_and_gc_collects_the_dead() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        let (a, b) = (pins.add("a"), pins.add("b"));
        network.setup(request("a", &a, vec![host_port(8080, Protocol::Tcp)])).await.unwrap();
        network.setup(request("b", &b, vec![])).await.unwrap();
        drop(network);

        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        let server = serve_tcp(&a);
        ask_tcp((network.gateway(), 8080).into()).unwrap();
        server.join().unwrap();

        // Someone flushes the firewall: the next collection restores it.
        corten_nftables::Socket::open().unwrap().delete_tables("corten-network").unwrap();
        assert_eq!(network.gc(&BTreeSet::from(["a".to_owned()])).await.unwrap(), 1);
        let server = serve_tcp(&a);
        ask_tcp((network.gateway(), 8080).into()).unwrap();
        server.join().unwrap();
        assert_eq!(network.addresses("b"), [] as [IpAddr; 0]);
        assert_eq!(network.addresses("a").len(), 1);
        network.teardown("b").await.unwrap();

        corten_network::cleanup(network.config()).await.unwrap();
        assert!(corten_nftables::Socket::open().unwrap().tables().unwrap().is_empty());
        assert_eq!(links(), ["lo"]);
    });
}

#[test]
fn a_new_range_replaces_the_old_one() {
    on_node(|| async {
        let pins = Pins::new();
        PodNetwork::start(config(pins.0.path())).await.unwrap();
        let mut other = config(pins.0.path());
        other.pod_cidr = "10.244.8.0/24".parse().unwrap();
        PodNetwork::start(other).await.unwrap();
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(routes.contains("0008F40A") && !routes.contains("0007F40A"), "{routes}");
    });
}

#[test]
fn a_failed_setup_leaves_nothing() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.0.path())).await.unwrap();
        let missing = pins.0.path().join("missing");
        network.setup(request("x", &missing, vec![])).await.unwrap_err();
        assert_eq!(network.addresses("x"), [] as [IpAddr; 0]);
        assert_eq!(links(), ["corten0", "lo"]);
    });
}

/// The links of the calling thread's network namespace.
fn links() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let mut names: Vec<String> =
        table.lines().skip(2).filter_map(|line| Some(line.split(':').next()?.trim().to_owned())).collect();
    names.sort();
    names
}

/// A node's own loopback is up; a fresh namespace's is not.
fn bring_loopback_up() {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: an ifreq is plain old data, for which all zeros is a value.
    let mut request: nix::libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as _;
    request.ifr_name[1] = b'o' as _;
    request.ifr_ifru.ifru_flags = nix::libc::IFF_UP as _;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the request is a whole, initialised ifreq and the socket is open.
    let result = unsafe { nix::libc::ioctl(fd, nix::libc::SIOCSIFFLAGS, &request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
