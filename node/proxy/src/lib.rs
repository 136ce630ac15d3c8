//! The Service proxy of a node, with nf_tables: the counterpart of kube-proxy.
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
//! Reading order: [`Service`] and [`Slice`] are the data that we keep of the API's objects; `rules::desired` decides,
//! purely, the elements of one Service; `claims` merges the Services and finds the changes; `chains` holds the shared
//! rules; [`Proxier`] applies them. `sockets` is the mode of programs at sockets, `ipvs` that of the kernel's load
//! balancer, `iptables` that of the programs. `fence` drops packets that none of them translated, in every mode.
//!
//! The proxy never changes a table but its own, and never serves an address that a Service may not have: a node's by
//! `externalIPs`, or one of pods or Services by any field.

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

use corten_nftables::IpFamily;

/// The mechanism that translates Services.
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
    /// Returns upstream's name of the mode.
    fn name(self) -> &'static str {
        match self {
            Mode::Nftables | Mode::Ebpf => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        }
    }
}

/// The addresses where the proxy serves its health.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// The port of `/healthz` and `/livez`, on every address of the node. Upstream's is 10256.
    pub health_port: u16,
    /// The address of `/healthz`, `/proxyMode` and `/metrics/slis`. Upstream's is 127.0.0.1:10249.
    pub status: SocketAddr,
}

impl Default for Served {
    fn default() -> Served {
        Served { health_port: 10256, status: SocketAddr::from((Ipv4Addr::LOCALHOST, 10249)) }
    }
}

/// The settings of the proxy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this node, which decides which endpoints are local.
    pub node_name: String,
    /// The mode. Default nf_tables.
    pub mode: Mode,
    /// The directory of the iptables programs; the system's by default.
    pub iptables: Option<PathBuf>,
    /// The control group, of version 2, that pods are below; needed for programs at sockets.
    pub cgroup: Option<PathBuf>,
    /// The cluster's pod CIDRs, one per IP family, as address and prefix length. Traffic to Services from elsewhere is
    /// masqueraded; without one only traffic from outside the node's links is.
    pub cluster_cidrs: Vec<(IpAddr, u8)>,
    /// The Service CIDRs, as far as they are known before the API's: no packet leaves the node for one of their
    /// addresses. Default none.
    pub service_cidrs: Vec<(IpAddr, u8)>,
    /// The IP families of Services.
    pub versions: Vec<IpFamily>,
    /// Whether all traffic to Services is masqueraded. Default false.
    pub masquerade_all: bool,
    /// The mark of packets to be masqueraded. Default 0x4000.
    pub masquerade_mark: u32,
    /// Whether node ports are served on 127.0.0.1 too; the links towards endpoints must route 127.0.0.0/8. Default
    /// true.
    pub localhost_node_ports: bool,
    /// The name of the nf_tables tables, one per family. Default `corten-proxy`.
    pub table: String,
    /// The addresses where the proxy serves its health; none by default.
    pub served: Option<Served>,
    /// The conntrack timeouts of TCP connections; by default they are not changed.
    pub tcp_timeouts: Option<TcpTimeouts>,
}

impl Config {
    /// Returns the defaults for a node; without ranges Services are those of IPv4.
    pub fn new(node_name: impl Into<String>, cluster_cidrs: Vec<(IpAddr, u8)>) -> Config {
        let has = |ip: &IpFamily| cluster_cidrs.iter().any(|(address, _)| ip.holds(*address));
        let versions: Vec<IpFamily> = IpFamily::ALL.into_iter().filter(has).collect();
        Config {
            node_name: node_name.into(),
            mode: Mode::default(),
            iptables: None,
            cgroup: None,
            cluster_cidrs,
            service_cidrs: Vec::new(),
            versions: if versions.is_empty() { vec![IpFamily::V4] } else { versions },
            masquerade_all: false,
            masquerade_mark: 0x4000,
            localhost_node_ports: true,
            table: "corten-proxy".to_owned(),
            served: None,
            tcp_timeouts: None,
        }
    }
}

/// Deletes everything that the proxy made in the kernel.
pub fn cleanup(config: &Config) -> Result<(), Error> {
    let mut batch = corten_nftables::Batch::new();
    for ip in IpFamily::ALL {
        batch.destroy_table(&ip.table(&config.table));
        batch.destroy_table(&fence::Fence::table(ip));
    }
    corten_nftables::Socket::open()?.apply(batch)?;
    ipvs::cleanup()?;
    for ip in IpFamily::ALL {
        // A host without the programs has no rules of theirs.
        if let Ok(mut rules) = iptables::Iptables::open(ip, config.iptables.as_deref()) {
            rules.cleanup();
        }
    }
    Ok(())
}
