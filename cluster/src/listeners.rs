//! Every port that a node opens, its addresses and its clients. The manual's page of ports is written from it, and a
//! test compares it with the sockets of a running cluster. A listener that is not here must not be opened.

use crate::api_servers::BALANCER_PORT;
use crate::cli::{DEFAULT_KUBELET_PORT, DEFAULT_PORT};
use crate::components::cloud;
use crate::components::control::{MANAGER_PORT, SCHEDULER_PORT};
use crate::components::node_dns::{DNS_BESIDE_PLUGINS, DNS_METRICS};
use crate::components::storage::REPLICA_PORT;

/// One listener of a node.
#[derive(Debug)]
pub struct Listener {
    pub name: &'static str,
    pub transport: &'static str,
    /// The port; none if the system or the user chooses it.
    pub port: Option<u16>,
    /// The addresses, and the flag or setting that changes them.
    pub place: &'static str,
    pub clients: &'static str,
}

/// Returns the listeners, those of the control plane first.
pub fn listeners() -> Vec<Listener> {
    let mut all = Vec::from(control_plane());
    all.extend(several_servers());
    all.extend(kubelet_and_runtime());
    all.extend(network());
    all.extend(proxy());
    all.push(edge());
    all
}

fn control_plane() -> [Listener; 5] {
    [
        Listener {
            name: "API server",
            transport: "TCP",
            port: Some(DEFAULT_PORT),
            place: "every address (`--bind-address`, `--port`)",
            clients: "Every host, over TLS. Anonymous requests get health and version; all others are authenticated and authorized.",
        },
        Listener {
            name: "etcd's API on the embedded store",
            transport: "TCP",
            port: None,
            place: "none, unless `--etcd-listen-address` names one",
            clients: "Clients with a certificate of `--etcd-listen-client-cafile`, over TLS; they can read and change everything.",
        },
        Listener {
            name: "controller manager",
            transport: "TCP",
            port: Some(MANAGER_PORT),
            place: "127.0.0.1; alone, `--bind-address` and `--secure-port`",
            clients: "Processes of the node, over TLS: health for all, metrics after authorization.",
        },
        Listener {
            name: "cloud controller manager",
            transport: "TCP",
            port: Some(cloud::PORT),
            place: "127.0.0.1, with `--cloud-provider aws` or `hetzner`; alone, `--bind-address` and `--secure-port`",
            clients: "Processes of the node, over TLS: health for all, metrics after authorization.",
        },
        Listener {
            name: "scheduler",
            transport: "TCP",
            port: Some(SCHEDULER_PORT),
            place: "127.0.0.1; alone, `--bind-address` and `--secure-port`",
            clients: "Processes of the node, over TLS: health for all, metrics after authorization.",
        },
    ]
}

fn several_servers() -> [Listener; 4] {
    [
        Listener {
            name: "etcd",
            transport: "TCP",
            port: Some(corten_members::Config::CLIENT_PORT),
            place: "the node's address, only on one of several servers",
            clients: "API servers and servers that join, over TLS, by a certificate of etcd's own CA.",
        },
        Listener {
            name: "etcd for other members",
            transport: "TCP",
            port: Some(corten_members::Config::PEER_PORT),
            place: "the node's address, only on one of several servers",
            clients: "The other members, over TLS, by a certificate of etcd's own CA.",
        },
        Listener {
            name: "etcd's metrics",
            transport: "TCP",
            port: Some(corten_members::Config::METRICS_PORT),
            place: "127.0.0.1, only on one of several servers",
            clients: "Processes of the node: health and metrics, no objects.",
        },
        Listener {
            name: "balancer of API servers",
            transport: "TCP",
            port: Some(BALANCER_PORT),
            place: "127.0.0.1, or a port of the system's choice where it is taken; only on agents that joined by a token",
            clients: "Processes of the node. Bytes pass through to an API server, which authenticates every request.",
        },
    ]
}

fn kubelet_and_runtime() -> [Listener; 4] {
    [
        Listener {
            name: "kubelet",
            transport: "TCP",
            port: Some(DEFAULT_KUBELET_PORT),
            place: "every address (`--kubelet-port`)",
            clients: "Every host, over TLS. Every request is authenticated and authorized by the API server.",
        },
        Listener {
            name: "kubelet's health",
            transport: "TCP",
            port: Some(corten_kubelet::Config::default().healthz.port()),
            place: "127.0.0.1 (`healthzBindAddress`, `healthzPort` of KubeletConfiguration)",
            clients: "Processes of the node.",
        },
        Listener {
            name: "streams of the container runtime",
            transport: "TCP",
            port: None,
            place: "127.0.0.1, a port of the system's choice",
            clients: "A client with the token in the URL, which the kubelet gets over the runtime's socket.",
        },
        Listener {
            name: "copies of volumes",
            transport: "TCP",
            port: Some(REPLICA_PORT),
            place: "the node's address, or a port of the system's choice where it is taken; only with a volume that has a copy on another node",
            clients: "The storage component of the node with the copy, over TLS, by its certificate.",
        },
    ]
}

fn network() -> [Listener; 5] {
    [
        Listener {
            name: "cluster DNS",
            transport: "UDP, TCP",
            port: Some(53),
            place: "the gateways of the node's pod CIDRs",
            clients: "Pods (addresses of `--cluster-cidr` and of the node's pod CIDRs) and the node itself. Packets of other hosts are not answered.",
        },
        Listener {
            name: "cluster DNS beside CNI plugins",
            transport: "UDP, TCP",
            port: Some(DNS_BESIDE_PLUGINS),
            place: "the node's addresses, only with `--network-backend cni`",
            clients: "The same.",
        },
        Listener {
            name: "metrics of cluster DNS",
            transport: "TCP",
            port: Some(DNS_METRICS),
            place: "the addresses of cluster DNS",
            clients: "The same; connections of other hosts are closed without a byte.",
        },
        Listener {
            name: "VXLAN",
            transport: "UDP",
            port: Some(corten_network::routes::VXLAN_PORT),
            place: "every address, by the kernel, only with `--network-backend vxlan`",
            clients: "The cluster's nodes. Packets of other hosts, and of pods, are dropped.",
        },
        Listener {
            name: "WireGuard",
            transport: "UDP",
            port: Some(corten_network::wireguard::PORT),
            place: "every address, by the kernel, only with `--network-backend wireguard`",
            clients: "The cluster's nodes, by their keys.",
        },
    ]
}

fn edge() -> Listener {
    Listener {
        name: "Gateways and Ingresses",
        transport: "TCP, UDP",
        port: None,
        place: "every address, one port of 28000-29999 (`--edge-port-range`) for each port of a Gateway; none without one",
        clients: "Every host, as at the address of the Gateway.",
    }
}

fn proxy() -> [Listener; 4] {
    let served = corten_proxy::Served::default();
    [
        Listener {
            name: "proxy's health",
            transport: "TCP",
            port: Some(served.health_port),
            place: "every address",
            clients: "Every host, as load balancers must ask: whether the rules are in time and the node stays.",
        },
        Listener {
            name: "proxy's status",
            transport: "TCP",
            port: Some(served.status.port()),
            place: "127.0.0.1",
            clients: "Processes of the node: health, mode, `/metrics/slis`.",
        },
        Listener {
            name: "health checks of Services",
            transport: "TCP",
            port: None,
            place: "every address, the Service's `healthCheckNodePort`; only for type LoadBalancer with `externalTrafficPolicy: Local`",
            clients: "Every host, as load balancers must ask. The answer is the number of local endpoints.",
        },
        Listener {
            name: "node ports, host ports, load balancers",
            transport: "TCP, UDP, SCTP",
            port: None,
            place: "as Services and pods ask for them, by nf_tables",
            clients: "Every host, unless `loadBalancerSourceRanges` or a NetworkPolicy says otherwise.",
        },
    ]
}
