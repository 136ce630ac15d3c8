//! The command line: every command and flag is declared here once; help and errors follow from it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use corten_network::routes::Backend;

use crate::access_options::AccessOptions;
use crate::kubelet_options::KubeletOptions;
use crate::network_options::NetworkOptions;
use crate::signing_options::SigningOptions;

/// Kubernetes in one binary: API server, store, scheduler, controllers, kubelet, runtime, network, proxy and DNS.
#[derive(Debug, Parser)]
#[command(name = "corten", version = crate::config::VERSION, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// What to log: error, warn, info, debug, trace, or a filter such as `info,corten_kubelet=debug`.
    #[arg(long, global = true, default_value = "info", value_name = "FILTER")]
    pub log: String,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the cluster in the background and wait until it is ready.
    Up(Up),
    /// Stop the cluster and its containers; the objects stay, unless --purge.
    Down(Down),
    /// Show the components, their versions, addresses and memory.
    Status(Where),
    /// Compare the running cluster with the CIS Kubernetes Benchmark: what passes, what fails, and how to mend it.
    Audit(AuditCommand),
    /// Show the log of the cluster's own process.
    Logs(Logs),
    /// Run the cluster in the foreground, for systemd and containers.
    Server(Server),
    /// Run one more node of a cluster: kubelet, runtime, network, proxy and DNS.
    Agent(Agent),
    /// Tell why a pod is pending, plugin by plugin and node by node, and what would help.
    Why(Why),
    /// Make, list and delete the tokens with which machines join the cluster.
    #[command(subcommand)]
    Token(Token),
    /// Import, pull, list and remove container images.
    #[command(subcommand)]
    Image(Image),
    /// Measure a running cluster, of this or any other Kubernetes.
    #[command(subcommand)]
    Bench(Bench),
    /// Run the API server alone, with its embedded store.
    Apiserver(Server),
    /// Run the controllers alone.
    ControllerManager(ControllerManager),
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
}

/// The range of pods when no flag names one.
pub const DEFAULT_CLUSTER_CIDR: &str = "10.244.0.0/16";
/// The range of Services when no flag names one.
pub const DEFAULT_SERVICE_CIDR: &str = "10.96.0.0/12";
/// The domain of cluster DNS when no flag names one.
pub const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";
/// The data directory when no flag names one.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/corten";

/// Where a cluster lives on this machine.
#[derive(Debug, Clone, Args)]
pub struct Where {
    /// Everything that must survive a restart: store, certificates, images, volumes.
    #[arg(long, default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Sockets, pid file and namespaces: what a reboot may lose.
    #[arg(long, default_value = "/run/corten", value_name = "DIR")]
    pub run_dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct Server {
    #[command(flatten)]
    pub place: Where,
    /// How many nodes; those beyond the first live in network namespaces of this machine. Without it, as many as
    /// the data directory has, and one in a new one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub nodes: Option<u8>,
    /// The first node's name; the host name if absent.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The node's address, or one of each version of IP; those that the default routes use if absent.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub node_ip: Vec<IpAddr>,
    /// The address the API server listens on; 0.0.0.0 stands for those of IPv6 too where the cluster has it.
    #[arg(long, default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub bind_address: IpAddr,
    /// The port the API server listens on.
    #[arg(long, default_value_t = 6443, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// The port the first node's kubelet listens on.
    #[arg(long, default_value_t = 10250, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub kubelet_port: u16,
    /// The range that pod addresses come from, or one of each version of IP; each node gets a /24 of it, or a /64.
    #[arg(long, default_value = DEFAULT_CLUSTER_CIDR, value_name = "CIDRS")]
    pub cluster_cidr: String,
    /// The range that Service addresses come from, or one of each version of IP.
    #[arg(long, default_value = DEFAULT_SERVICE_CIDR, value_name = "CIDRS")]
    pub service_cidr: String,
    /// The domain of the names that cluster DNS answers.
    #[arg(long, default_value = DEFAULT_CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// How packets travel between nodes; if absent, host-gw among the nodes of this machine (--nodes), else vxlan.
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub network_backend: Option<NetworkBackend>,
    /// How the kernel is told Services: nftables, or iptables for hosts whose other rules need it.
    #[arg(long, value_enum, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: ProxyMode,
    #[command(flatten)]
    pub network: NetworkOptions,
    /// The bridge that the first node's pods are attached to.
    #[arg(long, default_value = "corten0", value_name = "NAME")]
    pub bridge: String,
    /// Where Services of type LoadBalancer get their addresses: the nodes' own, or from somebody else.
    #[arg(long, value_enum, default_value_t = LoadBalancer::Nodes, value_name = "ADDRESSES")]
    pub load_balancer: LoadBalancer,
    /// Addresses for Services of type LoadBalancer instead of the nodes' own, each one address or first-last; they must be
    /// of a link of the nodes, and nobody else's.
    #[arg(long, value_delimiter = ',', value_name = "RANGES", conflicts_with = "load_balancer")]
    pub load_balancer_pool: Vec<String>,
    /// A domain that cluster DNS asks others about: corp.example=10.0.0.53; may be repeated.
    #[arg(long, value_name = "DOMAIN=ADDRESS")]
    pub dns_stub_domain: Vec<String>,
    /// Another name or address that the API server's certificate shall carry; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub tls_san: Vec<String>,
    /// A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) for the scheduler.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Run no scheduler: another, under the Lease kube-system/kube-scheduler, places the pods.
    #[arg(long)]
    pub disable_scheduler: bool,
    #[command(flatten)]
    pub access: AccessOptions,
    #[command(flatten)]
    pub audit: Audit,
    #[command(flatten)]
    pub kubelet: KubeletOptions,
    /// Where progress is written, as lines; `corten up` reads them.
    #[arg(long, hide = true)]
    pub progress_fd: Option<i32>,
}

/// What is written about the requests to the API server, and where to.
#[derive(Debug, Clone, Args)]
pub struct Audit {
    /// The Policy (audit.k8s.io/v1) that says what is written about requests. Without it: who read Secrets, ran commands
    /// in containers, or changed workloads and rights, to audit/audit.log in the data directory.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// The file that audit events are written to, one a line; `-` is the log of the server.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// The file is put aside when it would grow beyond this; 0 is never.
    #[arg(long, default_value_t = 100, value_name = "MEGABYTES")]
    pub audit_log_maxsize: u64,
    /// How many files that were put aside are kept; 0 is all.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub audit_log_maxbackup: usize,
    /// How long they are kept; 0 is for ever.
    #[arg(long, default_value_t = 30, value_name = "DAYS")]
    pub audit_log_maxage: u64,
    /// The kubeconfig file of a server that audit events are sent to.
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
    /// Leave the user's kubeconfig alone.
    #[arg(long)]
    pub no_kubeconfig: bool,
    /// Give up after this many seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Debug, Clone, Args)]
pub struct Down {
    #[command(flatten)]
    pub place: Where,
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
    pub place: Where,
    /// Print a document for programs instead of text for people.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<AuditOutput>,
}

/// The forms of the audit's report beside text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum AuditOutput {
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct Logs {
    #[command(flatten)]
    pub place: Where,
    /// Go on as the log grows.
    #[arg(short, long)]
    pub follow: bool,
    /// The log of this node instead of the first.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Agent {
    #[command(flatten)]
    pub place: Where,
    #[command(flatten)]
    pub join: Join,
    /// How to reach the API server, as the node's own user, instead of joining.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["server", "token"])]
    pub kubeconfig: Option<PathBuf>,
    /// The node's name; the host name if absent.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The node's address, or one of each version of IP; those that the default routes use if absent.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESSES")]
    pub node_ip: Vec<IpAddr>,
    /// The port the kubelet listens on.
    #[arg(long, default_value_t = 10250, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub kubelet_port: u16,
    /// The ranges that pod addresses come from; the cluster's own if absent.
    #[arg(long, value_name = "CIDRS")]
    pub cluster_cidr: Option<String>,
    /// The ranges that Service addresses come from; the cluster's own if absent.
    #[arg(long, value_name = "CIDRS")]
    pub service_cidr: Option<String>,
    /// The domain of the names that cluster DNS answers; the cluster's own if absent.
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// How packets travel between nodes; as the cluster says if absent.
    #[arg(long, value_enum, value_name = "BACKEND")]
    pub network_backend: Option<NetworkBackend>,
    /// How the kernel is told Services: nftables, or iptables for hosts whose other rules need it.
    #[arg(long, value_enum, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: ProxyMode,
    #[command(flatten)]
    pub network: NetworkOptions,
    /// Addresses for Services of type LoadBalancer that nodes announce; as the cluster says if absent.
    #[arg(long, value_delimiter = ',', value_name = "RANGES")]
    pub load_balancer_pool: Option<Vec<String>>,
    /// A domain that cluster DNS asks others about; as the cluster says if absent.
    #[arg(long, value_name = "DOMAIN=ADDRESS")]
    pub dns_stub_domain: Vec<String>,
    /// The bridge that the node's pods are attached to.
    #[arg(long, default_value = "corten0", value_name = "NAME")]
    pub bridge: String,
    /// The image store; <data dir>/images if absent.
    #[arg(long, value_name = "DIR")]
    pub image_dir: Option<PathBuf>,
    #[command(flatten)]
    pub kubelet: KubeletOptions,
}

/// Where Services of type LoadBalancer get their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadBalancer {
    /// Every Ready node serves the Service's ports on its own addresses.
    Nodes,
    /// From a controller that the user installs.
    Off,
}

impl LoadBalancer {
    /// As the flag takes it.
    pub fn name(self) -> &'static str {
        match self {
            LoadBalancer::Nodes => "nodes",
            LoadBalancer::Off => "off",
        }
    }
}

/// How the kernel is told Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ProxyMode {
    /// nf_tables, over netlink.
    Nftables,
    /// The host's iptables-restore.
    Iptables,
    /// nf_tables, but the kernel's load balancer IPVS for cluster addresses. Never run yet on a kernel that has it.
    Ipvs,
    /// nf_tables, and before it programs that translate at the sockets of pods: TCP, and UDP that is not connected, to
    /// cluster addresses without affinity.
    Ebpf,
}

impl ProxyMode {
    /// As the flag takes it.
    pub fn name(self) -> &'static str {
        match self {
            ProxyMode::Nftables => "nftables",
            ProxyMode::Iptables => "iptables",
            ProxyMode::Ipvs => "ipvs",
            ProxyMode::Ebpf => "ebpf",
        }
    }
}

/// How packets travel between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkBackend {
    /// In UDP, over whatever network is between the nodes.
    Vxlan,
    /// By plain routes: nodes must be neighbours on one link.
    HostGw,
    /// Encrypted in UDP by the kernel's WireGuard, on port 51820. Never run yet on a kernel that has it.
    Wireguard,
    /// As the CNI plugins of /etc/cni/net.d have it, which then make the pods' network and enforce its policies. Cluster
    /// DNS answers pods with addresses of --cluster-cidr.
    Cni,
}

impl NetworkBackend {
    /// As the flag takes it.
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
    /// The way between nodes that is ours to keep; none if plugins do.
    pub fn own(self) -> Option<Backend> {
        match self {
            NetworkBackend::Vxlan => Some(Backend::Vxlan),
            NetworkBackend::HostGw => Some(Backend::HostGateway),
            NetworkBackend::Wireguard => Some(Backend::Wireguard),
            NetworkBackend::Cni => None,
        }
    }
}

/// How a machine finds the cluster it is to be a node of. One that has joined needs none of it after a reboot.
#[derive(Debug, Clone, Args)]
pub struct Join {
    /// The cluster's API server.
    #[arg(long, value_name = "URL", requires = "token")]
    pub server: Option<String>,
    /// The bootstrap token that `corten token create` printed.
    #[arg(long, value_name = "TOKEN", requires = "server")]
    pub token: Option<String>,
    /// The hash of the key of the cluster's authority: sha256:<hexadecimal digits>; may be repeated.
    #[arg(long, value_name = "HASH")]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// Join whoever answers at the server's address, without a hash.
    #[arg(long)]
    pub discovery_token_unsafe_skip_ca_verification: bool,
}

/// A component that is nothing but a client of the API.
#[derive(Debug, Clone, Args)]
pub struct Component {
    /// How to reach the API server, and as whom.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The node this runs on; the host name if absent.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The ranges that pod addresses come from.
    #[arg(long, default_value = DEFAULT_CLUSTER_CIDR, value_name = "CIDRS")]
    pub cluster_cidr: String,
}

/// The proxy alone.
#[derive(Debug, Clone, Args)]
pub struct Proxy {
    #[command(flatten)]
    pub component: Component,
    /// How the kernel is told Services: nftables, or iptables for hosts whose other rules need it.
    #[arg(long, value_enum, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: ProxyMode,
}

/// Which of several processes acts.
#[derive(Debug, Clone, Args)]
pub struct LeaderElection {
    /// Act only while holding the component's Lease.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: bool,
    /// How long others wait before they take over from a leader that is silent.
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long a leader tries to renew its Lease before it gives up.
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = duration)]
    pub leader_elect_renew_deadline: Duration,
    /// How long to wait between two attempts.
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
    /// The controllers that run: names, `*` for all, `-name` for all but that one.
    #[arg(long, value_delimiter = ',', default_value = "*", value_name = "NAMES", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// The bundle that pods get as their root of trust; the kubeconfig's own if absent.
    #[arg(long, value_name = "FILE")]
    pub root_ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub signing: SigningOptions,
    /// The longest life of a certificate that is signed.
    #[arg(long, default_value = "8760h", value_name = "DURATION", value_parser = duration)]
    pub cluster_signing_duration: Duration,
    /// Give every node a range of the cluster's for its pods.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub allocate_node_cidrs: bool,
    /// How large a node's range is, as a prefix length.
    #[arg(long, default_value_t = 24, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub node_cidr_mask_size_ipv4: u8,
    /// The same for IPv6.
    #[arg(long, default_value_t = 64, value_name = "BITS", value_parser = clap::value_parser!(u8).range(1..=128))]
    pub node_cidr_mask_size_ipv6: u8,
    /// How long a node may be silent before it counts as unknown.
    #[arg(long, default_value = "50s", value_name = "DURATION", value_parser = duration)]
    pub node_monitor_grace_period: Duration,
    /// The same for a node that has not reported yet.
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = duration)]
    pub node_startup_grace_period: Duration,
    /// How many ended pods are kept; 0 for all.
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

/// A duration as upstream's flags write it: `50s`, `8760h0m0s`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    parsed.try_into().map_err(|_| format!("{text} is negative"))
}

#[derive(Debug, Clone, Args)]
pub struct Scheduler {
    /// How to reach the API server, and as whom; the one that the configuration names if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The node this runs on; the host name if absent.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Act only while holding the scheduler's Lease; a configuration says itself whether to.
    #[arg(long, conflicts_with = "config")]
    pub leader_elect: bool,
    #[command(flatten)]
    pub serving: Serving,
}

/// Where a component that runs alone shows its health and metrics.
#[derive(Debug, Clone, Args)]
pub struct Serving {
    /// The address that health and metrics are served on.
    #[arg(long, default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub bind_address: std::net::IpAddr,
    /// The port that health and metrics are served on; upstream's of the component if absent, 0 serves nothing.
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,
    /// The certificate to serve with; one is made if absent.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

impl Serving {
    /// Where to serve, for a component with this port of upstream's.
    pub fn address(&self, default_port: u16) -> std::net::SocketAddr {
        (self.bind_address, self.secure_port.unwrap_or(default_port)).into()
    }

    /// Certificate and key, if they are named.
    pub fn identity(&self) -> anyhow::Result<Option<(String, String)>> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))
        };
        let pair = self.tls_cert_file.as_ref().zip(self.tls_private_key_file.as_ref());
        pair.map(|(certificate, key)| Ok((read(certificate)?, read(key)?))).transpose()
    }
}

#[derive(Debug, Clone, Args)]
pub struct Why {
    /// The pod, as `NAME` or `pod/NAME`.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The pod's namespace.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// How to reach the API server; $KUBECONFIG or ~/.kube/config if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The scheduler's KubeSchedulerConfiguration, where it has one.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Kubelet {
    #[command(flatten)]
    pub agent: Agent,
    /// The CRI v1 socket of the container runtime; <run dir>/cri.sock if absent.
    #[arg(long, value_name = "SOCKET")]
    pub container_runtime_endpoint: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Runtime {
    #[command(flatten)]
    pub place: Where,
    /// Where to serve CRI v1; <run dir>/cri.sock if absent.
    #[arg(long, value_name = "SOCKET")]
    pub listen: Option<PathBuf>,
    /// How to reach image registries, with their mirrors: a YAML file.
    #[arg(long, value_name = "FILE")]
    pub registry_config: Option<PathBuf>,
    /// Other OCI runtimes by the handler that a RuntimeClass names, as `runc=/usr/sbin/runc,kata=/usr/bin/kata-runtime`.
    #[arg(long, value_name = "HANDLERS")]
    pub runtime_handlers: Option<String>,
    /// The kubelet's folder of seccomp profiles; no profile of a pod is read from elsewhere.
    #[arg(long, default_value = "/var/lib/kubelet/seccomp", value_name = "DIR")]
    pub seccomp_profile_root: PathBuf,
    /// The ranges of this node's pods; what the kubelet says over CRI if absent.
    #[arg(long, value_name = "CIDRS")]
    pub pod_cidr: Option<String>,
    /// The range that all pod addresses come from.
    #[arg(long, default_value = DEFAULT_CLUSTER_CIDR, value_name = "CIDR")]
    pub cluster_cidr: String,
    /// The bridge that pods are attached to.
    #[arg(long, default_value = "corten0", value_name = "NAME")]
    pub bridge: String,
}

#[derive(Debug, Clone, Args)]
pub struct Dns {
    /// How to reach the API server, and as whom.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The addresses to answer on.
    #[arg(long, default_value = "127.0.0.1:53", value_name = "ADDRESS:PORT")]
    pub listen: Vec<std::net::SocketAddr>,
    /// The domain of the names that are answered from the cluster.
    #[arg(long, default_value = DEFAULT_CLUSTER_DOMAIN, value_name = "DOMAIN")]
    pub cluster_domain: String,
}

/// Who a token command acts as.
#[derive(Debug, Clone, Args)]
pub struct TokenAccess {
    #[command(flatten)]
    pub place: Where,
    /// How to reach the API server; the administrator's of the data directory if absent.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct TokenCreate {
    #[command(flatten)]
    pub access: TokenAccess,
    /// The token, six and sixteen characters with a dot between them; a new one if absent.
    #[arg(value_name = "TOKEN")]
    pub token: Option<String>,
    /// How long the token is good; 0 means for ever.
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub ttl: String,
    /// What the token is for.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// What the token may be used for: signing, authentication.
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication", value_name = "USAGES")]
    pub usages: Vec<String>,
    /// The groups that the token's user belongs to.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "system:bootstrappers:kubeadm:default-node-token",
        value_name = "GROUPS"
    )]
    pub groups: Vec<String>,
    /// Print the whole command that makes another machine a node.
    #[arg(long)]
    pub print_join_command: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Token {
    /// Make a token.
    Create(TokenCreate),
    /// List the tokens.
    List {
        #[command(flatten)]
        access: TokenAccess,
    },
    /// Delete tokens, by their id or as a whole.
    Delete {
        #[command(flatten)]
        access: TokenAccess,
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<String>,
    },
    /// Print a token that could be created.
    Generate,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Image {
    /// Import a docker or OCI archive (`docker save`, `skopeo copy … oci-archive:`); `-` reads standard input.
    Import {
        #[command(flatten)]
        place: Where,
        /// The archives.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Pull an image from a registry.
    Pull {
        #[command(flatten)]
        place: Where,
        #[arg(value_name = "IMAGE")]
        image: String,
        /// The registry's credentials.
        #[arg(long, value_name = "USER:PASSWORD")]
        user: Option<String>,
        /// Speak plain HTTP with the registry.
        #[arg(long)]
        plain_http: bool,
        /// How to reach image registries, with their mirrors: a YAML file.
        #[arg(long, value_name = "FILE", conflicts_with = "plain_http")]
        registry_config: Option<PathBuf>,
    },
    /// List the images.
    Ls {
        #[command(flatten)]
        place: Where,
    },
    /// Remove images.
    Rm {
        #[command(flatten)]
        place: Where,
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// Measure an API server: creates, gets, lists and watches over TLS, in a namespace that is removed afterwards.
    Api(BenchApi),
}

#[derive(Debug, Clone, Args)]
pub struct BenchApi {
    /// The server, as https://host:port; that of the kubeconfig if absent.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// How to reach the server, and as whom.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A bearer token to use instead of a client certificate.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Who may have signed the server's certificate; without this and a kubeconfig it is not verified.
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// What to measure.
    #[arg(long, value_enum, default_value_t = Scenario::All)]
    pub scenario: Scenario,
    /// How many connections send requests at once.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// How long each scenario sends requests.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..))]
    pub duration: u16,
    /// End a scenario after this many requests, if that comes first.
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// The HTTP version; watches share connections only with 2.
    #[arg(long, value_enum, default_value_t = HttpVersion::Http1)]
    pub http: HttpVersion,
    /// How many objects of 1 KiB a list finds.
    #[arg(long, default_value_t = 5000, value_name = "N")]
    pub objects: u32,
    /// How many watches there are on one resource.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub watchers: u32,
    /// How many writes a second the watches follow.
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub writes: u32,
    /// A process of the server, whose CPU time and memory count; repeat it for etcd.
    #[arg(long, value_name = "PID")]
    pub server_pid: Vec<u32>,
    /// How the figures are printed.
    #[arg(long, value_enum, default_value_t = BenchOutput::Table)]
    pub output: BenchOutput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    Create,
    Get,
    List,
    Watch,
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HttpVersion {
    #[value(name = "1.1")]
    Http1,
    #[value(name = "2")]
    Http2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    /// Columns for people.
    Table,
    /// Lines of figure, value and unit, separated by tabs.
    Tsv,
}
