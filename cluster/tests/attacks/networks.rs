//! Attacks from the network: by hosts outside, by pods, and by users who may write Services and Nodes.

#[path = "../../../node/network/tests/wire/mod.rs"]
mod wire;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use corten_network::{Cidr, enter};
use testkit::cluster::{Cluster, IMAGE};
use testkit::world::World;
use testkit::{image, machine, tools, wait, world};
use wire::Wire;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const RANGES: [&str; 4] =
    ["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--service-cidr", "10.96.0.0/16,fd00:10:96::/112"];
const CLUSTER: [&str; 4] = ["10.244.0.0/16", "fd00:10:244::/56", "10.96.0.0/16", "fd00:10:96::/112"];
/// The time without a packet after which silence is certain.
const SILENCE: Duration = Duration::from_millis(500);

/// A cluster whose default routes lead to a world that answers for every address.
struct Field {
    cluster: Cluster,
    world: World,
    wire: Wire,
}

/// The origin of an attack.
#[derive(Clone, Debug)]
enum Source {
    Machine,
    Pod(PathBuf),
}

impl Field {
    fn start(flags: &[&str]) -> Field {
        let cluster = Cluster::machine(CORTEN);
        let world = World::beyond(&cluster.machine);
        let wire = world.in_network(|| Wire::listen("eth0"));
        let field = Field { cluster, world, wire };
        field.up(flags);
        let archive = image::busybox_archive(field.cluster.scratch(), IMAGE);
        field.cluster.corten(&["image", "import", &archive.to_string_lossy()]);
        field
    }

    fn up(&self, flags: &[&str]) {
        let all = [&["up", "--timeout", "600"][..], &RANGES, flags].concat();
        let mut command: Command = self.cluster.corten_command(&all);
        // The programs of iptables, which one mode of the proxy uses.
        let tools = tools::busybox().with_file_name("iptables");
        let path = std::env::var("PATH").unwrap_or_default();
        let output = command.env("PATH", format!("{}:{path}", tools.display())).output().expect("corten runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Creates a sleeping pod with its labels and waits until it is Ready.
    fn pod(&self, name: &str) -> Source {
        self.cluster.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {{name: c, image: {IMAGE}, command: [sh, -c, 'echo {name} > /www/index.html; exec httpd -f -p 80 -h /www']}}
"#
        ));
        self.cluster.kubectl_wait(&["wait", "--for=condition=Ready", &format!("pod/{name}")]);
        self.place_of(name)
    }

    /// Returns the network of a pod: that of the namespace with the pod's address.
    fn place_of(&self, pod: &str) -> Source {
        let address = self.address(pod, 0);
        let sandboxes = self.cluster.machine.path("/run/corten/runtime/sandboxes");
        let all = std::fs::read_dir(&sandboxes).into_iter().flatten().flatten();
        let has_address = |pin: &PathBuf| enter(pin, || UdpSocket::bind((address, 0)).is_ok()).unwrap_or(false);
        let found = all.map(|sandbox| sandbox.path().join("net")).find(has_address);
        Source::Pod(found.unwrap_or_else(|| panic!("no namespace below {} has {address}", sandboxes.display())))
    }

    fn address(&self, pod: &str, index: usize) -> IpAddr {
        let path = format!("jsonpath={{.status.podIPs[{index}].ip}}");
        self.cluster.kubectl(&["get", "pod", pod, "-o", &path]).parse().expect("an address")
    }

    fn service_address(&self, service: &str, index: usize) -> IpAddr {
        let path = format!("jsonpath={{.spec.clusterIPs[{index}]}}");
        self.cluster.kubectl(&["get", "service", service, "-o", &path]).parse().expect("an address")
    }

    fn at<T: Send>(&self, source: &Source, work: impl FnOnce() -> T + Send) -> T {
        match source {
            Source::Machine => self.cluster.machine.in_network(work),
            Source::Pod(pin) => enter(pin, work).expect("the pod's namespace is pinned"),
        }
    }

    /// Fetches the page of a server, or returns the error.
    fn fetch(&self, source: &Source, to: SocketAddr) -> Result<String, ErrorKind> {
        self.at(source, || page(to).map_err(|error| error.kind()))
    }

    /// Sends to all of these from every source, by TCP and UDP, and asserts that nothing answers and nothing leaves.
    fn assault(&self, when: &str, sources: &[Source], targets: &[SocketAddr]) {
        std::thread::scope(|scope| {
            for source in sources {
                for target in targets {
                    scope.spawn(move || {
                        self.at(source, || {
                            if let Ok(socket) = UdpSocket::bind(any(target.ip())) {
                                let _ = socket.send_to(b"?", target);
                            }
                        });
                        let answer = self.fetch(source, *target);
                        assert!(answer.is_err(), "{when}: {target} answers {source:?}: {answer:?}");
                    });
                }
            }
        });
        self.nothing_left(when);
    }

    /// Asserts that no packet for an address of the cluster leaves to the world, while one for another address does.
    fn nothing_left(&self, when: &str) {
        let outside = [SocketAddr::from(([192, 0, 2, 7], 9)), "[2001:db8::7]:9".parse().expect("an address")];
        let mut packets = Vec::new();
        for control in outside {
            wait::until("a packet that may leave", wait::BOUND, || {
                let _ = self.at(&Source::Machine, || UdpSocket::bind(any(control.ip()))?.send_to(b"out", control));
                packets.extend(self.wire.passed());
                if packets.iter().any(|packet| packet.to == control.ip()) { Ok(()) } else { Err("none".into()) }
            });
        }
        let ranges: Vec<Cidr> = CLUSTER.iter().map(|range| range.parse().expect("a range")).collect();
        packets.retain(|packet| ranges.iter().any(|range| range.contains(packet.to)));
        assert!(packets.is_empty(), "{when}: {packets:?} left the machine");
    }
}

fn any(version: IpAddr) -> SocketAddr {
    let address: IpAddr = if version.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { [0u16; 8].into() };
    SocketAddr::new(address, 0)
}

fn page(to: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, SILENCE)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.rsplit("\r\n\r\n").next().unwrap_or_default().trim().to_owned())
}

fn skipped() -> bool {
    let skipped = !tools::is_root();
    if skipped {
        eprintln!("skipped: a cluster needs root");
    }
    skipped
}

fn web_service(field: &Field) -> [IpAddr; 2] {
    field.cluster.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}
"#,
    );
    [0, 1].map(|index| field.service_address("web", index))
}

/// Returns addresses of the cluster without a listener, or without one at this port.
fn nowhere(service: [IpAddr; 2]) -> Vec<SocketAddr> {
    let mut targets: Vec<SocketAddr> = service.iter().map(|address| SocketAddr::new(*address, 81)).collect();
    // Addresses of Services that do not exist, of pods that no node has, and of pods of this node that do not exist.
    for text in [
        "10.96.200.200:80",
        "[fd00:10:96::c8c8]:80",
        "10.244.77.7:80",
        "[fd00:10:244:77::7]:80",
        "10.244.0.250:80",
        "[fd00:10:244::fa]:80",
    ] {
        targets.push(text.parse().expect("an address"));
    }
    targets
}

/// Asserts that packets for addresses of the cluster stay on the machine: beside a Service, after it, and without the
/// server.
fn cluster_addresses_stay(mode: &str) {
    if skipped() {
        return;
    }
    let flags = ["--proxy-mode", mode];
    let field = Field::start(&flags);
    let sources = [Source::Machine, field.pod("web")];
    let service = web_service(&field);
    for source in &sources {
        for address in service {
            let served = || field.fetch(source, SocketAddr::new(address, 80)).map_err(|error| error.to_string());
            assert_eq!(wait::until("the Service", wait::BOUND, served), "web");
            let refused = field.fetch(source, SocketAddr::new(address, 81));
            assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "a port that the Service has not, {source:?}");
        }
    }
    let mut targets = nowhere(service);
    field.assault("beside a Service", &sources, &targets);

    field.cluster.kubectl(&["delete", "service", "web"]);
    for address in service {
        let gone = || match field.fetch(&sources[1], SocketAddr::new(address, 80)) {
            Ok(page) if page == "web" => Err("it answers still".to_owned()),
            other => Ok(other),
        };
        wait::until("the Service's end", wait::BOUND, gone).expect_err("a Service that is gone");
        targets.push(SocketAddr::new(address, 80));
    }
    field.assault("after the Service", &sources, &targets);
    field.cluster.kill_hard();
    field.assault("without the server", &sources, &targets);
    field.up(&flags);
    field.assault("after a restart", &sources, &targets);
    field.cluster.corten(&["down"]);
    let mut tables = field.cluster.machine.nft_tables();
    tables.retain(|table| table.starts_with("corten"));
    assert_eq!(tables, [] as [String; 0], "`corten down` leaves no rules");
    let routes = field.cluster.machine.ip("route") + &field.cluster.machine.ip("-6 route");
    assert!(!routes.contains("unreachable"), "`corten down` leaves no routes: {routes}");
}

#[test]
fn cluster_addresses_stay_on_the_machine_by_nftables() {
    cluster_addresses_stay("nftables");
}

#[test]
fn cluster_addresses_stay_on_the_machine_by_iptables() {
    cluster_addresses_stay("iptables");
}

#[test]
fn cluster_addresses_stay_on_the_machine_by_ebpf() {
    cluster_addresses_stay("ebpf");
}

/// The attackers are a host outside that can route to the cluster, and a user who may write Services and Nodes.
#[test]
fn outsiders_services_and_nodes_get_no_traffic_that_is_not_theirs() {
    if skipped() {
        return;
    }
    let field = Field::start(&["--node-name", "first"]);
    let victim = field.pod("web");
    let address = field.address("web", 0);
    // A host outside that routes the pod CIDR by the node.
    field.world.ip(&format!("route add 10.244.0.0/24 via {}", machine::ADDRESS));
    dns_answers_pods_alone(&field, &victim);
    forged_packets_are_dropped(&field, &victim, address);
    external_addresses_are_not_hijacked(&field, &victim);
    nodes_get_no_more_than_their_own(&field);
}

/// Returns a query for the address of the Service `kubernetes`.
fn question() -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in ["kubernetes", "default", "svc", "cluster", "local"] {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

fn resolve(server: SocketAddr) -> std::io::Result<usize> {
    let socket = UdpSocket::bind(any(server.ip()))?;
    socket.set_read_timeout(Some(SILENCE))?;
    socket.send_to(&question(), server)?;
    socket.recv(&mut [0; 512])
}

/// Returns the bytes that a server answers over TCP before it closes.
fn answer_of(server: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Ok(mut stream) = TcpStream::connect_timeout(&server, SILENCE) {
        let _ = stream.set_read_timeout(Some(SILENCE));
        let _ = stream.write_all(request);
        let _ = stream.read_to_end(&mut answer);
    }
    answer
}

fn dns_answers_pods_alone(field: &Field, pod: &Source) {
    let dns: SocketAddr = "10.244.0.1:53".parse().expect("an address");
    let metrics: SocketAddr = "10.244.0.1:9153".parse().expect("an address");
    let scrape = b"GET /metrics HTTP/1.0\r\n\r\n";
    let framed = [&(question().len() as u16).to_be_bytes()[..], &question()].concat();
    for source in [pod.clone(), Source::Machine] {
        assert!(field.at(&source, || resolve(dns)).is_ok(), "{source:?} is answered");
        assert!(!field.at(&source, || answer_of(metrics, scrape)).is_empty(), "{source:?} reads metrics");
    }
    assert!(field.world.in_network(|| resolve(dns)).is_err(), "a host outside is answered by UDP");
    assert_eq!(field.world.in_network(|| answer_of(dns, &framed)), [] as [u8; 0], "a host outside is answered by TCP");
    assert_eq!(field.world.in_network(|| answer_of(metrics, scrape)), [] as [u8; 0], "a host outside reads metrics");
}

/// Returns a UDP packet in a VXLAN packet, from an address to a pod's port 7777.
fn wrapped(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let mut bytes = vec![8, 0, 0, 0, 0, 0, 67, 0];
    bytes.extend([0x0a, 0x59, 10, 244, 0, 0, 2, 0, 0, 0, 0, 1, 8, 0]);
    let mut head = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0];
    head.extend(from.octets());
    head.extend(to.octets());
    let sum: u32 = head.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
    head[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(head);
    bytes.extend([0x1f, 0x90, 0x1e, 0x61, 0, 12, 0, 0]);
    bytes.extend(b"evil");
    bytes
}

/// Asserts that neither by VXLAN, which does not verify senders, nor with a pod's address a host outside or another pod
/// reaches a pod.
fn forged_packets_are_dropped(field: &Field, victim: &Source, address: IpAddr) {
    let IpAddr::V4(pod) = address else { panic!("{address} is not of IPv4") };
    let server = field.at(victim, || UdpSocket::bind("0.0.0.0:7777").expect("the port is free"));
    server.set_read_timeout(Some(wait::BOUND)).expect("a socket has a timeout");
    let inner = wrapped(Ipv4Addr::new(10, 244, 0, 99), pod);
    let overlay: SocketAddr = SocketAddr::new(machine::ADDRESS.parse().expect("an address"), 8472);
    let send = |bytes: &[u8]| UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(bytes, overlay));
    field.world.in_network(|| send(&inner)).expect("it is sent");
    field.at(victim, || send(&inner)).expect("it is sent");
    field.world.ip("addr add 10.244.0.77/32 dev lo");
    let forged = || UdpSocket::bind("10.244.0.77:0")?.send_to(b"evil", (pod, 7777));
    field.world.in_network(forged).expect("it is sent");
    // An honest packet arrives, and bounds the wait for those before it.
    let honest = || UdpSocket::bind("0.0.0.0:0")?.send_to(b"honest", (pod, 7777));
    field.at(&Source::Machine, honest).expect("it is sent");
    let mut buffer = [0; 64];
    let (length, from) = server.recv_from(&mut buffer).expect("the honest one");
    assert_eq!(&buffer[..length], b"honest", "from {from}");
}

fn external_addresses_are_not_hijacked(field: &Field, pod: &Source) {
    let kubernetes = field.service_address("kubernetes", 0);
    let hijacked = [machine::ADDRESS.to_owned(), kubernetes.to_string(), "10.244.0.1".to_owned()];
    field.cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: thief}}
spec: {{selector: {{app: web}}, externalIPs: ["{}", "198.51.100.7"], ports: [{{port: 7070, targetPort: 80}}]}}
"#,
        hijacked.join("\", \"")
    ));
    let to = |address: &str| SocketAddr::new(address.parse().expect("an address"), 7070);
    let served = || field.fetch(pod, to("198.51.100.7")).map_err(|error| error.to_string());
    assert_eq!(wait::until("a free address", wait::BOUND, served), "web");
    for source in [pod.clone(), Source::Machine] {
        for address in &hijacked {
            assert!(field.fetch(&source, to(address)).is_err(), "{address} leads {source:?} to the thief");
        }
    }
    field.cluster.kubectl(&["delete", "service", "thief"]);
}

/// Creates a Node object that claims the gateway's address as its pods', and the API server's as its own.
fn nodes_get_no_more_than_their_own(field: &Field) {
    field.cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Node
metadata: {{name: evil}}
spec: {{podCIDR: "{0}/32", podCIDRs: ["{0}/32"]}}
"#,
        world::GATEWAY
    ));
    let status = format!(r#"{{"status":{{"addresses":[{{"type":"InternalIP","address":"{}"}}]}}}}"#, machine::ADDRESS);
    field.cluster.kubectl(&["patch", "node", "evil", "--subresource=status", "-p", &status]);
    for reason in ["PodCIDRRefused", "NodeAddressRefused"] {
        let events = ["get", "events", "--field-selector", &format!("reason={reason}"), "-o", "name"];
        field.cluster.kubectl_until(&events, |names| names.contains("event/evil"));
    }
    let routes = field.cluster.machine.ip("route");
    assert!(!routes.lines().any(|line| line.starts_with(world::GATEWAY)), "{routes}");
    let lookup = field.cluster.machine.ip(&format!("route get {}", world::GATEWAY));
    assert!(lookup.contains("dev eth0"), "{lookup}");
}

/// An isolated pod sends without end, over a crash and a restart of the server: none of its packets ever arrives.
#[test]
fn policies_hold_while_the_server_is_away_and_comes_back() {
    if skipped() {
        return;
    }
    let field = Field::start(&[]);
    let victim = field.pod("web");
    let address = field.address("web", 0);
    field.cluster.apply(
        r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated}
spec: {podSelector: {matchLabels: {app: inmate}}, policyTypes: [Egress]}
"#,
    );
    let inmate = field.pod("inmate");
    let server = field.at(&victim, || UdpSocket::bind("0.0.0.0:7777").expect("the port is free"));
    server.set_nonblocking(true).expect("a socket");
    let ended = AtomicBool::new(false);
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            field.at(&inmate, || {
                let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
                while !ended.load(Ordering::Relaxed) {
                    if socket.send_to(b"evil", (address, 7777)).is_ok() {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
        });
        field.cluster.kill_hard();
        field.up(&[]);
        // Pods start again only when policies are enforced again.
        field.pod("later");
        ended.store(true, Ordering::Relaxed);
    });
    assert!(sent.load(Ordering::Relaxed) > 0, "it did send");
    let escaped = server.recv(&mut [0; 64]).map_err(|error| error.kind());
    assert_eq!(escaped, Err(ErrorKind::WouldBlock), "a packet of the isolated pod arrived");
    field.cluster.kubectl(&["delete", "networkpolicy", "isolated"]);
    wait::until("a packet without the policy", wait::BOUND, || {
        field
            .at(&inmate, || UdpSocket::bind("0.0.0.0:0")?.send_to(b"free", (address, 7777)))
            .map_err(|e| e.to_string())?;
        server.recv(&mut [0; 64]).map_err(|error| error.to_string())
    });
}
