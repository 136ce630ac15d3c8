//! The cost of a Service for its traffic: bytes and connections by a cluster address, beside the same without one, by
//! programs at sockets, and by rules of the shape that upstream's kube-proxy makes in its mode nftables, among ten
//! thousand Services; where `KUBE_PROXY` names its binary, by kube-proxy itself, with its sync times and memory. Prints
//! one `figure<TAB>value<TAB>unit` line each.
//!
//! A connection is a complete one: opened, a byte sent and answered, and closed, so that none waits in the server's
//! queue.
//!
//! Run by `cargo xtask bench`, as root: it works in a network namespace of its own. Client and server share the
//! machine, so the figures compare the two paths and do not measure a network card.

mod kube_proxy;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_network::namespace_node::{pin_new_namespace, unpin};
use corten_network::{Config as NetworkConfig, Limits, PodNetwork, SetupRequest, enter};
use corten_nftables::IpFamily;
use corten_proxy::{Config, Mode, Proxier, Service, ServiceKey, Slice, SliceKey};
use k8s_openapi::api::core::v1::Service as ServiceObject;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_proxy::KubeProxy;
use nix::sched::{CloneFlags, unshare};

const SERVICES: u32 = 10_000;
const DURATION: Duration = Duration::from_secs(2);
const PORT: u16 = 8080;
/// The number of concurrent clients, and of threads that serve them.
const CLIENTS: usize = 4;
/// The byte that is answered.
const QUESTION: [u8; 1] = *b"?";

fn main() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = runtime.block_on(start_pods(directory.path()));
    let client = &pods[0].0;
    let (server, address) = &pods[1];
    let config = Config::new("node", vec![(IpAddr::from([10, 244, 0, 0]), 16)]);
    let rules = proxy(config.clone(), *address);
    serve(server);

    let direct = SocketAddr::new(*address, PORT);
    let through = SocketAddr::new(cluster_ip(SERVICES / 2), 80);
    measure("pod to pod", client, direct);
    measure("through a Service", client, through);
    drop(rules);
    if let Some(group) = Group::enter() {
        let programs = proxy(Config { mode: Mode::Ebpf, cgroup: Some(group.0.clone()), ..config.clone() }, *address);
        measure("through a Service at the socket", client, through);
        drop(programs);
    }
    corten_proxy::cleanup(&config).expect("delete the rules");
    match load(&kube_proxy(*address)) {
        Ok(()) => measure("through a Service by kube-proxy's rules", client, through),
        Err(error) => eprintln!("skipped: no rules of kube-proxy's shape: {error}"),
    }
    let _ = Command::new("nft").args(["delete", "table", "ip", "kube-proxy"]).status();
    beside_kube_proxy(*address, client, through);
    for (namespace, _) in &pods {
        unpin(namespace).expect("delete the namespace");
    }
}

/// Makes a proxy with every Service; one pod serves all of them.
fn proxy(config: Config, address: IpAddr) -> Proxier {
    let mut proxier = Proxier::new(config, IpFamily::V4).expect("a netlink socket");
    for number in 0..SERVICES {
        proxier.set_service(key(number), Service::from_object(&service(number), IpFamily::V4));
        proxier.set_slice(slice_key(number), Slice::from_object(&slice(number, address), IpFamily::V4));
    }
    proxier.sync().expect("the kernel takes the Services");
    proxier
}

/// Measures the same by upstream's kube-proxy itself.
fn beside_kube_proxy(address: IpAddr, client: &Path, through: SocketAddr) {
    let json = |object: Vec<u8>| String::from_utf8(object).expect("JSON");
    let services = (0..SERVICES).map(|number| json(service(number).encode().to_vec())).collect();
    let slices = (0..SERVICES).map(|number| json(slice(number, address).encode().to_vec())).collect();
    let objects = BTreeMap::from([("services", services), ("endpointslices", slices)]);
    let Some(mut proxy) = KubeProxy::start(objects) else {
        eprintln!("skipped: KUBE_PROXY names no kube-proxy");
        return;
    };
    let last = cluster_ip(SERVICES - 1).to_string();
    figure(
        "kube-proxy, 10,000 Services, from start to rules",
        millis(proxy.first_sync(|| KubeProxy::knows(&last))),
        "ms",
    );
    measure("through a Service by kube-proxy itself", client, through);
    let elsewhere = |last: u8| json(slice(7, [10, 244, 0, last].into()).encode().to_vec());
    let mut times: Vec<f64> = (100..105).map(|last| millis(proxy.change(&elsewhere(last)))).collect();
    times.sort_by(f64::total_cmp);
    figure("kube-proxy, one endpoint among 10,000 Services, p50", times[2], "ms");
    figure("kube-proxy, 10,000 Services, memory", proxy.resident_mebibytes(), "MiB");
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Measures rates and processor time. Rates depend on other load of the machine; the processor time of both ends, and
/// of all between them, does not.
fn measure(name: &str, client: &Path, to: SocketAddr) {
    let before = processor_seconds();
    let (made, rate) = enter(client, || connections(to)).expect("the pod is there");
    figure(&format!("{name}, connections"), rate, "1/s");
    figure(&format!("{name}, processor a connection"), (processor_seconds() - before) * 1e6 / made, "µs");
    let before = processor_seconds();
    let (sent, rate) = enter(client, || throughput(to)).expect("the pod is there");
    figure(&format!("{name}, throughput"), rate, "Gbit/s");
    figure(&format!("{name}, processor a gigabyte"), (processor_seconds() - before) * 1e3 / sent, "ms");
}

/// Returns the processor time of this process.
fn processor_seconds() -> f64 {
    // SAFETY: a rusage is plain old data, for which all zeros is a value.
    let mut used: nix::libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a complete rusage.
    assert_eq!(unsafe { nix::libc::getrusage(nix::libc::RUSAGE_SELF, &mut used) }, 0, "usage is known");
    let seconds = |time: nix::libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(used.ru_utime) + seconds(used.ru_stime)
}

/// A control group that this process is in until the end, if the kernel takes programs at its sockets.
struct Group(PathBuf);

impl Group {
    fn enter() -> Option<Group> {
        corten_proxy::supports_sockets().ok()?;
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 ")))?;
        let path = Path::new(mount).join(format!("corten-bench-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        std::fs::write(path.join("cgroup.procs"), "0").ok()?;
        Some(Group(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let root = self.0.parent().map(|root| root.join("cgroup.procs"));
        let left = root.map(|root| std::fs::write(root, "0")).and_then(|_| std::fs::remove_dir(&self.0).ok());
        if left.is_none() {
            eprintln!("{} is left behind", self.0.display());
        }
    }
}

/// Returns the Services as upstream's kube-proxy writes them: verdict maps to a chain per Service and a chain per
/// endpoint.
fn kube_proxy(address: IpAddr) -> String {
    let mut services = String::new();
    let mut verdicts = Vec::new();
    let mut addresses = Vec::new();
    for number in 0..SERVICES {
        let ip = cluster_ip(number);
        services.push_str(&format!(
            "chain endpoint-{number} {{ meta l4proto tcp dnat to {address}:{PORT}; }}
            chain service-{number} {{ numgen random mod 1 vmap {{ 0 : goto endpoint-{number} }}; }}\n"
        ));
        verdicts.push(format!("{ip} . tcp . 80 : goto service-{number}"));
        addresses.push(ip.to_string());
    }
    let key = "ip daddr . meta l4proto . th dport";
    format!(
        "table ip kube-proxy {{
            {services}
            set cluster-ips {{ type ipv4_addr; elements = {{ {} }}; }}
            set hairpin {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; }}
            map firewall-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
            map no-endpoints {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
            map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; elements = {{ {} }}; }}
            chain firewall-check {{ {key} vmap @firewall-ips; }}
            chain endpoints-check {{ {key} vmap @no-endpoints; }}
            chain cluster-ips-check {{ ip daddr @cluster-ips reject; ip daddr 10.96.0.0/12 drop; }}
            chain services {{
                ip daddr @cluster-ips ip saddr != 10.244.0.0/16 meta mark set mark or 0x4000;
                {key} vmap @service-ips;
            }}
            chain masquerading {{
                meta mark and 0x4000 != 0 meta mark set mark xor 0x4000 masquerade fully-random;
                ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin masquerade fully-random;
            }}
            chain pre-dnat {{ type filter hook prerouting priority -110; ct state new jump firewall-check; }}
            chain forward {{
                type filter hook forward priority 0;
                ct state new jump endpoints-check;
                ct state new jump cluster-ips-check;
            }}
            chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
            chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
        }}",
        addresses.join(", "),
        verdicts.join(", ")
    )
}

fn load(rules: &str) -> std::io::Result<()> {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(rules.as_bytes())?;
    }
    match nft.wait()?.success() {
        true => Ok(()),
        false => Err(std::io::Error::other("nft refuses them")),
    }
}

/// Starts two pods of a node; returns their namespaces and addresses.
async fn start_pods(directory: &Path) -> Vec<(PathBuf, IpAddr)> {
    let range = |cidr: &str| cidr.parse().expect("a range");
    let config = NetworkConfig::new(&[range("10.244.0.0/24")], &[range("10.244.0.0/16")], directory);
    let network = PodNetwork::start(config).await.expect("a pod network");
    let mut pods = Vec::new();
    for name in ["client", "server"] {
        let namespace = directory.join("pins").join(name);
        pin_new_namespace(&namespace).expect("a namespace");
        let request = SetupRequest {
            sandbox_id: name.to_owned(),
            netns_path: namespace.clone(),
            pod_namespace: "default".to_owned(),
            pod_name: name.to_owned(),
            pod_uid: String::new(),
            pod_labels: Default::default(),
            static_pod: false,
            port_mappings: Vec::new(),
            limits: Limits::default(),
        };
        pods.push((namespace, network.setup(request).await.expect("a pod").ips[0]));
    }
    pods
}

/// Starts a server that answers the byte of a question, and else reads until its client closes.
fn serve(namespace: &Path) {
    let listener =
        enter(namespace, || TcpListener::bind(("0.0.0.0", PORT)).expect("a port")).expect("the pod is there");
    for _ in 0..CLIENTS {
        let listener = listener.try_clone().expect("a listener");
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut first = [0];
                match stream.read_exact(&mut first).map(|()| first) {
                    Ok(QUESTION) => drop(stream.write_all(&first)),
                    Ok(_) => drop(std::thread::spawn(move || swallow(stream))),
                    Err(_) => {}
                }
            }
        });
    }
}

fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 18];
    while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
}

/// Returns connections, and connections a second, of as many clients as the server has threads: each is opened, sent to,
/// answered and reset, so that no port has to wait for its last packet.
fn connections(to: SocketAddr) -> (f64, f64) {
    let start = Instant::now();
    let client = || {
        let mut made = 0;
        while start.elapsed() < DURATION {
            let mut stream = TcpStream::connect(to).expect("the server is there");
            stream.write_all(&QUESTION).and_then(|()| stream.read_exact(&mut [0])).expect("the server answers");
            reset_when_closed(&stream);
            made += 1;
        }
        made
    };
    let made: u32 = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    (f64::from(made), f64::from(made) / start.elapsed().as_secs_f64())
}

fn reset_when_closed(stream: &TcpStream) {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    let level = nix::libc::SOL_SOCKET;
    let option = nix::libc::SO_LINGER;
    let length = std::mem::size_of_val(&linger) as u32;
    // SAFETY: the option is complete and as long as given, and the socket is open.
    let set =
        unsafe { nix::libc::setsockopt(stream.as_raw_fd(), level, option, std::ptr::from_ref(&linger).cast(), length) };
    assert_eq!(set, 0, "a socket can linger");
}

/// Returns gigabytes, and gigabits a second, of one connection.
fn throughput(to: SocketAddr) -> (f64, f64) {
    let mut stream = TcpStream::connect(to).expect("the server is there");
    let buffer = vec![0; 1 << 18];
    let start = Instant::now();
    let mut sent = 0u64;
    while start.elapsed() < DURATION {
        stream.write_all(&buffer).expect("the server reads");
        sent += buffer.len() as u64;
    }
    (sent as f64 / 1e9, sent as f64 * 8.0 / 1e9 / start.elapsed().as_secs_f64())
}

fn cluster_ip(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a60_0100 + number).into()
}

fn key(number: u32) -> ServiceKey {
    ServiceKey { namespace: "default".to_owned(), name: format!("service-{number}") }
}

fn slice_key(number: u32) -> SliceKey {
    SliceKey { namespace: "default".to_owned(), name: format!("service-{number}-a") }
}

fn service(number: u32) -> ServiceObject {
    let json = format!(
        r#"{{"metadata":{{"namespace":"default","name":"service-{number}","uid":"s{number}","resourceVersion":"1"}},
            "spec":{{"clusterIP":"{0}","clusterIPs":["{0}"],"ipFamilies":["IPv4"],"type":"ClusterIP","sessionAffinity":"None",
            "internalTrafficPolicy":"Cluster","ports":[{{"name":"http","port":80,"protocol":"TCP","targetPort":{PORT}}}]}}}}"#,
        cluster_ip(number)
    );
    ServiceObject::decode(json.as_bytes()).expect("a Service")
}

fn slice(number: u32, address: IpAddr) -> EndpointSlice {
    let json = format!(
        r#"{{"metadata":{{"namespace":"default","name":"service-{number}-a","uid":"e{number}","resourceVersion":"1",
            "labels":{{"kubernetes.io/service-name":"service-{number}"}}}},"addressType":"IPv4",
            "ports":[{{"name":"http","port":{PORT},"protocol":"TCP"}}],
            "endpoints":[{{"addresses":["{address}"],"conditions":{{"ready":true,"serving":true,"terminating":false}}}}]}}"#
    );
    EndpointSlice::decode(json.as_bytes()).expect("an EndpointSlice")
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}
