//! The nf_tables table of the pod network: outgoing traffic, and host ports.
//!
//! ```text
//! chain guard        filter, prerouting: no packet of a pod or of another node is for 127.0.0.0/8, and packets with the
//!                    address of a pod of this node come from the pods' bridge alone
//! chain prerouting   nat: to an address of this node → host-ports
//! chain output       nat: the same for processes of the node
//! chain host-ports   dnat to pod:port by @host-ports, first by address, then for any address
//! chain postrouting  nat: masquerade packets that leave the cluster, come from 127.0.0.1, or return to the sender
//! ```

use std::net::IpAddr;

use corten_nftables::{
    Batch, Bytes4, Chain, ChainType, Conntrack, Data, DataType, Element, Field, Hook, InterfaceName, IpVersion, Port,
    Protocol as TransportProtocol, Rule, Set, Socket, Table, Value, flags, priority,
};

use tracing::warn;

use crate::allocation::{Lease, PortMapping, Protocol};
use crate::cidr::Cidr;
use crate::error::Error;
use crate::routes::{VXLAN_LINK, WIREGUARD_LINK};

const HOST_PORTS: &str = "host-ports";
const HAIRPIN: &str = "hairpin";
const INSIDE: &str = "inside";

/// The table of one node's pod network, for one version of IP.
pub(crate) struct Firewall {
    pub ip: IpVersion,
    pub table: Table,
    pub bridge: String,
    pub pod_cidr: Cidr,
    /// The ranges that pods reach with their own address.
    pub inside: Vec<Cidr>,
}

impl Firewall {
    fn host_ports(&self) -> Set {
        let address = self.ip.address();
        let protocol = DataType::InetProto;
        let port = DataType::InetService;
        Set::map(HOST_PORTS, &[address, protocol, port], &[address, port])
    }

    fn hairpin(&self) -> Set {
        Set::new(HAIRPIN, &[self.ip.address(), self.ip.address()])
    }

    /// Replaces the table by one that serves these leases, in one batch.
    pub fn replace(&self, leases: &[Lease]) -> Result<(), Error> {
        Ok(Socket::open()?.apply(self.ruleset(leases))?)
    }

    fn ruleset(&self, leases: &[Lease]) -> Batch {
        let mut batch = Batch::new();
        let table = &self.table;
        batch.replace_table(table);
        let inside = Set::new(INSIDE, &[self.ip.address()]).intervals();
        for set in [&self.host_ports(), &self.hairpin(), &inside] {
            batch.add_set(table, set);
        }
        let inside_ranges: Vec<Element> =
            self.inside.iter().map(|cidr| Element::prefix(cidr.address(), cidr.length())).collect();
        batch.add_elements(table, &inside, &inside_ranges);
        for lease in leases {
            self.add_lease(&mut batch, lease);
        }
        for chain in [
            Chain::base("guard", ChainType::Filter, Hook::Prerouting, priority::RAW),
            Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, priority::DSTNAT),
            Chain::base("output", ChainType::Nat, Hook::Output, priority::DSTNAT),
            Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT),
            Chain::regular(HOST_PORTS),
        ] {
            batch.add_chain(table, &chain);
        }
        for (chain, rule) in self.rules() {
            batch.add_rule(table, chain, &rule);
        }
        batch
    }

    fn rules(&self) -> Vec<(&'static str, Rule)> {
        let bridge = InterfaceName(self.bridge.clone());
        let local = || Rule::new().eq(Field::FibDaddrType, Bytes4(Field::ADDRESS_LOCAL)).jump(HOST_PORTS);
        let ip = self.ip;
        let family = self.ip.family();
        let source = ip.source();
        let destination = ip.destination();
        let (loopback, loopback_bits) = ip.loopback();
        let (multicast, multicast_bits) = ip.multicast();
        let any_address = Field::Constant(ip.unspecified().into());
        let from_bridge = Rule::new().eq(Field::Iifname, bridge.clone());
        let loopback_link = InterfaceName("lo".to_owned());
        let from_elsewhere = Rule::new().ne(Field::Iifname, bridge.clone()).ne(Field::Iifname, loopback_link);
        let to_bridge = Rule::new().eq(Field::Oifname, bridge);
        let from_overlay = |link: &str| Rule::new().eq(Field::Iifname, InterfaceName(link.to_owned()));
        let for_localhost = |rule: Rule| rule.in_prefix(destination.clone(), loopback, loopback_bits).drop();
        vec![
            // The bridge and the overlays route 127.0.0.0/8 so that host ports and node ports work on localhost; pods and
            // other nodes must not.
            ("guard", for_localhost(from_bridge)),
            ("guard", for_localhost(from_overlay(VXLAN_LINK))),
            ("guard", for_localhost(from_overlay(WIREGUARD_LINK))),
            // Services and policies would take an outside host that uses a pod's address for that pod.
            ("guard", from_elsewhere.in_prefix(source.clone(), self.pod_cidr.address(), self.pod_cidr.length()).drop()),
            ("prerouting", local()),
            ("output", local()),
            (
                HOST_PORTS,
                Rule::new().dnat_map(family, &[destination.clone(), Field::L4Proto, Field::ThDport], HOST_PORTS),
            ),
            (HOST_PORTS, Rule::new().dnat_map(family, &[any_address, Field::L4Proto, Field::ThDport], HOST_PORTS)),
            ("postrouting", to_bridge.in_prefix(source.clone(), loopback, loopback_bits).masquerade()),
            (
                "postrouting",
                Rule::new()
                    .has_any(Field::CtStatus, flags::CT_STATUS_DNAT)
                    .in_set(&[source.clone(), destination.clone()], HAIRPIN)
                    .masquerade(),
            ),
            (
                "postrouting",
                Rule::new()
                    .in_prefix(source, self.pod_cidr.address(), self.pod_cidr.length())
                    .not_in_set(std::slice::from_ref(&destination), INSIDE)
                    .not_in_prefix(destination, multicast, multicast_bits)
                    .masquerade(),
            ),
        ]
    }

    /// Restores the table if another program deleted it, as a restarted firewall service does.
    pub fn restore(&self, leases: &[Lease]) -> Result<(), Error> {
        if Socket::open()?.tables()?.contains(&self.table) {
            return Ok(());
        }
        warn!(table = self.table.name, "restoring the table of the pod network, which another program deleted");
        self.replace(leases)
    }

    /// Opens the host ports of a pod.
    pub fn open_host_ports(&self, lease: &Lease) -> Result<(), Error> {
        let wanted = self.elements(lease);
        if wanted.is_empty() {
            return Ok(());
        }
        let mut socket = Socket::open()?;
        let held = socket.elements(&self.table, HOST_PORTS)?;
        let conflict = wanted
            .iter()
            .find(|(_, wanted)| held.iter().any(|held| held.key == wanted.key && held.data != wanted.data));
        if let Some((PortMapping { host_port, protocol, .. }, _)) = conflict {
            return Err(Error::HostPortInUse { port: *host_port, protocol: protocol_name(*protocol) });
        }
        let mut batch = Batch::new();
        self.add_lease(&mut batch, lease);
        Ok(socket.apply(batch)?)
    }

    /// Closes all host ports of a pod, and deletes its UDP flows.
    pub fn close_host_ports(&self, lease: &Lease) -> Result<(), Error> {
        let Some(address) = self.address(lease).filter(|_| !lease.port_mappings.is_empty()) else { return Ok(()) };
        let mut socket = Socket::open()?;
        let start = Value::from(address);
        let leads_here = |element: &Element| matches!(&element.data, Some(Data::Value(value)) if value.as_bytes().starts_with(start.as_bytes()));
        let mut ports = socket.elements(&self.table, HOST_PORTS)?;
        ports.retain(leads_here);
        let mut turning = socket.elements(&self.table, HAIRPIN)?;
        turning.retain(|element| element.key == Value::from((address, address)));
        let mut batch = Batch::new();
        batch.delete_elements(&self.table, &self.host_ports(), &ports);
        batch.delete_elements(&self.table, &self.hairpin(), &turning);
        socket.apply(batch)?;
        Conntrack::open()?.delete_matching(TransportProtocol::Udp as u8, |flow| flow.answered_by.0 == address)?;
        Ok(())
    }

    /// Deletes the table.
    pub fn delete(&self) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.destroy_table(&self.table);
        Ok(Socket::open()?.apply(batch)?)
    }

    /// Returns the pod's address of this IP family.
    fn address(&self, lease: &Lease) -> Option<IpAddr> {
        lease.addresses().into_iter().find(|address| self.ip.holds(*address))
    }

    fn add_lease(&self, batch: &mut Batch, lease: &Lease) {
        let elements: Vec<Element> = self.elements(lease).into_iter().map(|(_, element)| element).collect();
        let Some(address) = self.address(lease).filter(|_| !elements.is_empty()) else { return };
        batch.add_elements(&self.table, &self.host_ports(), &elements);
        batch.add_elements(&self.table, &self.hairpin(), &[Element::key((address, address))]);
    }

    /// Returns the elements of a pod's host ports in this table, without those that are bound to an address of the
    /// other family.
    fn elements<'a>(&self, lease: &'a Lease) -> Vec<(&'a PortMapping, Element)> {
        let Some(pod) = self.address(lease) else { return Vec::new() };
        let element = |mapping: &'a PortMapping| {
            let host_ip = mapping.host_ip.unwrap_or(self.ip.unspecified());
            let key = (host_ip, transport(mapping.protocol), Port(mapping.host_port));
            let element = Element::value(key, (pod, Port(mapping.container_port)));
            self.ip.holds(host_ip).then_some((mapping, element))
        };
        lease.port_mappings.iter().filter_map(element).collect()
    }
}

fn transport(protocol: Protocol) -> TransportProtocol {
    match protocol {
        Protocol::Tcp => TransportProtocol::Tcp,
        Protocol::Udp => TransportProtocol::Udp,
        Protocol::Sctp => TransportProtocol::Sctp,
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}
