//! The command line: every command and flag is declared here once; help and errors follow from it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use corten_network::routes::Backend;

use crate::access_options::AccessOptions;
use crate::backup_cli::{BackupOptions, Keep};
use crate::bench_cli::Bench;
use crate::certificate_cli::{Ca, Certificate, EncryptionKey, NodeCommand, ServiceAccountKey};
use crate::certificate_options::CertificateOptions;
use crate::cloud_options::{CloudOptions, EbsDriver};
use crate::edge_options::{Edge, EdgeOptions};
use crate::kubelet_options::KubeletOptions;
use crate::log_file::LogOptions;
use crate::membership_options::MembershipOptions;
use crate::network_options::NetworkOptions;
use crate::signing_options::SigningOptions;
use crate::simulate_cli::Simulate;
use crate::storage_options::StorageOptions;
use crate::store_cli::{Etcd, Store};
use crate::store_options::StoreOptions;
use crate::user_cli::{Console, Ingress, Support, Top, Trace, Why};

pub use crate::flag_values::{DirectoryFlags, duration};
pub use crate::serving_options::Serving;

use crate::flag_values::DEFAULT_CONFIG_FILE;

/// Kubernetes in one binary: API server, store, scheduler, controllers, kubelet, runtime, network, proxy and DNS.
#[derive(Debug, Parser)]
#[command(name = "corten", version = crate::version::VERSION, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub log: LogOptions,

    /// The file with flags by their names, for all commands; flags of the command line win.
    #[arg(long, global = true, default_value = DEFAULT_CONFIG_FILE, value_name = "FILE")]
    pub config_file: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the cluster in the background and wait until it is ready.
    Up(Up),
    /// Stop the cluster and its containers; the objects stay, unless --purge.
    Down(Down),
    /// Show the components, their versions, addresses and memory, and every bad condition with the command that helps.
    Status(DirectoryFlags),
    /// Check the running cluster against the CIS Kubernetes Benchmark, and print the remedy for each failure.
    Audit(AuditCommand),
    /// Show the log of the cluster's own process.
    Logs(Logs),
    /// Run the cluster in the foreground, for systemd and containers.
    Server(Server),
    /// Run one more node of a cluster: kubelet, runtime, network, proxy and DNS.
    Agent(Agent),
    /// Explain why an object is not as it should be: the cause, the evidence, and what would help.
    Why(Why),
    /// Show the cluster live in the terminal: nodes with their use, pods and events.
    Top(Top),
    /// Show how a change travels through the cluster: which component did what, and when.
    Trace(Trace),
    /// Import Ingresses of ingress-nginx.
    #[command(subcommand)]
    Ingress(Ingress),
    /// Pack logs, status and configuration into one file, without keys and Secrets.
    Support(Support),
    /// Show the console in the browser, signed in, on a loopback address.
    Console(Console),
    /// Create, list and delete the bootstrap tokens with which machines join the cluster.
    #[command(subcommand)]
    Token(Token),
    /// List the certificates of this machine.
    #[command(subcommand)]
    Certificate(Certificate),
    /// Rotate the certificate authorities of the cluster.
    #[command(subcommand)]
    Ca(Ca),
    /// Rotate the key of ServiceAccount tokens.
    #[command(subcommand)]
    ServiceAccountKey(ServiceAccountKey),
    /// Rotate the key that encrypts Secrets at rest.
    #[command(subcommand)]
    EncryptionKey(EncryptionKey),
    /// Revoke the credentials of a node.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Check the configuration file.
    #[command(subcommand)]
    Config(Config),
    /// Import, pull, list and remove container images.
    #[command(subcommand)]
    Image(Image),
    /// Read the store of a Kubernetes cluster.
    #[command(subcommand)]
    Etcd(Etcd),
    /// Check and repair the embedded store, and move its objects to etcd and back.
    #[command(subcommand)]
    Store(Store),
    #[command(flatten)]
    Keep(Keep),
    /// Benchmark a running cluster, Corten or any other Kubernetes.
    #[command(subcommand)]
    Bench(Bench),
    /// Simulate nodes and pods, to measure how many a control plane carries.
    Simulate(Simulate),
    /// Run the API server, the controllers and the scheduler, without a node; `corten simulate` starts it.
    #[command(hide = true)]
    ControlPlane(Server),
    /// Run the API server alone, with its embedded store.
    Apiserver(Server),
    /// Run the controllers alone.
    ControllerManager(ControllerManager),
    /// Run the controllers of a cloud alone: nodes, load balancers and routes.
    CloudControllerManager(CloudControllerManager),
    /// Run the CSI driver of EBS volumes alone, for upstream's sidecars and kubelets.
    EbsDriver(EbsDriver),
    /// Run the scheduler alone.
    Scheduler(Scheduler),
    /// Run the kubelet alone, against any CRI v1 runtime.
    Kubelet(Kubelet),
    /// Run the service proxy alone.
    Proxy(Proxy),
    /// Run the container runtime alone: a CRI v1 server.
    Runtime(Runtime),
    /// Run the cluster DNS server alone.
    Dns(Dns),
    /// Run the proxy of Gateways and Ingresses alone, and their controller.
    Edge(Edge),
}

#[derive(Debug, Clone, Subcommand)]
pub enum Config {
    /// Check the file that --config-file names: every key is a flag of a command, with a value that it takes.
    Check,
}

/// The default CIDR of pods.
pub const DEFAULT_CLUSTER_CIDR: &str = "10.244.0.0/16";
/// The default CIDR of Services.
pub const DEFAULT_SERVICE_CIDR: &str = "10.96.0.0/12";
/// The default domain of cluster DNS.
pub const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";
/// The default port of the API server.
pub const DEFAULT_PORT: u16 = 6443;
/// The default port of the kubelet.
pub const DEFAULT_KUBELET_PORT: u16 = 10250;

#[derive(Debug, Clone, Args)]
pub struct Server {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The number of nodes; those beyond the first run in network namespaces of this machine. Defaults to the number in
    /// the data directory, or to 1 for a new cluster.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub nodes: Option<u8>,
    /// The number of servers, each with an etcd member, for trying out: those beyond the first are the next nodes of this
    /// machine. Defaults to the number in the data directory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7), conflicts_with = "join")]
    pub servers: Option<u8>,
    /// The name of the first node; defaults to the host name.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The node's IP address, or one per IP family, separated by commas; defaults to those of the default routes.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub node_ip: Vec<IpAddr>,
    /// The IP address that the API server listens on; 0.0.0.0 includes all IPv6 addresses in a dual-stack cluster.
    #[arg(long, default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub bind_address: IpAddr,
    /// The port that the API server listens on.
    #[arg(long, default_value_t = DEFAULT_PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// The port that the kubelet of the first node listens on.
    #[arg(long, default_value_t = DEFAULT_KUBELET_PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub kubelet_port: u16,
    /// The CIDR of pod IPs, or one per IP family, separated by commas; each node gets a /24 or a /64 of it.
    #[arg(long, default_value = DEFAULT_CLUSTER_CIDR, value_name = "CIDRS")]
    pub cluster_cidr: String,
    /// The CIDR of Service ClusterIPs, or one per IP family, separated by commas.
    #[arg(long, default_value = DEFAULT_SERVICE_CIDR, value_name = "CIDRS")]
    pub service_cidr: String,
    /// The DNS domain of the cluster.
    #[arg(long, default_value = DEFAULT_CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// How pods reach pods of other nodes; defaults to host-gw if all nodes are on this machine, else to vxlan.
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub network_backend: Option<NetworkBackend>,
    /// How the proxy programs Services into the kernel.
    #[arg(long, value_enum, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: ProxyMode,
    #[command(flatten)]
    pub network: NetworkOptions,
    #[command(flatten)]
    pub edge: EdgeOptions,
    #[command(flatten)]
    pub storage: StorageOptions,
    /// The bridge that pods of the first node are attached to.
    #[arg(long, default_value = "corten0", value_name = "NAME")]
    pub bridge: String,
    /// The assigner of addresses to Services of type LoadBalancer.
    #[arg(long, value_enum, default_value_t = LoadBalancer::Nodes, value_name = "ADDRESSES")]
    pub load_balancer: LoadBalancer,
    /// Addresses for Services of type LoadBalancer, as ADDRESS or FIRST-LAST, instead of the nodes' own. They must belong
    /// to a subnet of the nodes, and no other machine may use them.
    #[arg(long, value_delimiter = ',', value_name = "RANGES", conflicts_with = "load_balancer")]
    pub load_balancer_pool: Vec<String>,
    /// A domain that cluster DNS forwards to another server, as corp.example=10.0.0.53; may be repeated.
    #[arg(long, value_name = "DOMAIN=ADDRESS")]
    pub dns_stub_domain: Vec<String>,
    /// An additional DNS name or IP address for the API server's certificate; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub tls_san: Vec<String>,
    /// A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) for the scheduler.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Do not run the scheduler; another one, which holds the Lease kube-system/kube-scheduler, schedules pods.
    #[arg(long)]
    pub disable_scheduler: bool,
    #[command(flatten)]
    pub membership: MembershipOptions,
    #[command(flatten)]
    pub store: StoreOptions,
    #[command(flatten)]
    pub access: AccessOptions,
    #[command(flatten)]
    pub certificates: CertificateOptions,
    #[command(flatten)]
    pub audit: Audit,
    #[command(flatten)]
    pub backup: BackupOptions,
    #[command(flatten)]
    pub cloud: CloudOptions,
    #[command(flatten)]
    pub kubelet: KubeletOptions,
    /// The directory of the image store, which servers of one machine share.
    #[arg(long, hide = true, value_name = "DIR")]
    pub image_dir: Option<PathBuf>,
    /// The descriptor for progress lines; `corten up` reads them.
    #[arg(long, hide = true)]
    pub progress_fd: Option<i32>,
}

/// Audit logging of the API server.
#[derive(Debug, Clone, Args)]
pub struct Audit {
    /// The audit Policy (audit.k8s.io/v1). Without it, a built-in policy logs reads of Secrets, exec into containers,
    /// and changes of workloads and RBAC, to audit/audit.log in the data directory.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// The file of audit events, one JSON object per line; `-` means the server's own log.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// The size at which the audit log is rotated; 0 disables rotation.
    #[arg(long, default_value_t = 100, value_name = "MEGABYTES")]
    pub audit_log_maxsize: u64,
    /// The number of rotated audit logs to keep; 0 keeps all.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub audit_log_maxbackup: usize,
    /// The number of days to keep rotated audit logs; 0 keeps them for ever.
    #[arg(long, default_value_t = 30, value_name = "DAYS")]
    pub audit_log_maxage: u64,
    /// The kubeconfig file of the audit webhook.
    #[arg(long, value_name = "FILE", requires = "audit_policy_file")]
    pub audit_webhook_config_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Up {
    #[command(flatten)]
    pub server: Server,
    /// The kubeconfig file to merge the context `corten` into; $KUBECONFIG or ~/.kube/config if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Do not change the user's kubeconfig.
    #[arg(long)]
    pub no_kubeconfig: bool,
    /// Give up after this many seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Debug, Clone, Args)]
pub struct Down {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// Remove everything: objects, images, volumes, links, cgroups and the kubeconfig context.
    #[arg(long)]
    pub purge: bool,
    /// The kubeconfig file to take the context out of; $KUBECONFIG or ~/.kube/config if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct AuditCommand {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The output format; defaults to text.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<AuditOutput>,
}

/// The output formats of the audit's report beside text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AuditOutput {
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct Logs {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// Follow the log.
    #[arg(short, long)]
    pub follow: bool,
    /// The node whose log to show; defaults to the first.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Agent {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    #[command(flatten)]
    pub join: Join,
    /// The kubeconfig file of the node's user, instead of joining with a token.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "token"])]
    pub kubeconfig: Option<PathBuf>,
    /// The name of the node; defaults to the host name.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The node's IP address, or one per IP family, separated by commas; defaults to those of the default routes.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub node_ip: Vec<IpAddr>,
    /// The port that the kubelet listens on.
    #[arg(long, default_value_t = DEFAULT_KUBELET_PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub kubelet_port: u16,
    /// The CIDRs of pod IPs; defaults to those of the cluster.
    #[arg(long, value_name = "CIDRS")]
    pub cluster_cidr: Option<String>,
    /// The CIDRs of Service ClusterIPs; defaults to those of the cluster.
    #[arg(long, value_name = "CIDRS")]
    pub service_cidr: Option<String>,
    /// The DNS domain of the cluster; defaults to that of the cluster.
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// How pods reach pods of other nodes; defaults to the setting of the cluster.
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub network_backend: Option<NetworkBackend>,
    /// How the proxy programs Services into the kernel.
    #[arg(long, value_enum, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: ProxyMode,
    #[command(flatten)]
    pub network: NetworkOptions,
    #[command(flatten)]
    pub edge: EdgeOptions,
    #[command(flatten)]
    pub storage: StorageOptions,
    /// Addresses for Services of type LoadBalancer that nodes announce; defaults to the setting of the cluster.
    #[arg(long, value_delimiter = ',', value_name = "RANGES")]
    pub load_balancer_pool: Option<Vec<String>>,
    /// A domain that cluster DNS forwards to another server; defaults to the setting of the cluster.
    #[arg(long, value_name = "DOMAIN=ADDRESS")]
    pub dns_stub_domain: Vec<String>,
    /// The bridge that pods of the node are attached to.
    #[arg(long, default_value = "corten0", value_name = "NAME")]
    pub bridge: String,
    /// The directory of the image store; defaults to <data dir>/images.
    #[arg(long, value_name = "DIR")]
    pub image_dir: Option<PathBuf>,
    #[command(flatten)]
    pub kubelet: KubeletOptions,
}

/// The assigner of addresses to Services of type LoadBalancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadBalancer {
    /// Corten: every Ready node serves the Service's ports on its own addresses.
    Nodes,
    /// A controller that the user installs.
    Off,
}

impl LoadBalancer {
    /// Returns the value of the flag.
    pub fn name(self) -> &'static str {
        match self {
            LoadBalancer::Nodes => "nodes",
            LoadBalancer::Off => "off",
        }
    }
}

/// How the proxy programs Services into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ProxyMode {
    /// nftables rules, over netlink.
    Nftables,
    /// iptables rules, by the host's iptables-restore.
    Iptables,
    /// nftables rules, and IPVS for ClusterIPs.
    Ipvs,
    /// nftables rules, and eBPF programs at the sockets of pods, for TCP and unconnected UDP to ClusterIPs without
    /// session affinity.
    Ebpf,
}

impl ProxyMode {
    /// Returns the value of the flag.
    pub fn name(self) -> &'static str {
        match self {
            ProxyMode::Nftables => "nftables",
            ProxyMode::Iptables => "iptables",
            ProxyMode::Ipvs => "ipvs",
            ProxyMode::Ebpf => "ebpf",
        }
    }
}

/// How pods reach pods of other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkBackend {
    /// VXLAN: encapsulated in UDP, over any network between the nodes.
    Vxlan,
    /// Routes to the pod CIDRs of the other nodes, which must be on the same link.
    HostGw,
    /// WireGuard: encrypted, on UDP port 51820.
    Wireguard,
    /// The CNI plugins of /etc/cni/net.d make the pod network and enforce NetworkPolicies. Cluster DNS answers pods
    /// with IPs of --cluster-cidr.
    Cni,
}

impl NetworkBackend {
    /// Returns the value of the flag.
    pub fn name(self) -> &'static str {
        match self {
            NetworkBackend::Vxlan => "vxlan",
            NetworkBackend::HostGw => "host-gw",
            NetworkBackend::Wireguard => "wireguard",
            NetworkBackend::Cni => "cni",
        }
    }
}

impl NetworkBackend {
    /// Returns our own backend between nodes; none if CNI plugins make the network.
    pub fn own(self) -> Option<Backend> {
        match self {
            NetworkBackend::Vxlan => Some(Backend::Vxlan),
            NetworkBackend::HostGw => Some(Backend::HostGateway),
            NetworkBackend::Wireguard => Some(Backend::Wireguard),
            NetworkBackend::Cni => None,
        }
    }
}

/// The flags by which a machine finds the cluster that it joins. A machine that has joined needs none of them after a
/// reboot.
#[derive(Debug, Clone, Args)]
pub struct Join {
    /// The address of the cluster's API server.
    #[arg(long, value_name = "URL", requires = "token")]
    pub server: Option<String>,
    /// The bootstrap token that `corten token create` printed; `-` reads it from standard input.
    #[arg(long, value_name = "TOKEN", requires = "server")]
    pub token: Option<String>,
    /// The hash of the cluster CA's public key, as sha256:<hex>; may be repeated.
    #[arg(long, value_name = "HASH")]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// Join without verifying the cluster CA: any server at that address is trusted.
    #[arg(long)]
    pub discovery_token_unsafe_skip_ca_verification: bool,
}

/// A component that is nothing but a client of the API.
#[derive(Debug, Clone, Args)]
pub struct Component {
    /// The kubeconfig file.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The name of the node that this runs on; defaults to the host name.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The CIDRs of pod IPs.
    #[arg(long, default_value = DEFAULT_CLUSTER_CIDR, value_name = "CIDRS")]
    pub cluster_cidr: String,
}

/// The proxy alone.
#[derive(Debug, Clone, Args)]
pub struct Proxy {
    #[command(flatten)]
    pub component: Component,
    /// How the proxy programs Services into the kernel.
    #[arg(long, value_enum, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: ProxyMode,
}

/// Leader election among several processes.
#[derive(Debug, Clone, Args)]
pub struct LeaderElection {
    /// Run only while holding the component's Lease.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: bool,
    /// How long non-leaders wait before they acquire the Lease of a leader that does not renew it.
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader tries to renew the Lease before it stops leading.
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = duration)]
    pub leader_elect_renew_deadline: Duration,
    /// The interval between attempts to acquire or renew the Lease.
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = duration)]
    pub leader_elect_retry_period: Duration,
}

/// The controllers alone. Flags have upstream's names.
#[derive(Debug, Clone, Args)]
pub struct ControllerManager {
    #[command(flatten)]
    pub component: Component,
    #[command(flatten)]
    pub election: LeaderElection,
    /// The controllers to run: `foo` enables foo, `-foo` disables it, `*` enables all.
    #[arg(long, value_delimiter = ',', default_value = "*", value_name = "NAMES", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// The CA bundle for pods (ConfigMap kube-root-ca.crt); defaults to the CA of the kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub signing: SigningOptions,
    /// The maximum duration of signed certificates.
    #[arg(long, default_value = "8760h", value_name = "DURATION", value_parser = duration)]
    pub cluster_signing_duration: Duration,
    /// Allocate a pod CIDR to every node.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub allocate_node_cidrs: bool,
    /// The prefix length of a node's pod CIDR.
    #[arg(long, default_value_t = 24, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub node_cidr_mask_size_ipv4: u8,
    /// The prefix length of a node's IPv6 pod CIDR.
    #[arg(long, default_value_t = 64, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=128))]
    pub node_cidr_mask_size_ipv6: u8,
    /// How long a node may be unresponsive before its conditions become Unknown.
    #[arg(long, default_value = "50s", value_name = "DURATION", value_parser = duration)]
    pub node_monitor_grace_period: Duration,
    /// The same for a node that is starting up.
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = duration)]
    pub node_startup_grace_period: Duration,
    /// The number of terminated pods to keep; 0 keeps all.
    #[arg(long, default_value_t = 12_500, value_name = "COUNT")]
    pub terminated_pod_gc_threshold: usize,
    /// A pod that empties volumes on a node's disk, in place of the usual one; its first volume is replaced.
    #[arg(long, value_name = "FILE")]
    pub pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
    /// The seconds that it has at least.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub pv_recycler_minimum_timeout_hostpath: i32,
    /// The seconds that it has for each GiB.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub pv_recycler_timeout_increment_hostpath: i32,
    /// A pod that empties volumes on NFS servers, in place of the usual one; its first volume is replaced.
    #[arg(long, value_name = "FILE")]
    pub pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
    /// The seconds that it has at least.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    pub pv_recycler_minimum_timeout_nfs: i32,
    /// The seconds that it has for each GiB.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub pv_recycler_increment_timeout_nfs: i32,
    #[command(flatten)]
    pub serving: Serving,
}

/// The cloud controller manager alone. Flags have upstream's names.
#[derive(Debug, Clone, Args)]
pub struct CloudControllerManager {
    #[command(flatten)]
    pub component: Component,
    #[command(flatten)]
    pub election: LeaderElection,
    /// The cloud provider: aws or hetzner.
    #[arg(long, value_name = "PROVIDER")]
    pub cloud_provider: String,
    #[command(flatten)]
    pub cloud: CloudOptions,
    /// Whether nodes have pod CIDRs, without which no routes are made.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub allocate_node_cidrs: bool,
    /// The controllers to run: `foo` enables foo, `-foo` disables it, `*` enables all.
    #[arg(long, value_delimiter = ',', default_value = "*", value_name = "NAMES", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    #[command(flatten)]
    pub serving: Serving,
}

#[derive(Debug, Clone, Args)]
pub struct Scheduler {
    /// The kubeconfig file; defaults to the one in the configuration.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The name of the node that this runs on; defaults to the host name.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Run only while holding the scheduler's Lease; ignored if --config is given, which has its own setting.
    #[arg(long, conflicts_with = "config")]
    pub leader_elect: bool,
    #[command(flatten)]
    pub serving: Serving,
}

#[derive(Debug, Clone, Args)]
pub struct Kubelet {
    #[command(flatten)]
    pub agent: Agent,
    /// The CRI v1 socket of the container runtime; defaults to <run dir>/cri.sock.
    #[arg(long, value_name = "SOCKET")]
    pub container_runtime_endpoint: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Runtime {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The socket that serves CRI v1; defaults to <run dir>/cri.sock.
    #[arg(long, value_name = "SOCKET")]
    pub listen: Option<PathBuf>,
    /// A YAML file with the configuration of image registries: mirrors, TLS, credentials.
    #[arg(long, value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    /// Additional OCI runtimes by RuntimeClass handler, as `runc=/usr/sbin/runc,kata=/usr/bin/kata-runtime`.
    #[arg(long, value_name = "HANDLERS")]
    pub runtime_handlers: Option<String>,
    /// The kubelet's directory of seccomp profiles; Localhost profiles outside of it are refused.
    #[arg(long, default_value = "/var/lib/kubelet/seccomp", value_name = "DIR")]
    pub seccomp_profile_root: PathBuf,
    /// The pod CIDRs of this node; defaults to those that the kubelet sends over CRI.
    #[arg(long, value_name = "CIDRS")]
    pub pod_cidr: Option<String>,
    /// The CIDR of all pod IPs.
    #[arg(long, default_value = DEFAULT_CLUSTER_CIDR, value_name = "CIDR")]
    pub cluster_cidr: String,
    /// The bridge that pods are attached to.
    #[arg(long, default_value = "corten0", value_name = "NAME")]
    pub bridge: String,
}

#[derive(Debug, Clone, Args)]
pub struct Dns {
    /// The kubeconfig file.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The IP addresses to listen on.
    #[arg(long, default_value = "127.0.0.1:53", value_name = "ADDRESS:PORT")]
    pub listen: Vec<std::net::SocketAddr>,
    /// The DNS domain of the cluster.
    #[arg(long, default_value = DEFAULT_CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub cluster_domain: String,
}

/// The credentials of a token command.
#[derive(Debug, Clone, Args)]
pub struct TokenAccess {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The kubeconfig file; defaults to the administrator's in the data directory.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct TokenCreate {
    #[command(flatten)]
    pub access: TokenAccess,
    /// The token, as [a-z0-9]{6}.[a-z0-9]{16}; `-` reads it from standard input, which keeps it out of the process list;
    /// defaults to a random one.
    #[arg(value_name = "TOKEN")]
    pub token: Option<String>,
    /// How long the token is valid; 0 means that it never expires.
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub ttl: String,
    /// A description of the token.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// The usages of the token: signing, authentication.
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication", value_name = "USAGES")]
    pub usages: Vec<String>,
    /// Make a token with which a machine joins as another server, which gives it the cluster's keys.
    #[arg(long, conflicts_with_all = ["token", "usages", "groups"])]
    pub server: bool,
    /// The groups of the token's user.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "system:bootstrappers:kubeadm:default-node-token",
        value_name = "GROUPS"
    )]
    pub groups: Vec<String>,
    /// Print the `corten agent` or `corten server` command that joins a machine.
    #[arg(long)]
    pub print_join_command: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Token {
    /// Create a token.
    Create(TokenCreate),
    /// List the tokens.
    List {
        #[command(flatten)]
        access: TokenAccess,
    },
    /// Delete tokens, by ID or whole token.
    Delete {
        #[command(flatten)]
        access: TokenAccess,
        /// The tokens or their ids; `-` reads them from standard input, one a line.
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
    /// Print a random token without creating it.
    Generate,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Image {
    /// Import a docker or OCI archive (`docker save`, `skopeo copy … oci-archive:`); `-` reads standard input.
    Import {
        #[command(flatten)]
        directories: DirectoryFlags,
        /// The archives.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Pull an image from a registry.
    Pull {
        #[command(flatten)]
        directories: DirectoryFlags,
        #[arg(value_name = "IMAGE")]
        image: String,
        /// The registry's credentials; `-` reads them from standard input, which keeps them out of the process list.
        #[arg(long, value_name = "USER:PASSWORD")]
        user: Option<String>,
        /// Use plain HTTP.
        #[arg(long)]
        plain_http: bool,
        /// A YAML file with the configuration of image registries: mirrors, TLS, credentials.
        #[arg(long, value_name = "FILE", conflicts_with = "plain_http")]
        registry_config: Option<PathBuf>,
    },
    /// List the images.
    Ls {
        #[command(flatten)]
        directories: DirectoryFlags,
    },
    /// Remove images.
    Rm {
        #[command(flatten)]
        directories: DirectoryFlags,
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}
