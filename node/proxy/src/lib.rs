//! Services to nf_tables: what kube-proxy is to a node.
//!
//! Everything a Service needs is *elements* of a few maps; the rules that read them are shared by
//! all Services of a shape. So a packet costs two lookups however many Services there are, and a
//! changed Service is one small batch.
//!
//! ```text
//! services   10.96.0.10 . udp . 53       → goto cluster-…      which endpoints, which policy
//! endpoints  10.96.0.10 . udp . 53 . 0   → 10.244.0.5 . 53     the first of them
//! ```
//!
//! Reading order: [`Service`] and [`Slice`] are what we keep of the API's objects; `rules::desired`
//! decides, purely, what one Service contributes; `claims` merges the Services and finds what
//! changed; `chains` holds the shared rules; [`Proxier`] applies. `sockets` is the mode of programs at sockets, `ipvs` that
//! of the kernel's load balancer, `iptables` that of the programs. `fence` ends what none of them translated, in every mode.
//!
//! The proxy never touches a table but its own, and never serves an address that a Service may not have: a node's by
//! `externalIPs`, or one of pods or Services by anything.

mod chains;
mod claims;
mod conntrack;
mod error;
mod exposure;
mod fence;
mod flows;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod iptables;
mod ipvs;
mod proxier;
mod rulebook;
mod rules;
mod run;
mod service;
mod sets;
mod slice;
mod sockets;
mod status;
mod topology;

pub use conntrack::TcpTimeouts;
pub use error::Error;
pub use ipvs::supports_ipvs;
pub use proxier::{Proxier, Synced};
pub use run::run;
pub use service::{Service, ServiceKey};
pub use slice::{Slice, SliceKey};
pub use sockets::supports_sockets;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use corten_nftables::IpVersion;

/// What the kernel is told Services by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// nf_tables over netlink.
    #[default]
    Nftables,
    /// The programs of iptables, for hosts whose other rules need them.
    Iptables,
    /// nf_tables, and before it programs at the sockets of pods.
    Ebpf,
    /// nf_tables, but IPVS for cluster addresses.
    Ipvs,
}

impl Mode {
    /// The name by which upstream's proxy knows it.
    fn name(self) -> &'static str {
        match self {
            Mode::Nftables | Mode::Ebpf => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        }
    }
}

/// Where the proxy shows its health.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// `/healthz` and `/livez`, on every address of the node. Upstream's is 10256.
    pub health_port: u16,
    /// `/healthz`, `/proxyMode` and `/metrics/slis`. Upstream's is 127.0.0.1:10249.
    pub status: SocketAddr,
}

impl Default for Served {
    fn default() -> Served {
        Served { health_port: 10256, status: SocketAddr::from((Ipv4Addr::LOCALHOST, 10249)) }
    }
}

/// How the proxy serves its node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this node: which endpoints are local.
    pub node_name: String,
    /// Default nf_tables.
    pub mode: Mode,
    /// Where the programs of iptables are; the system's if none is said.
    pub iptables: Option<PathBuf>,
    /// The control group, of version 2, that pods are below; needed where sockets have programs.
    pub cgroup: Option<PathBuf>,
    /// The cluster's pod CIDRs, one a version of IP, as address and prefix length. Traffic to Services from elsewhere
    /// is masqueraded; without one only traffic from outside the node's links is.
    pub cluster_cidrs: Vec<(IpAddr, u8)>,
    /// The ranges of Service addresses, as far as they are known before the API says so: nothing leaves the node for an
    /// address of theirs. Default none.
    pub service_cidrs: Vec<(IpAddr, u8)>,
    /// The versions of IP that Services have.
    pub versions: Vec<IpVersion>,
    /// Masquerade all traffic to Services. Default false.
    pub masquerade_all: bool,
    /// The mark of packets to be masqueraded. Default 0x4000.
    pub masquerade_mark: u32,
    /// Serve node ports on 127.0.0.1 too; the links towards endpoints must route 127.0.0.0/8.
    /// Default true.
    pub localhost_node_ports: bool,
    /// The nf_tables table, one a version. Default `corten-proxy`.
    pub table: String,
    /// Where the proxy shows its health; nowhere by default.
    pub served: Option<Served>,
    /// How long the kernel remembers TCP connections; by default as it does without the proxy.
    pub tcp_timeouts: Option<TcpTimeouts>,
}

impl Config {
    /// The defaults for a node; without ranges Services are those of IPv4.
    pub fn new(node_name: impl Into<String>, cluster_cidrs: Vec<(IpAddr, u8)>) -> Config {
        let has = |ip: &IpVersion| cluster_cidrs.iter().any(|(address, _)| ip.holds(*address));
        let versions: Vec<IpVersion> = IpVersion::ALL.into_iter().filter(has).collect();
        Config {
            node_name: node_name.into(),
            mode: Mode::default(),
            iptables: None,
            cgroup: None,
            cluster_cidrs,
            service_cidrs: Vec::new(),
            versions: if versions.is_empty() { vec![IpVersion::V4] } else { versions },
            masquerade_all: false,
            masquerade_mark: 0x4000,
            localhost_node_ports: true,
            table: "corten-proxy".to_owned(),
            served: None,
            tcp_timeouts: None,
        }
    }
}

/// Deletes what the proxy left in the kernel.
pub fn cleanup(config: &Config) -> Result<(), Error> {
    let mut batch = corten_nftables::Batch::new();
    for ip in IpVersion::ALL {
        batch.destroy_table(&ip.table(&config.table));
        batch.destroy_table(&fence::Fence::table(ip));
    }
    corten_nftables::Socket::open()?.apply(batch)?;
    ipvs::cleanup()?;
    for ip in IpVersion::ALL {
        // A host without the programs has no rules of theirs.
        if let Ok(mut rules) = iptables::Iptables::open(ip, config.iptables.as_deref()) {
            rules.cleanup();
        }
    }
    Ok(())
}
