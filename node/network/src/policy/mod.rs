//! NetworkPolicy, enforced for the pods of this node.
//!
//! Packets that leave a pod of this node or enter one are filtered here, in the node's forward hook, after Services
//! have been translated; so policies see pods, not virtual addresses, within a node as well as between nodes. Probes
//! and all other traffic from the node itself always pass. Traffic of a pod to its own node passes too, unless
//! [`Config::host_egress`] is set, except queries to cluster DNS: those are filtered as if the DNS server were the pod
//! that other clusters run it in (`k8s-app: kube-dns` in `kube-system`).
//!
//! Reading order: `objects` is the data that we keep of policies and pods; `members` keeps the sets of addresses that
//! selectors match; `chains` turns policies into rules, purely; `enforcer` applies them; [`run`] is the task, and
//! [`Gate`] makes a new pod wait until its policies are in the kernel.
//!
//! Invariant: a pod does not get its network before the policies that select it are in the kernel. The rules stay while
//! the process is not running, and are replaced in one transaction once all their objects are known again.

mod blocks;
mod chains;
mod enforcer;
mod gate;
mod members;
mod objects;
mod run;

pub use gate::{Gate, LocalPod, Requests, Sandbox, gate};
pub use run::run;

use std::net::IpAddr;

use crate::error::Error;
use chains::Side;

/// The settings of enforcement on a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses of cluster DNS for the pods of this node: their gateways.
    pub dns: Vec<IpAddr>,
    /// The address families of this node's pods.
    pub families: Families,
    /// Whether IPVS translates Services, which passes packets on without forwarding them. Default false.
    pub ipvs: bool,
    /// Whether policies restrict the traffic of pods to their own node: TCP, UDP and SCTP to any of its addresses.
    /// Default false.
    pub host_egress: bool,
    /// The name of the nf_tables tables, one per family. Default `corten-policy`.
    pub table: String,
}

/// The address families of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    pub ipv4: bool,
    pub ipv6: bool,
}

impl Config {
    /// Returns the defaults for a node whose pods have these gateways.
    pub fn new(gateways: Vec<IpAddr>) -> Config {
        let families =
            Families { ipv4: gateways.iter().any(IpAddr::is_ipv4), ipv6: gateways.iter().any(IpAddr::is_ipv6) };
        Config { dns: gateways, families, ipvs: false, host_egress: false, table: "corten-policy".to_owned() }
    }

    fn sides(&self) -> Vec<Side> {
        let wanted = |side: &Side| if side.ipv4 { self.families.ipv4 } else { self.families.ipv6 };
        [Side { ipv4: true }, Side { ipv4: false }].into_iter().filter(wanted).collect()
    }

    fn dns(&self, side: Side) -> Option<IpAddr> {
        self.dns.iter().copied().find(|address| side.holds(*address))
    }
}

/// Deletes the tables of enforcement.
pub fn cleanup(config: &Config) -> Result<(), Error> {
    let mut batch = corten_nftables::Batch::new();
    for side in [Side { ipv4: true }, Side { ipv4: false }] {
        batch.destroy_table(&side.table(&config.table));
    }
    Ok(corten_nftables::Socket::open()?.apply(batch)?)
}
