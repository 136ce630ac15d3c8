//! Real pods' namespaces on a real bridge, in a network namespace that is the node.

#![allow(clippy::unwrap_used)]

mod namespaces;
mod sctp;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use corten_network::{Config, Error, Limits, PodNetwork, PortMapping, Protocol, SetupRequest, enter};
use namespaces::{Pins, link_is, listen, on_node, request};

const TIMEOUT: Duration = Duration::from_secs(60);

fn config(directory: &Path) -> Config {
    let ranges = |cidrs: [&str; 2]| cidrs.map(|cidr| cidr.parse().unwrap());
    Config::new(&ranges(["10.244.7.0/24", "fd00:7::/64"]), &ranges(["10.244.0.0/16", "fd00::/16"]), directory)
}

fn host_port(host_port: u16, protocol: Protocol) -> PortMapping {
    PortMapping { protocol, host_ip: None, host_port, container_port: 80 }
}

/// Starts a server that sends the client's address to its client; one connection.
fn serve_tcp(namespace: &Path) -> std::thread::JoinHandle<()> {
    let listener = listen(namespace);
    std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.ip().to_canonical().to_string().as_bytes()).unwrap();
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

/// Returns the addresses of a pod, which has one of each IP family.
fn both(ips: &[IpAddr]) -> [IpAddr; 2] {
    match ips {
        [v4 @ IpAddr::V4(_), v6 @ IpAddr::V6(_)] => [*v4, *v6],
        other => panic!("an address of each version expected, got {other:?}"),
    }
}

#[test]
fn pods_reach_each_other_and_the_node_with_their_own_addresses() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let a = pins.add("a");
        let b = pins.add("b");
        let at_a = both(&network.setup(request("a", &a, vec![])).await.unwrap().ips);
        let at_b = both(&network.setup(request("b", &b, vec![])).await.unwrap().ips);
        assert_eq!(at_a.map(|ip| ip.to_string()), ["10.244.7.2", "fd00:7::2"]);
        assert_eq!(at_b.map(|ip| ip.to_string()), ["10.244.7.3", "fd00:7::3"]);

        // The forced path through the node's IP stack must not depend on br_netfilter.
        for bridge_filter in ["1", "0"] {
            for setting in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"] {
                let _ = std::fs::write(format!("/proc/sys/net/bridge/{setting}"), bridge_filter);
            }
            for (from, to) in at_a.into_iter().zip(at_b) {
                let server = serve_tcp(&b);
                let seen = enter(&a, || ask_tcp((to, 80).into()).unwrap()).unwrap();
                assert_eq!(seen, from.to_string());
                server.join().unwrap();
            }
        }
        // From the node to the pod, as probes do.
        for (pod, gateway) in at_a.into_iter().zip(network.gateways()) {
            let server = serve_tcp(&a);
            assert_eq!(ask_tcp((pod, 80).into()).unwrap(), gateway.to_string());
            server.join().unwrap();
        }
    });
}

#[test]
fn packets_that_leave_the_cluster_are_masqueraded() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let pod = pins.add("pod");
        network.setup(request("pod", &pod, vec![])).await.unwrap();
        // A node elsewhere, as another network of this node.
        let outside = pins.add("outside");
        let mut elsewhere = config(&pins.path().join("elsewhere"));
        elsewhere.bridge = "outside0".to_owned();
        elsewhere.table = "outside".to_owned();
        elsewhere.pod_cidrs = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/64".parse().unwrap()];
        let elsewhere = PodNetwork::start(elsewhere).await.unwrap();
        let at_outside = both(&elsewhere.setup(request("outside", &outside, vec![])).await.unwrap().ips);

        for (address, gateway) in at_outside.into_iter().zip(elsewhere.gateways()) {
            let server = serve_tcp(&outside);
            let seen = enter(&pod, || ask_tcp((address, 80).into()).unwrap()).unwrap();
            assert_eq!(seen, gateway.to_string());
            server.join().unwrap();
        }
    });
}

#[test]
fn host_ports_work_from_pods_from_the_node_on_localhost_and_back_to_the_pod_itself() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        link_is("lo", "up");
        let server_pod = pins.add("server");
        let client_pod = pins.add("client");
        let ports = vec![host_port(8080, Protocol::Tcp), host_port(8080, Protocol::Udp)];
        let at = both(&network.setup(request("server", &server_pod, ports)).await.unwrap().ips);
        let [at_client, at_client6] = both(&network.setup(request("client", &client_pod, vec![])).await.unwrap().ips);
        let [node, node6] = both(network.gateways()).map(|gateway| SocketAddr::new(gateway, 8080));
        let localhost: SocketAddr = (Ipv4Addr::LOCALHOST, 8080).into();
        let gateway = node.ip().to_string();

        for (from, to, seen) in [
            (Some(&client_pod), node, at_client.to_string()),
            (Some(&server_pod), node, gateway.clone()),
            (None, node, gateway.clone()),
            (None, localhost, gateway.clone()),
            (Some(&client_pod), node6, at_client6.to_string()),
            (Some(&server_pod), node6, node6.ip().to_string()),
            (None, node6, node6.ip().to_string()),
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

        // The port is released with the pod, and is free for the next one.
        network.teardown("server").await.unwrap();
        assert!(ask_tcp(node).is_err() && ask_tcp(node6).is_err());
        let next = pins.add("next");
        let next_at = network.setup(request("next", &next, vec![host_port(8080, Protocol::Tcp)])).await.unwrap();
        assert_ne!(both(&next_at.ips), at);
        let late = pins.add("late");
        let refused = network.setup(request("late", &late, vec![host_port(8080, Protocol::Tcp)])).await;
        assert!(matches!(refused, Err(Error::HostPortInUse { port: 8080, .. })), "{refused:?}");
        assert_eq!(network.addresses("late"), [] as [IpAddr; 0]);
    });
}

#[test]
fn host_ports_of_sctp_lead_to_the_pod_and_back() {
    use sctp::{Chunk, Raw, Received};
    use std::net::SocketAddrV4;
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let server = pins.add("server");
        let client = pins.add("client");
        network.setup(request("server", &server, vec![host_port(8080, Protocol::Sctp)])).await.unwrap();
        let own = network.setup(request("client", &client, vec![])).await.unwrap().ips[0];
        let IpAddr::V4(gateway) = network.gateways()[0] else { panic!("{:?}", network.gateways()) };
        let at_server = enter(&server, || Raw::open(TIMEOUT)).unwrap();
        let at_client = enter(&client, || Raw::open(TIMEOUT)).unwrap();
        let node = SocketAddrV4::new(gateway, 8080);
        at_client.send(1001, node, Chunk::Init);
        let received = at_server.receive().unwrap();
        assert_eq!((IpAddr::V4(*received.from.ip()), received.port, received.chunk), (own, 80, Chunk::Init as u8));
        at_server.send(80, received.from, Chunk::InitAck);
        assert_eq!(at_client.receive().unwrap(), Received { from: node, port: 1001, chunk: Chunk::InitAck as u8 });
    });
}

#[test]
fn a_pod_cannot_reach_the_nodes_localhost() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        link_is("lo", "up");
        let pod = pins.add("pod");
        network.setup(request("pod", &pod, vec![])).await.unwrap();
        let server = UdpSocket::bind("127.0.0.1:5353").unwrap();
        server.set_nonblocking(true).unwrap();
        let gateway = network.gateways()[0];
        let reachable = UdpSocket::bind((gateway, 5354)).unwrap();
        reachable.set_read_timeout(Some(TIMEOUT)).unwrap();
        enter(&pod, || {
            // The pod sends packets for 127.0.0.1 by its link, to the node.
            std::fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1").unwrap();
            std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::BindToDevice, &"eth0".into()).unwrap();
            socket.send_to(b"hello", "127.0.0.1:5353").unwrap();
            socket.send_to(b"sync", (gateway, 5354)).unwrap();
        })
        .unwrap();
        // A packet that does arrive bounds the wait for the one that must not.
        reachable.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(server.recv_from(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    });
}

/// Tests frames past the node: to another pod's hardware address, by broadcast, and packets with another pod's address.
#[test]
fn raw_frames_reach_the_node_alone_and_with_the_pods_own_address_only() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let a = pins.add("a");
        let b = pins.add("b");
        let at_a = both(&network.setup(request("a", &a, vec![])).await.unwrap().ips);
        let at_b = both(&network.setup(request("b", &b, vec![])).await.unwrap().ips);
        let server = enter(&b, || UdpSocket::bind("0.0.0.0:7777").unwrap()).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let [IpAddr::V4(own), IpAddr::V4(to), IpAddr::V4(gateway)] = [at_a[0], at_b[0], network.gateways()[0]] else {
            unreachable!()
        };
        let mac = |address: Ipv4Addr| [&[0x0a, 0x58][..], &address.octets()].concat();
        let forged = Ipv4Addr::new(10, 244, 7, 99);
        for bridge_filter in ["1", "0"] {
            let _ = std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", bridge_filter);
            enter(&a, || {
                send_frame(&mac(own), &mac(to), IPV4, &datagram(own, to, b"neighbour"));
                send_frame(&mac(own), &[0xff; 6], IPV4, &datagram(own, to, b"everybody"));
                send_frame(&mac(own), &mac(gateway), IPV4, &datagram(forged, to, b"forged"));
                send_frame(&mac(to), &mac(gateway), IPV4, &datagram(own, to, b"disguised"));
                send_frame(&mac(own), &mac(gateway), IPV4, &datagram(own, to, b"honest"));
            })
            .unwrap();
            // The last one arrives, and bounds the wait for those before it.
            let mut buffer = [0; 64];
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..length], from.ip()), (&b"honest"[..], IpAddr::V4(own)));
        }
    });
}

/// Tests a pod that claims another pod's address, by every method of neighbour discovery: the node goes on sending to
/// the other pod.
#[test]
fn no_pod_takes_the_address_of_another() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let a = pins.add("a");
        let b = pins.add("b");
        let at_a = both(&network.setup(request("a", &a, vec![])).await.unwrap().ips);
        let at_b = both(&network.setup(request("b", &b, vec![])).await.unwrap().ips);
        let server = enter(&b, || UdpSocket::bind("[::]:7777").unwrap()).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        let thief = enter(&a, || UdpSocket::bind("[::]:7777").unwrap()).unwrap();
        thief.set_nonblocking(true).unwrap();
        let [IpAddr::V4(own), IpAddr::V4(other), IpAddr::V4(gateway)] = [at_a[0], at_b[0], network.gateways()[0]]
        else {
            unreachable!()
        };
        let (IpAddr::V6(own6), IpAddr::V6(other6)) = (at_a[1], at_b[1]) else { unreachable!() };
        let mac = |address: Ipv4Addr| [&[0x0a, 0x58][..], &address.octets()].concat();
        let all_nodes = [0x33, 0x33, 0, 0, 0, 1];
        enter(&a, || {
            send_frame(&mac(own), &[0xff; 6], ARP, &arp_reply(&mac(own), other));
            send_frame(&mac(own), &mac(gateway), ARP, &arp_reply(&mac(own), other));
            send_frame(&mac(other), &mac(gateway), IPV4, &datagram(own, gateway, b"moved"));
            send_frame(&mac(own), &mac(gateway), IPV6, &advertisement(own6, &mac(own), other6));
            send_frame(&mac(own), &all_nodes, IPV6, &advertisement(own6, &mac(own), other6));
        })
        .unwrap();
        for to in [IpAddr::V4(other), IpAddr::V6(other6)] {
            let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
            socket.send_to(b"letter", (to, 7777)).unwrap();
            let mut buffer = [0; 64];
            let (length, _) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"letter", "{to}");
        }
        assert!(thief.recv(&mut [0; 64]).is_err(), "a packet of another pod");
        network.teardown("b").await.unwrap();
        let neighbours =
            std::process::Command::new("ip").args(["neighbour", "show", "nud", "permanent"]).output().unwrap();
        let neighbours = String::from_utf8_lossy(&neighbours.stdout).into_owned();
        assert!(neighbours.contains(&own.to_string()) && !neighbours.contains(&format!("{other} ")), "{neighbours}");
    });
}

/// Makes an ARP reply that an address is behind a hardware address.
fn arp_reply(mac: &[u8], claimed: Ipv4Addr) -> Vec<u8> {
    let claimed = claimed.octets();
    [&[0, 1, 8, 0, 6, 4, 0, 2][..], mac, &claimed, &[0xff; 6], &claimed].concat()
}

/// Makes a neighbour advertisement with the override flag: an address is behind a hardware address from now on.
fn advertisement(from: std::net::Ipv6Addr, mac: &[u8], claimed: std::net::Ipv6Addr) -> Vec<u8> {
    let to: std::net::Ipv6Addr = "ff02::1".parse().unwrap();
    let message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &claimed.octets(), &[2, 1], mac].concat();
    let mut head = vec![0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    head.extend(from.octets());
    head.extend(to.octets());
    let pseudo = [&from.octets()[..], &to.octets(), &[0, 0, 0, message.len() as u8, 0, 0, 0, 58], &message].concat();
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    let mut message = message;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    [head, message].concat()
}

/// Makes an IPv4 packet of UDP to port 7777.
fn datagram(from: Ipv4Addr, to: Ipv4Addr, data: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let mut head = vec![0x45, 0];
    head.extend(length(28 + data.len()));
    head.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    head.extend(from.octets());
    head.extend(to.octets());
    let sum: u32 = head.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap();
    head[10..12].copy_from_slice(&checksum.to_be_bytes());
    // A checksum of zero means that there is none.
    head.extend([[0x1f, 0x90], [0x1e, 0x61], length(8 + data.len()), [0, 0]].concat());
    head.extend(data);
    head
}

const IPV4: [u8; 2] = [0x08, 0];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [0x08, 0x06];

/// Sends an Ethernet frame on the pod's link.
fn send_frame(from: &[u8], to: &[u8], kind: [u8; 2], packet: &[u8]) {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let raw = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None).unwrap();
    let frame = [to, from, &kind, packet].concat();
    // SAFETY: a sockaddr_ll is plain old data, for which all zeros is a value.
    let mut address: nix::libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = nix::libc::AF_PACKET as u16;
    address.sll_ifindex = nix::net::if_::if_nametoindex("eth0").unwrap() as i32;
    address.sll_halen = 6;
    // SAFETY: the frame and the address live until the call returns, and their lengths are their own.
    let sent = unsafe {
        nix::libc::sendto(
            std::os::fd::AsRawFd::as_raw_fd(&raw),
            frame.as_ptr().cast(),
            frame.len(),
            0,
            std::ptr::from_ref(&address).cast(),
            std::mem::size_of_val(&address) as nix::libc::socklen_t,
        )
    };
    assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_restart_keeps_pods_and_gc_collects_the_dead() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let a = pins.add("a");
        let b = pins.add("b");
        network.setup(request("a", &a, vec![host_port(8080, Protocol::Tcp)])).await.unwrap();
        network.setup(request("b", &b, vec![])).await.unwrap();
        drop(network);

        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let server = serve_tcp(&a);
        ask_tcp((network.gateways()[0], 8080).into()).unwrap();
        server.join().unwrap();

        // Another program flushes the firewall: the next collection restores it.
        corten_nftables::Socket::open().unwrap().delete_tables("corten-network").unwrap();
        assert_eq!(network.gc(&BTreeSet::from(["a".to_owned()])).await.unwrap(), 1);
        let server = serve_tcp(&a);
        ask_tcp((network.gateways()[0], 8080).into()).unwrap();
        server.join().unwrap();
        assert_eq!(network.addresses("b"), [] as [IpAddr; 0]);
        assert_eq!(network.addresses("a").len(), 2);
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
        PodNetwork::start(config(pins.path())).await.unwrap();
        let mut other = config(pins.path());
        other.pod_cidrs = vec!["10.244.8.0/24".parse().unwrap(), "fd00:8::/64".parse().unwrap()];
        PodNetwork::start(other).await.unwrap();
        let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
        assert!(routes.contains("0008F40A") && !routes.contains("0007F40A"), "{routes}");
        let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
        let range = |number: u8| format!("fd00{number:04x}{} 40", "0".repeat(24));
        assert!(routes.contains(&range(8)) && !routes.contains(&range(7)), "{routes}");
    });
}

#[test]
fn pods_may_have_ipv6_alone() {
    on_node(|| async {
        let pins = Pins::new();
        let mut alone = config(pins.path());
        alone.pod_cidrs.remove(0);
        let network = PodNetwork::start(alone).await.unwrap();
        let a = pins.add("a");
        let b = pins.add("b");
        let at_a = network.setup(request("a", &a, vec![])).await.unwrap().ips;
        let at_b = network.setup(request("b", &b, vec![host_port(8080, Protocol::Tcp)])).await.unwrap().ips;
        assert_eq!(at_a, [IpAddr::from(Ipv6Addr::new(0xfd00, 7, 0, 0, 0, 0, 0, 2))]);
        for to in [SocketAddr::new(at_b[0], 80), SocketAddr::new(network.gateways()[0], 8080)] {
            let server = serve_tcp(&b);
            assert_eq!(enter(&a, || ask_tcp(to).unwrap()).unwrap(), at_a[0].to_string());
            server.join().unwrap();
        }
        // Its link has IPv6 only, as far as it has addresses of the cluster.
        let table = enter(&a, || std::fs::read_to_string("/proc/thread-self/net/route").unwrap()).unwrap();
        assert_eq!(table.lines().count(), 1, "{table}");
    });
}

#[test]
fn limits_are_token_buckets_at_both_ends_of_the_link() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let pod = pins.add("pod");
        let free = pins.add("free");
        let limits = Limits { ingress: Some(10_000_000), egress: Some(5_000_000) };
        let limited = SetupRequest { limits, ..request("pod", &pod, vec![]) };
        let attachment = network.setup(limited).await.unwrap();
        let unlimited = network.setup(request("free", &free, vec![])).await.unwrap();
        let buckets = |link: &str| {
            let output = std::process::Command::new("tc").args(["qdisc", "show", "dev", link]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let receives = buckets(&attachment.host_interface);
        let sends = enter(&pod, || buckets("eth0")).unwrap();
        assert!(receives.contains("tbf") && receives.contains("rate 10Mbit"), "{receives}");
        assert!(sends.contains("tbf") && sends.contains("rate 5Mbit"), "{sends}");
        assert!(!buckets(&unlimited.host_interface).contains("tbf"));
        // Data that fits the bucket passes at once.
        let server = serve_tcp(&pod);
        enter(&free, || ask_tcp((attachment.ips[0], 80).into()).unwrap()).unwrap();
        server.join().unwrap();
    });
}

/// Tests that a flood gets through at most the bucket's content and the bytes that filled it since, however slow the
/// machine is; the rest was dropped, and the kernel counted both.
#[test]
fn a_flood_passes_no_faster_than_its_bucket_fills() {
    const RATE: u64 = 1_000_000;
    const PACKET: usize = 1_000;
    const FLOOD: u64 = 2_000;
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let pod = pins.add("pod");
        let other = pins.add("other");
        let limits = Limits { ingress: Some(RATE), egress: Some(RATE) };
        network.setup(SetupRequest { limits, ..request("pod", &pod, vec![]) }).await.unwrap();
        let target = network.setup(request("other", &other, vec![])).await.unwrap().ips[0];
        let start = std::time::Instant::now();
        let (passed, dropped) = enter(&pod, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // A full queue refuses some of them at once, others are dropped silently.
            let taken = (0..FLOOD).filter(|_| socket.send_to(&[0; PACKET], (target, 9)).is_ok()).count();
            assert!(taken > 0);
            counted("eth0")
        })
        .unwrap();
        let elapsed = start.elapsed().as_secs_f64();
        let most = 64.0 * 1024.0 + RATE as f64 / 8.0 * elapsed;
        assert!(passed > 0 && passed as f64 <= most, "{passed} bytes passed in {elapsed} s, at most {most} may");
        assert!(dropped > 0, "{passed} bytes of {} passed, none was dropped", FLOOD * PACKET as u64);
    });
}

/// Returns the bytes that the first queue of a link sent and the packets that it dropped, as the kernel counts them.
fn counted(link: &str) -> (u64, u64) {
    let output = std::process::Command::new("tc").args(["-s", "qdisc", "show", "dev", link]).output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let after = |word: &str| {
        let rest = &output[output.find(word).unwrap_or_else(|| panic!("{output}")) + word.len()..];
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    (after("Sent"), after("dropped"))
}

#[test]
fn a_failed_setup_leaves_nothing() {
    on_node(|| async {
        let pins = Pins::new();
        let network = PodNetwork::start(config(pins.path())).await.unwrap();
        let missing = pins.path().join("missing");
        network.setup(request("x", &missing, vec![])).await.unwrap_err();
        assert_eq!(network.addresses("x"), [] as [IpAddr; 0]);
        assert_eq!(links(), ["corten0", "lo"]);
    });
}

/// Returns the links of the calling thread's network namespace.
fn links() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let mut names: Vec<String> =
        table.lines().skip(2).filter_map(|line| Some(line.split(':').next()?.trim().to_owned())).collect();
    names.sort();
    names
}
