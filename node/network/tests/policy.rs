//! Network policies in a real kernel: pods in namespaces of a node, policies from an API in memory.

#![allow(clippy::unwrap_used)]

#[path = "../../dns/tests/api/mod.rs"]
mod api;
mod namespaces;
mod wire;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::Api;
use corten_network::policy::{self, Gate};
use corten_network::{Config, PodNetwork, SetupRequest, enter};
use namespaces::{Pins, on_machine, request};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wire::Wire;

/// The time that a connection is tried which must not be made.
const REFUSED: Duration = Duration::from_millis(300);
/// The time that a change may take to show.
const BOUND: Duration = Duration::from_secs(120);

/// A node with an API, whose pods are subject to policies.
struct Cluster {
    pins: Pins,
    api: Api,
    network: PodNetwork,
    shutdown: CancellationToken,
    /// The index of the pod's address that the test uses: 0 is IPv4, 1 is IPv6.
    version: usize,
}

struct TestPod {
    netns: PathBuf,
    address: IpAddr,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Cluster {
    async fn start(version: usize, ipvs: bool) -> Cluster {
        Cluster::start_with(version, |policies| policies.ipvs = ipvs).await
    }

    async fn start_with(version: usize, change: impl FnOnce(&mut policy::Config)) -> Cluster {
        let pins = Pins::new();
        let api = Api::default();
        let shutdown = CancellationToken::new();
        let (gate, requests) = policy::gate();
        let network = PodNetwork::start(config(pins.path(), Some(gate))).await.unwrap();
        let mut policies = policy::Config::new(network.gateways().to_vec());
        change(&mut policies);
        tokio::spawn(policy::run(policies, api.client(), requests, shutdown.clone()));
        let cluster = Cluster { pins, api, network, shutdown, version };
        cluster.namespace("shop", json!({"team": "a"}));
        cluster.namespace("other", json!({"team": "b"}));
        cluster
    }

    fn namespace(&self, name: &str, labels: Value) {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.api.put("namespaces", &object.to_string());
    }

    fn policy(&self, name: &str, spec: Value) {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name}, "spec": spec});
        self.api.put("networkpolicies", &object.to_string());
    }

    fn pod_object(&self, namespace: &str, name: &str, labels: &Value, addresses: &[IpAddr]) {
        let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address.to_string()})).collect();
        let object = json!({"apiVersion": "network.corten.dev/v1", "kind": "PodAddress",
            "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "labels": labels},
            "ports": [{"name": "web", "port": 80, "protocol": "TCP"}],
            "phase": "Running", "podIPs": addresses});
        self.api.put("podaddresses", &object.to_string());
    }

    /// Makes a pod with its object, its network and servers on ports 80 and 81.
    async fn pod(&self, namespace: &str, name: &str, labels: Value) -> TestPod {
        self.connect(namespace, name, labels, self.pins.add(name)).await
    }

    async fn connect(&self, namespace: &str, name: &str, labels: Value, netns: PathBuf) -> TestPod {
        self.pod_object(namespace, name, &labels, &[]);
        let request = SetupRequest { pod_namespace: namespace.to_owned(), ..request(name, &netns, Vec::new()) };
        let addresses = self.network.setup(request).await.unwrap().ips;
        self.pod_object(namespace, name, &labels, &addresses);
        for port in [80, 81] {
            let listener = enter(&netns, || TcpListener::bind(("::", port)).unwrap()).unwrap();
            std::thread::spawn(move || echo(&listener));
        }
        TestPod { netns, address: addresses[self.version] }
    }
}

fn config(directory: &Path, policies: Option<Gate>) -> Config {
    let ranges = |cidrs: [&str; 2]| cidrs.map(|cidr| cidr.parse().unwrap());
    let config =
        Config::new(&ranges(["10.244.7.0/24", "fd00:7::/64"]), &ranges(["10.244.0.0/16", "fd00::/16"]), directory);
    Config { policies, ..config }
}

/// Answers every byte until the test ends.
fn echo(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        std::thread::spawn(move || {
            let mut byte = [0];
            while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
        });
    }
}

fn connects(from: &TestPod, to: IpAddr, port: u16) -> bool {
    enter(&from.netns, || TcpStream::connect_timeout(&SocketAddr::new(to, port), REFUSED).is_ok()).unwrap()
}

/// Waits until a connection can or cannot be made.
async fn becomes(expected: bool, description: &str, attempt: impl Fn() -> bool) {
    let deadline = Instant::now() + BOUND;
    while attempt() != expected {
        assert!(Instant::now() < deadline, "{description} should become {expected}");
        tokio::task::yield_now().await;
    }
}

/// Runs a test on a node of its own for each IP family, and for each hook where packets may be filtered.
fn for_both_versions<F: Future<Output = ()> + 'static>(test: fn(usize, bool) -> F) {
    for (version, ipvs) in [(0, false), (1, false), (0, true), (1, true)] {
        on_node(move || test(version, ipvs));
    }
}

fn on_node<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    on_machine(move || {
        // Enforcement works while the test blocks in a connection: it needs a thread of its own, and threads that the
        // runtime starts from here belong to the node.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

#[test]
fn ingress_is_denied_and_allowed_by_labels_namespaces_and_ports() {
    for_both_versions(|version, ipvs| async move {
        let cluster = Cluster::start(version, ipvs).await;
        let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
        let client = cluster.pod("shop", "client", json!({"app": "client"})).await;
        let foreign = cluster.pod("other", "foreign", json!({"app": "client"})).await;
        becomes(true, "any connection", || connects(&client, web.address, 80) && connects(&foreign, web.address, 81))
            .await;

        cluster.policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        becomes(false, "default deny", || connects(&client, web.address, 80)).await;
        becomes(true, "a connection into another namespace", || connects(&web, foreign.address, 80)).await;
        becomes(true, "a connection of a pod to itself", || connects(&web, web.address, 80)).await;
        let probe = TcpStream::connect_timeout(&SocketAddr::new(web.address, 80), BOUND);
        assert!(probe.is_ok(), "the node always reaches its pods");

        let from = json!({"podSelector": {"matchLabels": {"app": "client"}}});
        let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [from], "ports": [{"port": "web"}]}]});
        cluster.policy("allow", spec);
        becomes(true, "a named port", || connects(&client, web.address, 80)).await;
        becomes(false, "another port", || connects(&client, web.address, 81)).await;
        becomes(false, "the same labels in another namespace", || connects(&foreign, web.address, 80)).await;

        let from = json!({"namespaceSelector": {"matchLabels": {"team": "b"}}});
        let ports = json!([{"port": 81, "endPort": 90}]);
        cluster.policy(
            "allow",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": [from], "ports": ports}]}),
        );
        becomes(true, "a namespace and a range", || connects(&foreign, web.address, 81)).await;
        becomes(false, "another namespace", || connects(&client, web.address, 81)).await;
        becomes(false, "a port before the range", || connects(&foreign, web.address, 80)).await;
        cluster.namespace("other", json!({"team": "c"}));
        becomes(false, "a namespace that lost its label", || connects(&foreign, web.address, 81)).await;

        let (all, length) = [("0.0.0.0/0", 32), ("::/0", 128)][version];
        let block = json!({"ipBlock": {"cidr": all, "except": [format!("{}/{length}", client.address)]}});
        cluster.policy("allow", json!({"podSelector": {}, "ingress": [{"from": [block]}]}));
        becomes(true, "an IP block", || connects(&foreign, web.address, 80)).await;
        becomes(false, "an exception of it", || connects(&client, web.address, 80)).await;
        cluster.api.delete("networkpolicies", "shop", "allow");
        cluster.api.delete("networkpolicies", "shop", "deny");
        becomes(true, "no policy", || connects(&client, web.address, 80)).await;
    });
}

#[test]
fn egress_is_denied_with_dns_and_allowed_by_the_labels_of_dns() {
    for_both_versions(|version, ipvs| async move {
        let cluster = Cluster::start(version, ipvs).await;
        cluster.namespace("kube-system", json!({"kubernetes.io/metadata.name": "kube-system"}));
        let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
        let client = cluster.pod("shop", "client", json!({"app": "client"})).await;
        let gateway = cluster.network.gateways()[version];
        let dns = UdpSocket::bind((gateway, 53)).unwrap();
        std::thread::spawn(move || {
            let mut question = [0; 16];
            while let Ok((length, from)) = dns.recv_from(&mut question) {
                dns.send_to(&question[..length], from).unwrap();
            }
        });
        let resolves = || {
            enter(&client.netns, || {
                let socket = UdpSocket::bind(["0.0.0.0:0", "[::]:0"][version]).unwrap();
                socket.set_read_timeout(Some(REFUSED)).unwrap();
                socket.send_to(b"?", (gateway, 53)).is_ok() && socket.recv(&mut [0; 16]).is_ok()
            })
            .unwrap()
        };
        becomes(true, "DNS", &resolves).await;
        let all = json!({"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"]});
        cluster.policy("deny", all);
        becomes(false, "default deny", || connects(&client, web.address, 80)).await;
        becomes(false, "DNS, which is denied like any other peer", &resolves).await;
        becomes(true, "the other direction, with its answers", || connects(&web, client.address, 80)).await;

        let to = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}});
        let egress = json!([{"to": [to], "ports": [{"protocol": "UDP", "port": 53}]}]);
        cluster.policy("dns", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress}));
        becomes(true, "DNS by its labels", &resolves).await;
        becomes(false, "anything else", || connects(&client, web.address, 80)).await;
    });
}

#[test]
fn a_policy_applies_before_the_first_packet_and_cuts_open_connections() {
    for_both_versions(|version, ipvs| async move {
        let cluster = Cluster::start(version, ipvs).await;
        let client = cluster.pod("shop", "client", json!({"app": "client"})).await;
        cluster.policy("deny", json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}));
        let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
        assert!(!connects(&client, web.address, 80), "the first packet already");

        cluster.api.delete("networkpolicies", "shop", "deny");
        becomes(true, "no policy", || connects(&client, web.address, 80)).await;
        let to = SocketAddr::new(web.address, 80);
        let mut standing = enter(&client.netns, || TcpStream::connect_timeout(&to, BOUND).unwrap()).unwrap();
        let mut echoes = |within: Duration| {
            standing.set_read_timeout(Some(within)).unwrap();
            standing.write_all(b"x").is_ok() && standing.read_exact(&mut [0]).is_ok()
        };
        assert!(echoes(BOUND));
        cluster.policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        becomes(false, "a new connection", || connects(&client, web.address, 80)).await;
        // A late echo of before is one byte more, and the last.
        let deadline = Instant::now() + BOUND;
        while echoes(REFUSED) {
            assert!(Instant::now() < deadline, "the open connection");
        }
    });
}

/// Tests a pod that sends from the first moment it can: forbidden packets never reach the link of another pod.
#[test]
fn no_packet_of_an_isolated_pod_is_on_the_wire_however_early_it_sends() {
    for_both_versions(|version, ipvs| async move {
        let cluster = Cluster::start(version, ipvs).await;
        let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
        let to = SocketAddr::new(web.address, 9);
        let wire = enter(&web.netns, || Wire::listen("eth0")).unwrap();
        let sent_by = |address: IpAddr| wire.passed().into_iter().filter(|packet| packet.from == address).count();
        cluster.policy("deny", json!({"podSelector": {"matchLabels": {"app": "eager"}}, "policyTypes": ["Egress"]}));

        let netns = cluster.pins.add("eager");
        let end = CancellationToken::new();
        let sender = netns.clone();
        let ended = end.clone();
        let sending = std::thread::spawn(move || {
            enter(&sender, || {
                let mut sent = 0;
                let socket = UdpSocket::bind(["0.0.0.0:0", "[::]:0"][usize::from(to.is_ipv6())]).unwrap();
                while !ended.is_cancelled() {
                    sent += usize::from(socket.send_to(b"early", to).is_ok());
                }
                sent
            })
            .unwrap()
        });
        let eager = cluster.connect("shop", "eager", json!({"app": "eager"}), netns).await;
        assert!(!connects(&eager, web.address, 80));
        let before = sent_by(eager.address);
        cluster.api.delete("networkpolicies", "shop", "deny");
        becomes(true, "a packet without the policy", || sent_by(eager.address) > 0).await;
        end.cancel();
        assert!(sending.join().unwrap() > 0, "it did send");
        assert_eq!(before, 0, "packets of the pod while it was isolated");
    });
}

/// However long the object of a pod takes to come, the pod has no link until then.
#[test]
fn a_pod_without_an_object_gets_no_network() {
    on_node(|| async {
        let cluster = Cluster::start(0, false).await;
        let netns = cluster.pins.add("late");
        let wanted = SetupRequest { pod_namespace: "shop".to_owned(), ..request("late", &netns, Vec::new()) };
        let network = cluster.network.clone();
        let setup = tokio::spawn(async move { network.setup(wanted).await });
        // A pod that is made later is connected before.
        cluster.pod("shop", "web", json!({"app": "web"})).await;
        let links = enter(&netns, || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()).unwrap();
        assert!(!links.contains("eth0") && !setup.is_finished(), "{links}");
        // An object of the same name and another uid is another pod.
        let other =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "late", "uid": "x"}});
        cluster.api.put("pods", &other.to_string());
        cluster.pod("shop", "more", json!({})).await;
        assert!(!setup.is_finished());
        cluster.pod_object("shop", "late", &json!({}), &[]);
        setup.await.unwrap().unwrap();
    });
}

/// A static pod may have no object: its policies follow from the kubelet's labels, also after a restart.
#[test]
fn a_static_pod_is_filtered_by_the_labels_of_the_kubelet() {
    on_node(|| async {
        let cluster = Cluster::start(0, false).await;
        let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
        cluster.policy("deny", json!({"podSelector": {"matchLabels": {"app": "inmate"}}, "policyTypes": ["Egress"]}));
        let mut pods = Vec::new();
        for (name, app) in [("inmate", "inmate"), ("free", "free")] {
            let netns = cluster.pins.add(name);
            let wanted = SetupRequest {
                pod_namespace: "shop".to_owned(),
                pod_labels: [("app".to_owned(), app.to_owned())].into(),
                static_pod: true,
                ..request(name, &netns, Vec::new())
            };
            let address = cluster.network.setup(wanted).await.unwrap().ips[0];
            pods.push(TestPod { netns, address });
        }
        becomes(false, "an isolated static pod", || connects(&pods[0], web.address, 80)).await;
        assert!(connects(&pods[1], web.address, 80), "another static pod");
        cluster.shutdown.cancel();

        let (gate, requests) = policy::gate();
        let network = PodNetwork::start(config(cluster.pins.path(), Some(gate))).await.unwrap();
        let policies = policy::Config::new(network.gateways().to_vec());
        let shutdown = CancellationToken::new();
        tokio::spawn(policy::run(policies, cluster.api.client(), requests, shutdown.clone()));
        // A connected pod shows that the rules are the new ones.
        let netns = cluster.pins.add("later");
        let name = "later";
        cluster.pod_object("shop", name, &json!({}), &[]);
        let wanted = SetupRequest { pod_namespace: "shop".to_owned(), ..request(name, &netns, Vec::new()) };
        network.setup(wanted).await.unwrap();
        assert!(!connects(&pods[0], web.address, 80), "an isolated static pod after a restart");
        assert!(connects(&pods[1], web.address, 80));
        shutdown.cancel();
    });
}

/// The rules of an earlier run stay until both the objects and the pods are known again.
#[test]
fn the_earlier_rules_stay_until_the_new_ones_are_complete() {
    for_both_versions(|version, ipvs| async move {
        let cluster = Cluster::start(version, ipvs).await;
        let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
        cluster.policy("deny", json!({"podSelector": {"matchLabels": {"app": "inmate"}}, "policyTypes": ["Egress"]}));
        let inmate = cluster.pod("shop", "inmate", json!({"app": "inmate"})).await;
        assert!(!connects(&inmate, web.address, 80));
        cluster.shutdown.cancel();
        assert!(!connects(&inmate, web.address, 80), "without enforcement");

        let (gate, requests) = policy::gate();
        let policies = policy::Config { ipvs, ..policy::Config::new(cluster.network.gateways().to_vec()) };
        let shutdown = CancellationToken::new();
        tokio::spawn(policy::run(policies, cluster.api.client(), requests, shutdown.clone()));
        // It has listed everything long before this ends, and does not know the pods.
        assert!(!connects(&inmate, web.address, 80), "before the pods are known");
        let network = PodNetwork::start(config(cluster.pins.path(), Some(gate))).await.unwrap();
        assert!(!connects(&inmate, web.address, 80), "after the pods are known");
        cluster.api.delete("networkpolicies", "shop", "deny");
        becomes(true, "no policy", || connects(&inmate, web.address, 80)).await;
        shutdown.cancel();
        drop(network);
    });
}

/// Packets of pods to their own node are restricted if configured; those of the node to its pods never are.
#[test]
fn policies_may_restrict_the_traffic_of_pods_to_their_node() {
    for (version, host_egress) in [(0, false), (0, true), (1, true)] {
        on_node(move || async move {
            let cluster = Cluster::start_with(version, |policies| policies.host_egress = host_egress).await;
            let inmate = cluster.pod("shop", "inmate", json!({"app": "inmate"})).await;
            let gateway = cluster.network.gateways()[version];
            let listener = TcpListener::bind((gateway, 8080)).unwrap();
            std::thread::spawn(move || echo(&listener));
            becomes(true, "the node without a policy", || connects(&inmate, gateway, 8080)).await;
            cluster.policy("deny", json!({"podSelector": {}, "policyTypes": ["Egress", "Ingress"]}));
            let elsewhere = cluster.pod("other", "elsewhere", json!({})).await;
            becomes(false, "another pod", || connects(&inmate, elsewhere.address, 80)).await;
            assert_eq!(connects(&inmate, gateway, 8080), !host_egress, "the node");
            let probe = TcpStream::connect_timeout(&SocketAddr::new(inmate.address, 80), BOUND);
            assert!(probe.is_ok(), "the node always reaches its pods");
            let to = json!({"ipBlock": {"cidr": format!("{gateway}/{}", [32, 128][version])}});
            let egress = json!([{"to": [to], "ports": [{"port": 8080}]}]);
            cluster.policy("allow", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress}));
            becomes(true, "the node by its address", || connects(&inmate, gateway, 8080)).await;
        });
    }
}

#[test]
fn a_pod_waits_while_policies_cannot_be_known() {
    on_node(|| async {
        let directory = tempfile::tempdir().unwrap();
        let (gate, requests) = policy::gate();
        let network = PodNetwork::start(config(directory.path(), Some(gate))).await.unwrap();
        drop(requests);
        let request = request("a", Path::new("/proc/self/ns/net"), Vec::new());
        let refused = network.setup(request).await.unwrap_err();
        assert!(refused.to_string().contains("network policies"), "{refused}");
    });
}
