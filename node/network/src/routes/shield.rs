//! The filter of VXLAN, which itself accepts every sender: packets of the overlay are accepted from nodes only.
//!
//! ```text
//! chain input     filter: to the port of VXLAN from elsewhere than @nodes → drop
//! chain forward   filter: from a pod to the port of VXLAN of a node → drop; masqueraded, it would be a node's packet
//! ```
//!
//! Without VXLAN there is no table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_nftables::{
    Batch, Chain, ChainType, Element, Field, Hook, IpFamily, Port, Protocol, Rule, Set, Socket, Table, priority,
};

use super::VXLAN_PORT;
use crate::cidr::Cidr;
use crate::error::Error;

const TABLE: &str = "corten-overlay";
const NODES: &str = "nodes";
const INPUT: &str = "input";
const FORWARD: &str = "forward";

/// The table of one node.
pub(super) struct Shield {
    /// The IP family that carries the overlay.
    ip: IpFamily,
    pod_cidrs: Vec<Cidr>,
    wanted: bool,
    /// The nodes in the kernel's set; `None` if unknown.
    applied: Option<BTreeSet<IpAddr>>,
}

impl Shield {
    pub fn new(node_address: IpAddr, pod_cidrs: &[Cidr], wanted: bool) -> Shield {
        let ip = IpFamily::of(node_address);
        let pod_cidrs = pod_cidrs.iter().copied().filter(|range| ip.holds(range.address())).collect();
        Shield { ip, pod_cidrs, wanted, applied: None }
    }

    /// Makes the table before the overlay exists. Keeps the nodes of an earlier run, because they are connected.
    pub fn raise(&mut self) -> Result<(), Error> {
        let exists = Socket::open()?.tables()?.contains(&self.ip.table(TABLE));
        if self.wanted && !exists { self.admit(std::iter::empty()) } else { Ok(()) }
    }

    /// Forgets the kernel's set, so that the table is made anew with the next change.
    pub fn forget_applied(&mut self) {
        self.applied = None;
    }

    /// Accepts the packets of these nodes and of no other host, in one batch.
    pub fn admit(&mut self, nodes: impl Iterator<Item = IpAddr>) -> Result<(), Error> {
        let nodes: BTreeSet<IpAddr> = nodes.filter(|node| self.ip.holds(*node)).collect();
        if self.applied.as_ref() == Some(&nodes) {
            return Ok(());
        }
        let mut batch = Batch::new();
        for ip in IpFamily::ALL {
            batch.destroy_table(&ip.table(TABLE));
        }
        if self.wanted {
            self.put(&mut batch, &nodes);
        }
        Socket::open()?.apply(batch)?;
        self.applied = Some(nodes);
        Ok(())
    }

    fn put(&self, batch: &mut Batch, nodes: &BTreeSet<IpAddr>) {
        let table: Table = self.ip.table(TABLE);
        let set = Set::new(NODES, &[self.ip.address()]);
        batch.add_table(&table);
        batch.add_set(&table, &set);
        let elements: Vec<Element> = nodes.iter().map(|node| Element::key(*node)).collect();
        batch.add_elements(&table, &set, &elements);
        batch.add_chain(&table, &Chain::base(INPUT, ChainType::Filter, Hook::Input, priority::FILTER));
        batch.add_chain(&table, &Chain::base(FORWARD, ChainType::Filter, Hook::Forward, priority::FILTER));
        let wrapped = || Rule::new().eq(Field::L4Proto, Protocol::Udp).eq(Field::ThDport, Port(VXLAN_PORT));
        batch.add_rule(&table, INPUT, &wrapped().not_in_set(&[self.ip.source()], NODES).drop());
        for range in &self.pod_cidrs {
            let of_pod = wrapped().in_prefix(self.ip.source(), range.address(), range.length());
            batch.add_rule(&table, FORWARD, &of_pod.in_set(&[self.ip.destination()], NODES).drop());
        }
    }
}
