//! What the binary decides for a kubelet. Plain values with documented defaults: nothing here reads a
//! flag, a file or the environment.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Taint;

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
    /// The node API's certificates; without them the node API is not served.
    pub tls: Option<Tls>,
    /// The cluster's DNS servers, given to pods whose policy is `ClusterFirst`.
    pub cluster_dns: Vec<String>,
    /// The cluster's DNS domain. Default `cluster.local`.
    pub cluster_domain: String,
    /// The resolver configuration of the node.
    pub host_resolver: HostResolver,
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
    /// Resources kept from pods, such as `cpu: 100m`: allocatable is capacity less these.
    pub reserved: BTreeMap<String, String>,
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
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            host_resolver: HostResolver::default(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            max_pods: 110,
            cgroup_root: String::new(),
            cgroup_mount: "/sys/fs/cgroup".into(),
            reserved: BTreeMap::new(),
            require_pod_cidr: true,
            lease_renew_interval: Duration::from_secs(10),
            lease_duration: Duration::from_secs(40),
            status_report_interval: Duration::from_secs(300),
            relist_interval: Duration::from_secs(60),
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            version: "v1.36.4+corten".into(),
        }
    }
}

impl Config {
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
