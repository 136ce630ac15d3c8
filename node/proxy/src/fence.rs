//! The fence around the Service ranges: a packet for a Service address that no rule translated ends here.
//!
//! Without it such a packet follows the node's default route, and whatever answers outside is taken for the Service. The
//! fence is a table of its own, in every mode of the proxy, and behind every translation:
//!
//! ```text
//! chain forward, output   filter, after translation and after the refusals of the proxy
//!                         to @cluster-ips → known
//!                         to @ranges → drop: no Service has the address, or the packet is of no connection
//! chain known             new → reject: the Service has no such port
//! ```
//!
//! It stands from the proxy's start, before the first Service is known, until [`crate::cleanup`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_nftables::{
    Batch, Chain, ChainType, Element, Field, Hook, IpVersion, Protocol, Reject, Rule, Set, Socket, Table, flags,
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
/// Behind the rules of the proxy, of its iptables mode as well.
const LAST: i32 = priority::FILTER + 10;

/// The fence of one version of IP.
pub(crate) struct Fence {
    ip: IpVersion,
    /// The ranges that the configuration has, and those that the API has.
    configured: Vec<Range>,
    objects: BTreeMap<String, Vec<Range>>,
    cluster_ips: BTreeMap<ServiceKey, IpAddr>,
    /// Whether the cluster addresses may differ from those that were applied.
    changed: bool,
    /// The addresses and ranges that the kernel holds; none if that is not known.
    applied: Option<Applied>,
}

struct Applied {
    cluster_ips: BTreeSet<IpAddr>,
    ranges: Vec<Range>,
}

impl Fence {
    pub fn new(ip: IpVersion, configured: &[Range]) -> Fence {
        let configured = configured.iter().copied().filter(|(address, _)| ip.holds(*address)).collect();
        Fence { ip, configured, objects: BTreeMap::new(), cluster_ips: BTreeMap::new(), changed: true, applied: None }
    }

    /// The table of one version of IP.
    pub fn table(ip: IpVersion) -> Table {
        ip.table(TABLE)
    }

    /// A Service's cluster address as it is now.
    pub fn set_service(&mut self, key: &ServiceKey, cluster_ip: Option<IpAddr>) {
        let before = match cluster_ip {
            Some(address) => self.cluster_ips.insert(key.clone(), address),
            None => self.cluster_ips.remove(key),
        };
        self.changed |= before != cluster_ip;
    }

    /// The ranges of a ServiceCIDR as it is now; says whether anything follows from it.
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

    /// Whether an address is of a Service range.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.ranges().iter().any(|range| crate::service::contains(*range, address))
    }

    /// The ranges, none within another: the kernel takes no overlaps.
    fn ranges(&self) -> Vec<Range> {
        uncovered(self.configured.iter().chain(self.objects.values().flatten()).copied().collect())
    }

    pub fn is_dirty(&self) -> bool {
        self.changed || self.applied.is_none()
    }

    /// Notices that the table was deleted.
    pub fn check(&mut self, tables: &[Table]) {
        if !tables.contains(&Fence::table(self.ip)) {
            self.applied = None;
        }
    }

    /// Brings the kernel to what is known, in one batch.
    pub fn sync(&mut self, socket: &mut Socket) -> Result<(), Error> {
        if !self.is_dirty() {
            return Ok(());
        }
        let cluster_ips: BTreeSet<IpAddr> = self.cluster_ips.values().copied().collect();
        let ranges = self.ranges();
        let batch = match &self.applied {
            Some(applied) if applied.ranges == ranges => self.change(&applied.cluster_ips, &cluster_ips),
            _ => self.whole(&cluster_ips, &ranges),
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

    fn whole(&self, cluster_ips: &BTreeSet<IpAddr>, ranges: &[Range]) -> Batch {
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
        Fence::new(IpVersion::V4, &[([10, 96, 0, 0].into(), 12), ("fd00:96::".parse().unwrap(), 112)])
    }

    #[test]
    fn ranges_are_of_one_version_and_do_not_overlap() {
        let mut fence = fence();
        let range = |text: [u8; 4], length| (IpAddr::from(text), length);
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
