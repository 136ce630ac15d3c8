//! A filter of the frames that pods may send: to the node alone, from their own addresses.
//!
//! Pods share a bridge. A pod that may write raw frames could send to another pod's hardware address, past the node's
//! IP stack and so past every policy and Service; send with another pod's address, and be taken for it; or make the
//! bridge and the other pods learn that another pod's address is behind its own port. The filter drops all of these
//! where a frame enters the bridge and before the bridge learns from it, whether or not the kernel has `br_netfilter`:
//!
//! ```text
//! chain frames   bridge, prerouting, before all else; from @ports only:
//!                from the pod's own hardware address, @macs;
//!                no router advertisement, no redirect, no neighbour advertisement to a group;
//!                ARP from the pod's own address; IP from the pod's own address and to the bridge, or to a group
//! ```
//!
//! Multicast frames reach other pods of the node as they do on any network, if their packets are multicast too. The
//! node's own neighbours are permanent entries (`pod_network`), so that it learns none from pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use corten_nftables::{
    Batch, Chain, ChainType, DataType, Element, Family, Field, Hook, InterfaceName, IpFamily, Mac, Port, Rule, Set,
    Socket, Table, Verdict,
};

use crate::error::Error;

const FRAMES: &str = "frames";
const PORTS: &str = "ports";
const MACS: &str = "macs";
/// The priority before the bridge's own translation and `br_netfilter`.
const FIRST: i32 = -400;
/// The types of frames; two bytes, as a port has.
const ARP: Port = Port(0x0806);
const IPV4: Port = Port(0x0800);
const IPV6: Port = Port(0x86dd);
/// The bit of multicast hardware addresses.
const GROUP: Mac = Mac([1, 0, 0, 0, 0, 0]);
/// The protocol of ICMPv6, and its messages that announce the location of hosts.
const ICMPV6: u8 = 58;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// The frame filter of one node's pods.
pub(crate) struct Guard {
    table: Table,
    bridge: Mac,
}

/// A pod's port of the bridge, and the addresses behind it.
pub(crate) struct GuardedPort {
    pub name: String,
    pub mac: [u8; 6],
    pub addresses: Vec<IpAddr>,
}

impl Guard {
    pub fn new(table: &str, bridge: [u8; 6]) -> Guard {
        Guard { table: Table::new(Family::Bridge, table), bridge: Mac(bridge) }
    }

    fn ports() -> Set {
        Set::new(PORTS, &[DataType::InterfaceName])
    }

    fn macs() -> Set {
        Set::new(MACS, &[DataType::InterfaceName, DataType::EtherAddr])
    }

    fn addresses(ip: IpFamily) -> Set {
        let name = if ip == IpFamily::V4 { "ipv4" } else { "ipv6" };
        Set::new(name, &[DataType::InterfaceName, ip.address()])
    }

    /// Replaces the table by one that guards these ports.
    pub fn replace(&self, ports: &[GuardedPort]) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.replace_table(&self.table);
        batch.add_set(&self.table, &Guard::ports());
        batch.add_set(&self.table, &Guard::macs());
        for ip in IpFamily::ALL {
            batch.add_set(&self.table, &Guard::addresses(ip));
        }
        batch.add_chain(&self.table, &Chain::base(FRAMES, ChainType::Filter, Hook::Prerouting, FIRST));
        for rule in self.rules() {
            batch.add_rule(&self.table, FRAMES, &rule);
        }
        for port in ports {
            self.put(&mut batch, port);
        }
        Ok(Socket::open()?.apply(batch)?)
    }

    fn rules(&self) -> Vec<Rule> {
        let of_type = |kind: Port| Rule::new().eq(Field::EtherType, kind);
        let own = |rule: Rule, kind: IpFamily, source: Field| {
            rule.in_set(&[Field::Iifname, source], Guard::addresses(kind).name())
        };
        let to_bridge = |rule: Rule| rule.eq(Field::EtherDaddr, self.bridge);
        let to_group = |rule: Rule, ip: IpFamily| {
            let (group, length) = ip.multicast();
            rule.has_bits(Field::EtherDaddr, GROUP, GROUP).in_prefix(ip.destination(), group, length)
        };
        let v4 = IpFamily::V4;
        let v6 = IpFamily::V6;
        let broadcast = |rule: Rule| rule.eq(Field::IpDaddr, Ipv4Addr::BROADCAST);
        let link_local =
            |rule: Rule| rule.in_prefix(Field::Ip6Saddr, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10);
        let unspecified = |rule: Rule| rule.eq(Field::Ip6Saddr, Ipv6Addr::UNSPECIFIED);
        let passes = |rule: Rule| rule.verdict(Verdict::Accept);
        let message = |kind: u8| of_type(IPV6).eq(Field::L4Proto, ICMPV6).eq(Field::IcmpType, kind);
        vec![
            passes(Rule::new().not_in_set(&[Field::Iifname], PORTS)),
            Rule::new().not_in_set(&[Field::Iifname, Field::EtherSaddr], MACS).drop(),
            message(ROUTER_ADVERTISEMENT).drop(),
            message(REDIRECT).drop(),
            message(NEIGHBOUR_ADVERTISEMENT).has_bits(Field::EtherDaddr, GROUP, GROUP).drop(),
            passes(own(of_type(ARP), v4, Field::ArpSaddrIp)),
            passes(own(to_bridge(of_type(IPV4)), v4, Field::IpSaddr)),
            passes(own(to_group(of_type(IPV4), v4), v4, Field::IpSaddr)),
            passes(own(broadcast(of_type(IPV4)), v4, Field::IpSaddr)),
            passes(own(to_bridge(of_type(IPV6)), v6, Field::Ip6Saddr)),
            passes(own(to_group(of_type(IPV6), v6), v6, Field::Ip6Saddr)),
            // Neighbours are found before a link has addresses, and by link-local ones.
            passes(link_local(to_bridge(of_type(IPV6)))),
            passes(link_local(to_group(of_type(IPV6), v6))),
            passes(unspecified(to_group(of_type(IPV6), v6))),
            Rule::new().drop(),
        ]
    }

    fn put(&self, batch: &mut Batch, port: &GuardedPort) {
        let name = InterfaceName(port.name.clone());
        batch.add_elements(&self.table, &Guard::ports(), &[Element::key(name.clone())]);
        batch.add_elements(&self.table, &Guard::macs(), &[Element::key((name.clone(), Mac(port.mac)))]);
        for address in &port.addresses {
            let set = Guard::addresses(IpFamily::of(*address));
            batch.add_elements(&self.table, &set, &[Element::key((name.clone(), *address))]);
        }
    }

    /// Guards a port, before it is attached to the bridge.
    pub fn add(&self, port: &GuardedPort) -> Result<(), Error> {
        let mut batch = Batch::new();
        self.put(&mut batch, port);
        Ok(Socket::open()?.apply(batch)?)
    }

    /// Removes a deleted port. One that was never guarded is no error.
    pub fn remove(&self, port: &GuardedPort) -> Result<(), Error> {
        let mut batch = Batch::new();
        // Adding first makes the deletion succeed whichever parts exist.
        self.put(&mut batch, port);
        let name = InterfaceName(port.name.clone());
        batch.delete_elements(&self.table, &Guard::ports(), &[Element::key(name.clone())]);
        batch.delete_elements(&self.table, &Guard::macs(), &[Element::key((name.clone(), Mac(port.mac)))]);
        for address in &port.addresses {
            let set = Guard::addresses(IpFamily::of(*address));
            batch.delete_elements(&self.table, &set, &[Element::key((name.clone(), *address))]);
        }
        Ok(Socket::open()?.apply(batch)?)
    }

    /// Reports whether the table exists.
    pub fn exists(&self) -> Result<bool, Error> {
        Ok(Socket::open()?.tables()?.contains(&self.table))
    }

    /// Deletes the table.
    pub fn delete(&self) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.destroy_table(&self.table);
        Ok(Socket::open()?.apply(batch)?)
    }
}
