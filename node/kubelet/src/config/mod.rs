//! The configuration of a kubelet, set by the binary. Plain values with documented defaults: nothing here reads a flag,
//! a file or the environment.

pub mod cpu_options;
pub mod topology_options;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Taint;
use tokio::sync::{mpsc, watch};

use crate::thresholds::EvictionConfig;

/// The directory of the cluster's own provisioner, below the root directory.
pub const LOCAL_VOLUMES: &str = "local-volumes";

/// The directory of seccomp profiles of the type `Localhost`, below the root directory.
pub const SECCOMP_PROFILES: &str = "seccomp";

/// The paths of the certificates in a `KubeletConfiguration`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
}

/// The certificates of the kubelet's API, in PEM.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The serving certificate chain.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The CA of client certificates.
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

/// The grace period of the pods from a priority on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub seconds: u64,
}

/// The settings of image garbage collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCollection {
    /// The time for which an image is kept at least. Default 2 min.
    pub minimum_age: Duration,
    /// The age after which an unused image is removed, also with free disk space; none by default.
    pub maximum_age: Option<Duration>,
    /// The disk usage above which images are removed. Default 85.
    pub high_threshold_percent: u8,
    /// The disk usage down to which images are removed. Default 80.
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

/// Authentication and authorization of the kubelet's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessConfig {
    /// Whether a request without certificate and token is of the user `system:anonymous`. Default false.
    pub anonymous: bool,
    /// Whether bearer tokens are reviewed by the API server. Default true.
    pub webhook: bool,
    /// The time for which a reviewed token is cached. Default 2 min.
    pub token_ttl: Duration,
    /// Whether every authenticated user may do everything. Default false: the API server decides.
    pub always_allow: bool,
    /// The time for which an allowed review is cached. Default 5 min.
    pub allowed_ttl: Duration,
    /// The time for which a denied review is cached. Default 30 s.
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

/// Graceful node shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// The grace period of all pods together. Default 0: the machine shuts down at once.
    pub grace_period: Duration,
    /// The part of the grace period that is reserved for critical pods.
    pub critical_grace_period: Duration,
    /// Grace periods by pod priority, in place of both.
    pub by_priority: Vec<Period>,
    /// The socket of the system bus; `/run/dbus/system_bus_socket` if absent.
    pub bus: Option<PathBuf>,
    /// Whether a machine without logind goes on without graceful shutdown.
    pub is_optional: bool,
}

/// The configuration of a kubelet.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the Node object.
    pub node_name: String,
    /// The node's addresses, the primary one first; an empty list is 127.0.0.1.
    pub node_ips: Vec<IpAddr>,
    /// The socket of the container runtime: a path or a `unix://` address.
    pub cri_socket: String,
    /// The directory of pods, volumes and their mounts. Default `/var/lib/corten/kubelet`.
    pub root_dir: PathBuf,
    /// The directory of container logs: `pods/<namespace>_<name>_<uid>/<container>/<n>.log`, and links in
    /// `containers/`. Default `/var/log`.
    pub log_dir: PathBuf,
    /// The listening address of the kubelet's API. Default `0.0.0.0:10250`.
    pub listen: SocketAddr,
    /// The certificates of the kubelet's API, now and after a renewal; without them the API is not served.
    pub tls: Option<watch::Receiver<Tls>>,
    /// Gets the address of every connection to the kubelet's API that the certificate of an API server proves.
    pub api_servers: Option<mpsc::Sender<IpAddr>>,
    /// The certificate files and the client CA file that the configuration names; the binary reads them.
    pub tls_files: TlsFiles,
    /// The collector of the kubelet's OpenTelemetry spans. Default none.
    pub tracing: Option<corten_spans::Configuration>,
    /// The client CA in PEM, in place of that of `tls`.
    pub client_ca: Option<String>,
    /// The cluster's DNS servers, for pods with the policy `ClusterFirst`.
    pub cluster_dns: Vec<String>,
    /// The cluster's DNS domain. Default `cluster.local`.
    pub cluster_domain: String,
    /// The resolver configuration of the node.
    pub host_resolver: HostResolver,
    /// The file of that configuration; `None` if pods inherit no resolver configuration from the node.
    pub resolv_conf: Option<PathBuf>,
    /// Labels to register besides the well-known ones.
    pub labels: BTreeMap<String, String>,
    /// Taints to register.
    pub taints: Vec<Taint>,
    /// The largest number of pods. Default 110.
    pub max_pods: u32,
    /// The parent cgroup of `kubepods`; empty is the root.
    pub cgroup_root: String,
    /// The mount point of the cgroup file systems. Default `/sys/fs/cgroup`.
    pub cgroup_mount: PathBuf,
    /// Resources that are reserved for the machine's own programs, such as `cpu: 100m`.
    pub system_reserved: BTreeMap<String, String>,
    /// Resources that are reserved for Kubernetes itself. Allocatable is capacity less both and the hard thresholds.
    pub kube_reserved: BTreeMap<String, String>,
    /// Whether containers of guaranteed pods with integer CPU requests get exclusive CPUs. Default false.
    pub static_cpu_policy: bool,
    /// The CPUs that no container has exclusively, as `0-1`; by default as many as are reserved.
    pub reserved_cpus: Option<String>,
    /// The options of the static CPU manager policy.
    pub cpu_options: cpu_options::Options,
    /// Whether containers of guaranteed pods get memory of NUMA nodes allocated. Default false.
    pub static_memory_policy: bool,
    /// The reserved memory: NUMA node, and bytes by type.
    pub reserved_memory: Vec<(u32, BTreeMap<String, u64>)>,
    /// The topology manager policy. Default none.
    pub topology_policy: topology_options::Policy,
    /// Whether the topology manager's scope is the pod, not the container. Default false.
    pub topology_of_pods: bool,
    /// The options of the topology manager policy.
    pub topology_options: topology_options::Options,
    /// Graceful node shutdown.
    pub shutdown: ShutdownConfig,
    /// Whether the cgroup of all pods is limited to the resources that are not reserved. Default true.
    pub enforce_allocatable: bool,
    /// The eviction thresholds for memory, disk and processes.
    pub eviction: EvictionConfig,
    /// The settings of image garbage collection.
    pub image_collection: ImageCollection,
    /// The number of images that are pulled at the same time; unlimited by default.
    pub max_parallel_pulls: Option<usize>,
    /// The directory of static pods' manifests; none by default.
    pub static_pod_path: Option<PathBuf>,
    /// The largest number of processes of one pod; by default half of the kernel's limit.
    pub pod_pids_limit: Option<i64>,
    /// The unsafe sysctls that pods may set; a trailing `*` stands for any ending.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The machine's id at its cloud provider.
    pub provider_id: Option<String>,
    /// The addresses that the user gave the node, if a cloud controller manager initializes it (`--cloud-provider=external`).
    pub external_cloud: Option<ProvidedAddresses>,
    /// The number of images in the node's status; `None` is all. Default 50.
    pub max_images: Option<usize>,
    /// Whether containers without a seccomp profile get the runtime's default one. Default true.
    pub seccomp_default: bool,
    /// Whether the node registers itself. Default true.
    pub register_node: bool,
    /// Authentication and authorization of the kubelet's API.
    pub access: AccessConfig,
    /// The address of `/healthz` without TLS; port 0 switches it off. Default `127.0.0.1:10248`.
    pub healthz: SocketAddr,
    /// Whether the kubelet's API serves files below `/var/log`. Default true.
    pub system_log_handler: bool,
    /// Whether the kubelet's API serves the logs of the machine's services. Default false.
    pub system_log_query: bool,
    /// Whether Ready waits for `spec.podCIDR`. Default true: the pod network needs it.
    pub require_pod_cidr: bool,
    /// The interval at which the Lease is renewed. Default 10 s.
    pub lease_renew_interval: Duration,
    /// The duration of the Lease. Default 40 s.
    pub lease_duration: Duration,
    /// The interval at which an unchanged node status is reported. Default 5 min.
    pub status_report_interval: Duration,
    /// The interval at which every pod is reconciled without a container event, as a safety net. Default 60 s.
    pub relist_interval: Duration,
    /// The interval at which the size of logs is checked. Default 10 s.
    pub log_monitor_interval: Duration,
    /// The size above which a log file is rotated. Default 10 MiB.
    pub log_max_bytes: u64,
    /// The number of log files that are kept of one container. Default 5.
    pub log_max_files: usize,
    /// The version that this kubelet reports. Default `v1.36.4+corten`, as the API server.
    pub version: String,
}

/// The addresses of `--node-ip`; empty if the cloud alone knows the node's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvidedAddresses(pub Vec<IpAddr>);

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
            tracing: None,
            client_ca: None,
            api_servers: None,
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
            external_cloud: None,
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
    /// Returns the directory of the cluster's own provisioner.
    pub fn local_volumes(&self) -> PathBuf {
        self.root_dir.join(LOCAL_VOLUMES)
    }

    /// Returns the node's addresses, never empty.
    pub fn host_ips(&self) -> Vec<IpAddr> {
        if self.node_ips.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { self.node_ips.clone() }
    }

    /// Returns the directory of one pod, in upstream's layout.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root_dir.join("pods").join(uid)
    }

    /// Returns the directory of the pod's container logs.
    pub fn pod_log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.log_dir.join("pods").join(format!("{namespace}_{name}_{uid}"))
    }
}
