//! What the binary decides for a kubelet. Plain values with documented defaults: nothing here reads a
//! flag, a file or the environment.

pub mod cpu_options;
pub mod topology_options;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Taint;
use tokio::sync::watch;

use crate::thresholds::EvictionConfig;

/// The place below the root directory where the volumes of the cluster's own provisioner lie.
pub const LOCAL_VOLUMES: &str = "local-volumes";

/// The place below the root directory where seccomp profiles of the type `Localhost` lie.
pub const SECCOMP_PROFILES: &str = "seccomp";

/// Where a `KubeletConfiguration` says that certificates lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
}

/// The certificates of the node API, as PEM texts.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The serving certificate chain.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The CA whose client certificates may call the node API.
    pub client_ca: String,
}

/// The name servers and search domains of the node itself, from its own resolver configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostResolver {
    /// Addresses of the name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options such as `ndots:5`.
    pub options: Vec<String>,
}

/// The pods from a priority on, and how long they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub seconds: u64,
}

/// When unused images are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCollection {
    /// An image is kept at least this long. Default 2 min.
    pub minimum_age: Duration,
    /// An image that nobody used for longer goes, however much room there is; none by default.
    pub maximum_age: Option<Duration>,
    /// How full the disk is when images begin to go. Default 85.
    pub high_threshold_percent: u8,
    /// How full it may stay. Default 80.
    pub low_threshold_percent: u8,
}

impl Default for ImageCollection {
    fn default() -> ImageCollection {
        ImageCollection {
            minimum_age: Duration::from_secs(120),
            maximum_age: None,
            high_threshold_percent: 85,
            low_threshold_percent: 80,
        }
    }
}

/// Who may call the node API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// Whether a caller without certificate and token is taken for `system:anonymous`. Default false.
    pub anonymous: bool,
    /// Whether bearer tokens are shown to the API for review. Default true.
    pub webhook: bool,
    /// How long a reviewed token is good for. Default 2 min.
    pub token_ttl: Duration,
    /// Whether every authenticated caller may do everything. Default false: the API decides.
    pub always_allow: bool,
    /// How long a yes of the API holds. Default 5 min.
    pub allowed_ttl: Duration,
    /// How long a no of the API holds. Default 30 s.
    pub denied_ttl: Duration,
}

impl Default for AccessConfig {
    fn default() -> AccessConfig {
        AccessConfig {
            anonymous: false,
            webhook: true,
            token_ttl: Duration::from_secs(120),
            always_allow: false,
            allowed_ttl: Duration::from_secs(300),
            denied_ttl: Duration::from_secs(30),
        }
    }
}

/// How the node goes down with its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// How long all pods together have. Default 0: the machine just stops.
    pub grace_period: Duration,
    /// How much of that is for critical pods.
    pub critical_grace_period: Duration,
    /// How long pods have by their priority, in place of both.
    pub by_priority: Vec<Period>,
    /// The socket of the system bus; `/run/dbus/system_bus_socket` if absent.
    pub bus: Option<PathBuf>,
}

/// Everything a kubelet is told at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the Node object.
    pub node_name: String,
    /// The node's addresses, the primary one first; none means 127.0.0.1.
    pub node_ips: Vec<IpAddr>,
    /// The socket of the container runtime: a path or a `unix://` address.
    pub cri_socket: String,
    /// Pod directories, volumes and their mounts. Default `/var/lib/corten/kubelet`.
    pub root_dir: PathBuf,
    /// Container logs: `pods/<namespace>_<name>_<uid>/<container>/<n>.log`, and links in `containers/`.
    /// Default `/var/log`.
    pub log_dir: PathBuf,
    /// Where the node API listens. Default `0.0.0.0:10250`.
    pub listen: SocketAddr,
    /// The node API's certificates, now and after they were renewed; without them the node API is not served.
    pub tls: Option<watch::Receiver<Tls>>,
    /// The files that the configuration names for it, and the authority that it names for clients: whoever makes this
    /// configuration reads them.
    pub tls_files: TlsFiles,
    /// Who signs the certificates of clients, in place of what `tls` says: PEM.
    pub client_ca: Option<String>,
    /// The cluster's DNS servers, given to pods whose policy is `ClusterFirst`.
    pub cluster_dns: Vec<String>,
    /// The cluster's DNS domain. Default `cluster.local`.
    pub cluster_domain: String,
    /// The resolver configuration of the node.
    pub host_resolver: HostResolver,
    /// The file that it was read from; `None` where pods get no names from the node.
    pub resolv_conf: Option<PathBuf>,
    /// Labels to register besides the well-known ones.
    pub labels: BTreeMap<String, String>,
    /// Taints to register.
    pub taints: Vec<Taint>,
    /// How many pods may run here. Default 110.
    pub max_pods: u32,
    /// The cgroup below which `kubepods` is made; empty is the root.
    pub cgroup_root: String,
    /// Where the cgroup file systems are mounted. Default `/sys/fs/cgroup`.
    pub cgroup_mount: PathBuf,
    /// Resources kept from pods for the machine's own programs, such as `cpu: 100m`.
    pub system_reserved: BTreeMap<String, String>,
    /// Resources kept from pods for Kubernetes itself. Allocatable is capacity less both and the hard thresholds.
    pub kube_reserved: BTreeMap<String, String>,
    /// Whether containers of guaranteed pods that ask for whole processors have them for themselves. Default false.
    pub static_cpu_policy: bool,
    /// The processors that no container has for itself, as `0-1`; by default as many as are reserved.
    pub reserved_cpus: Option<String>,
    /// The options of that policy.
    pub cpu_options: cpu_options::Options,
    /// Whether containers of guaranteed pods have their memory promised on NUMA nodes. Default false.
    pub static_memory_policy: bool,
    /// What is kept from them there: node, and bytes by kind.
    pub reserved_memory: Vec<(u32, BTreeMap<String, u64>)>,
    /// How near to each other processors, memory and devices must be. Default not at all.
    pub topology_policy: topology_options::Policy,
    /// Whether that is for whole pods, and not for each container. Default false.
    pub topology_of_pods: bool,
    /// The options of that policy.
    pub topology_options: topology_options::Options,
    /// How the node goes down with its machine.
    pub shutdown: ShutdownConfig,
    /// Whether the cgroup of all pods is held to what is not reserved. Default true.
    pub enforce_allocatable: bool,
    /// When pods are ended for want of memory, disk or processes.
    pub eviction: EvictionConfig,
    /// When unused images are removed.
    pub image_collection: ImageCollection,
    /// How many images are pulled at the same time; any number by default.
    pub max_parallel_pulls: Option<usize>,
    /// The directory of static pods' manifests; none by default.
    pub static_pod_path: Option<PathBuf>,
    /// The most processes that one pod may have; by default half of what the kernel allows in all.
    pub pod_pids_limit: Option<i64>,
    /// Sysctls beyond the safe ones that pods may set; a trailing `*` stands for any ending.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The machine's name at its cloud provider.
    pub provider_id: Option<String>,
    /// How many images the node's status lists; `None` is all. Default 50.
    pub max_images: Option<usize>,
    /// Whether containers without a seccomp profile get the runtime's default one. Default true.
    pub seccomp_default: bool,
    /// Whether the node registers itself. Default true.
    pub register_node: bool,
    /// Who may call the node API.
    pub access: AccessConfig,
    /// Where `/healthz` answers without TLS; port 0 is nowhere. Default `127.0.0.1:10248`.
    pub healthz: SocketAddr,
    /// Whether the node API shows files below `/var/log`. Default true.
    pub system_log_handler: bool,
    /// Whether the node API shows the logs of the machine's services. Default false.
    pub system_log_query: bool,
    /// Whether Ready waits for `spec.podCIDR`. Default true: the pod network needs it.
    pub require_pod_cidr: bool,
    /// How often the Lease is renewed. Default 10 s.
    pub lease_renew_interval: Duration,
    /// How long a Lease is good for. Default 40 s.
    pub lease_duration: Duration,
    /// How often an unchanged node status is reported. Default 5 min.
    pub status_report_interval: Duration,
    /// The safety net under container events: how often every pod is looked at anyway. Default 60 s.
    pub relist_interval: Duration,
    /// How often the size of logs is looked at. Default 10 s.
    pub log_monitor_interval: Duration,
    /// A log file is rotated when it grows beyond this. Default 10 MiB.
    pub log_max_bytes: u64,
    /// How many files of one container's log are kept. Default 5.
    pub log_max_files: usize,
    /// The version this kubelet reports. Default `v1.36.4+corten`, as the API server.
    pub version: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            node_name: "localhost".into(),
            node_ips: Vec::new(),
            cri_socket: "/run/corten/cri.sock".into(),
            root_dir: "/var/lib/corten/kubelet".into(),
            log_dir: "/var/log".into(),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10250)),
            tls: None,
            tls_files: TlsFiles::default(),
            client_ca: None,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            host_resolver: HostResolver::default(),
            resolv_conf: Some("/etc/resolv.conf".into()),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            max_pods: 110,
            cgroup_root: String::new(),
            cgroup_mount: "/sys/fs/cgroup".into(),
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            static_cpu_policy: false,
            reserved_cpus: None,
            cpu_options: cpu_options::Options::default(),
            static_memory_policy: false,
            reserved_memory: Vec::new(),
            topology_policy: topology_options::Policy::None,
            topology_of_pods: false,
            topology_options: topology_options::Options::default(),
            shutdown: ShutdownConfig::default(),
            enforce_allocatable: true,
            eviction: EvictionConfig::default(),
            image_collection: ImageCollection::default(),
            max_parallel_pulls: None,
            static_pod_path: None,
            pod_pids_limit: None,
            allowed_unsafe_sysctls: Vec::new(),
            provider_id: None,
            max_images: Some(50),
            seccomp_default: true,
            register_node: true,
            access: AccessConfig::default(),
            healthz: SocketAddr::from((Ipv4Addr::LOCALHOST, 10248)),
            system_log_handler: true,
            system_log_query: false,
            require_pod_cidr: true,
            lease_renew_interval: Duration::from_secs(10),
            lease_duration: Duration::from_secs(40),
            status_report_interval: Duration::from_secs(300),
            relist_interval: Duration::from_secs(60),
            log_monitor_interval: Duration::from_secs(10),
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            version: "v1.36.4+corten".into(),
        }
    }
}

impl Config {
    /// Where the volumes of the cluster's own provisioner lie.
    pub fn local_volumes(&self) -> PathBuf {
        self.root_dir.join(LOCAL_VOLUMES)
    }

    /// The node's addresses, never empty.
    pub fn host_ips(&self) -> Vec<IpAddr> {
        if self.node_ips.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { self.node_ips.clone() }
    }

    /// The directory of everything that belongs to one pod, as upstream lays it out.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// The directory of the pod's container logs.
    pub fn pod_log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.log_dir.join("pods").join(format!("{namespace}_{name}_{uid}"))
    }
}
