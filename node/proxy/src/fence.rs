//! The fence around the Service CIDRs: drops a packet for a Service address that no rule translated.
//!
//! Without it such a packet follows the node's default route, and any host outside that answers is taken for the
//! Service. The fence is a table of its own, in every mode of the proxy, and after every translation:
//!
//! ```text
//! chain forward, output   filter, after translation and after the refusals of the proxy
//!                         to @cluster-ips → known
//!                         to @ranges → drop: no Service has the address, or the packet is of no connection
//! chain known             new → reject: the Service has no such port
//! ```
//!
//! It exists from the proxy's start, before the first Service is known, until [`crate::cleanup`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_nftables::{
    Batch, Chain, ChainType, Element, Field, Hook, IpFamily, Protocol, Reject, Rule, Set, Socket, Table, flags,
    priority,
};

use crate::error::Error;
use crate::service::{Range, ServiceKey, uncovered};

const TABLE: &str = "corten-fence";
const CLUSTER_IPS: &str = "cluster-ips";
const RANGES: &str = "ranges";
const FORWARD: &str = "forward";
const OUTPUT: &str = "output";
const KNOWN: &str = "known";
/// The priority after the rules of the proxy, of its iptables mode as well.
const LAST: i32 = priority::FILTER + 10;

/// The fence of one IP family.
pub(crate) struct Fence {
    ip: IpFamily,
    /// The ranges of the configuration, and those of the API.
    configured: Vec<Range>,
    objects: BTreeMap<String, Vec<Range>>,
    cluster_ips: BTreeMap<ServiceKey, IpAddr>,
    /// Whether the cluster addresses may differ from the applied ones.
    changed: bool,
    /// The addresses and ranges in the kernel; `None` if unknown.
    applied: Option<Applied>,
}

struct Applied {
    cluster_ips: BTreeSet<IpAddr>,
    ranges: Vec<Range>,
}

impl Fence {
    pub fn new(ip: IpFamily, configured: &[Range]) -> Fence {
        let configured = configured.iter().copied().filter(|(address, _)| ip.holds(*address)).collect();
        Fence { ip, configured, objects: BTreeMap::new(), cluster_ips: BTreeMap::new(), changed: true, applied: None }
    }

    /// Returns the table of one IP family.
    pub fn table(ip: IpFamily) -> Table {
        ip.table(TABLE)
    }

    /// Updates a Service's cluster address.
    pub fn set_service(&mut self, key: &ServiceKey, cluster_ip: Option<IpAddr>) {
        let before = match cluster_ip {
            Some(address) => self.cluster_ips.insert(key.clone(), address),
            None => self.cluster_ips.remove(key),
        };
        self.changed |= before != cluster_ip;
    }

    /// Updates the ranges of a ServiceCIDR; returns whether the ranges changed.
    pub fn set_ranges(&mut self, name: &str, ranges: Option<Vec<Range>>) -> bool {
        let ranges = ranges.map(|all| all.into_iter().filter(|(address, _)| self.ip.holds(*address)).collect());
        let before = match &ranges {
            Some(ranges) => self.objects.insert(name.to_owned(), Vec::clone(ranges)),
            None => self.objects.remove(name),
        };
        let changed = before != ranges;
        self.changed |= changed;
        changed
    }

    /// Reports whether an address is in a Service CIDR.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.ranges().iter().any(|range| crate::service::contains(*range, address))
    }

    /// Returns the ranges, none within another: the kernel takes no overlaps.
    fn ranges(&self) -> Vec<Range> {
        uncovered(self.configured.iter().chain(self.objects.values().flatten()).copied().collect())
    }

    pub fn is_dirty(&self) -> bool {
        self.changed || self.applied.is_none()
    }

    /// Checks whether the table was deleted.
    pub fn check(&mut self, tables: &[Table]) {
        if !tables.contains(&Fence::table(self.ip)) {
            self.applied = None;
        }
    }

    /// Applies the wanted state to the kernel, in one batch.
    pub fn sync(&mut self, socket: &mut Socket) -> Result<(), Error> {
        if !self.is_dirty() {
            return Ok(());
        }
        let cluster_ips: BTreeSet<IpAddr> = self.cluster_ips.values().copied().collect();
        let ranges = self.ranges();
        let batch = match &self.applied {
            Some(applied) if applied.ranges == ranges => self.change(&applied.cluster_ips, &cluster_ips),
            _ => self.full_batch(&cluster_ips, &ranges),
        };
        self.applied = None;
        socket.apply(batch)?;
        self.applied = Some(Applied { cluster_ips, ranges });
        self.changed = false;
        Ok(())
    }

    fn addresses(&self) -> Set {
        Set::new(CLUSTER_IPS, &[self.ip.address()])
    }

    fn change(&self, before: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>) -> Batch {
        let mut batch = Batch::new();
        let table = Fence::table(self.ip);
        let elements = |addresses: Vec<&IpAddr>| -> Vec<Element> {
            addresses.into_iter().map(|address| Element::key(*address)).collect()
        };
        batch.delete_elements(&table, &self.addresses(), &elements(before.difference(wanted).collect()));
        batch.add_elements(&table, &self.addresses(), &elements(wanted.difference(before).collect()));
        batch
    }

    fn full_batch(&self, cluster_ips: &BTreeSet<IpAddr>, ranges: &[Range]) -> Batch {
        let mut batch = Batch::new();
        let table = Fence::table(self.ip);
        let within = Set::new(RANGES, &[self.ip.address()]).intervals();
        batch.replace_table(&table);
        batch.add_set(&table, &self.addresses());
        batch.add_set(&table, &within);
        let addresses: Vec<Element> = cluster_ips.iter().map(|address| Element::key(*address)).collect();
        batch.add_elements(&table, &self.addresses(), &addresses);
        let prefixes: Vec<Element> = ranges.iter().map(|(first, length)| Element::prefix(*first, *length)).collect();
        batch.add_elements(&table, &within, &prefixes);
        batch.add_chain(&table, &Chain::base(FORWARD, ChainType::Filter, Hook::Forward, LAST));
        batch.add_chain(&table, &Chain::base(OUTPUT, ChainType::Filter, Hook::Output, LAST));
        batch.add_chain(&table, &Chain::regular(KNOWN));
        for (chain, rule) in self.rules() {
            batch.add_rule(&table, chain, &rule);
        }
        batch
    }

    fn rules(&self) -> Vec<(&'static str, Rule)> {
        let to = |set: &str| Rule::new().in_set(&[self.ip.destination()], set);
        let new = || Rule::new().has_any(Field::CtState, flags::CT_STATE_NEW);
        vec![
            (FORWARD, to(CLUSTER_IPS).jump(KNOWN)),
            (FORWARD, to(RANGES).drop()),
            (OUTPUT, to(CLUSTER_IPS).jump(KNOWN)),
            (OUTPUT, to(RANGES).drop()),
            (KNOWN, new().eq(Field::L4Proto, Protocol::Tcp).reject(Reject::TcpReset)),
            (KNOWN, new().reject(self.ip.port_unreachable())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence() -> Fence {
        Fence::new(IpFamily::V4, &[([10, 96, 0, 0].into(), 12), ("fd00:96::".parse().unwrap(), 112)])
    }

    #[test]
    fn ranges_are_of_one_family_and_do_not_overlap() {
        let mut fence = fence();
        let range = |address: [u8; 4], length| (IpAddr::from(address), length);
        assert_eq!(fence.ranges(), [range([10, 96, 0, 0], 12)]);
        assert!(fence.set_ranges("more", Some(vec![range([10, 100, 0, 0], 16), range([10, 8, 0, 0], 16)])));
        assert_eq!(fence.ranges(), [range([10, 96, 0, 0], 12), range([10, 8, 0, 0], 16)]);
        assert!(fence.holds([10, 8, 3, 4].into()) && !fence.holds([10, 9, 0, 0].into()));
        assert!(!fence.set_ranges("more", Some(vec![range([10, 100, 0, 0], 16), range([10, 8, 0, 0], 16)])));
        assert!(fence.set_ranges("more", None));
        assert!(!fence.holds([10, 8, 3, 4].into()));
    }

    #[test]
    fn a_service_that_did_not_change_is_no_change() {
        let mut fence = fence();
        fence.changed = false;
        let key = ServiceKey { namespace: "n".to_owned(), name: "web".to_owned() };
        fence.set_service(&key, None);
        assert!(!fence.changed);
        fence.set_service(&key, Some([10, 96, 0, 7].into()));
        assert!(std::mem::take(&mut fence.changed));
        fence.set_service(&key, Some([10, 96, 0, 7].into()));
        assert!(!fence.changed);
    }
}
