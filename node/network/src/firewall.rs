//! The nf_tables table of the pod network: the way out, and host ports.
//!
//! ```text
//! chain guard        filter, prerouting: nothing from a pod may claim to be for 127.0.0.0/8
//! chain prerouting   nat: to an address of this node → host-ports
//! chain output       nat: the same for processes of the node
//! chain host-ports   dnat to pod:port by @host-ports, first by address, then for any address
//! chain postrouting  nat: masquerade what leaves the cluster, comes from 127.0.0.1, or turns back
//! ```

use std::net::{IpAddr, Ipv4Addr};

use corten_nftables::{
    Batch, Bytes4, Chain, ChainType, Conntrack, Data, DataType, Element, Family, Field, Hook, InterfaceName, Port,
    Protocol as TransportProtocol, Rule, Set, Socket, Table, Value, flags, priority,
};

use tracing::warn;

use crate::allocation::{Lease, PortMapping, Protocol};
use crate::cidr::Cidr;
use crate::error::Error;

const HOST_PORTS: &str = "host-ports";
const HAIRPIN: &str = "hairpin";
const INSIDE: &str = "inside";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
const MULTICAST: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0));

/// The table of one node's pod network.
pub(crate) struct Firewall {
    pub table: Table,
    pub bridge: String,
    pub pod_cidr: Cidr,
    /// Ranges that pods reach with their own address.
    pub inside: Vec<Cidr>,
}

impl Firewall {
    fn host_ports() -> Set {
        let (address, protocol, port) = (DataType::Ipv4Addr, DataType::InetProto, DataType::InetService);
        Set::map(HOST_PORTS, &[address, protocol, port], &[address, port])
    }

    fn hairpin() -> Set {
        Set::new(HAIRPIN, &[DataType::Ipv4Addr, DataType::Ipv4Addr])
    }

    /// Replaces the table by one that serves these leases, in one step.
    pub fn replace(&self, leases: &[Lease]) -> Result<(), Error> {
        Ok(Socket::open()?.apply(self.ruleset(leases))?)
    }

    fn ruleset(&self, leases: &[Lease]) -> Batch {
        let mut batch = Batch::new();
        let table = &self.table;
        batch.replace_table(table);
        let inside = Set::new(INSIDE, &[DataType::Ipv4Addr]).intervals();
        for set in [&Firewall::host_ports(), &Firewall::hairpin(), &inside] {
            batch.add_set(table, set);
        }
        let inside_ranges: Vec<Element> =
            self.inside.iter().map(|cidr| Element::prefix(cidr.address(), cidr.length())).collect();
        batch.add_elements(table, &inside, &inside_ranges);
        for lease in leases {
            add_lease(&mut batch, table, lease);
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
        let any_address = Field::Constant(Ipv4Addr::UNSPECIFIED.into());
        vec![
            // The bridge routes 127.0.0.0/8 so that host ports work on localhost; pods must not.
            ("guard", Rule::new().eq(Field::Iifname, bridge.clone()).in_prefix(Field::IpDaddr, LOOPBACK, 8).drop()),
            ("prerouting", local()),
            ("output", local()),
            (
                HOST_PORTS,
                Rule::new().dnat_map(Family::Ipv4, &[Field::IpDaddr, Field::L4Proto, Field::ThDport], HOST_PORTS),
            ),
            (
                HOST_PORTS,
                Rule::new().dnat_map(Family::Ipv4, &[any_address, Field::L4Proto, Field::ThDport], HOST_PORTS),
            ),
            ("postrouting", Rule::new().eq(Field::Oifname, bridge).in_prefix(Field::IpSaddr, LOOPBACK, 8).masquerade()),
            (
                "postrouting",
                Rule::new()
                    .has_any(Field::CtStatus, flags::CT_STATUS_DNAT)
                    .in_set(&[Field::IpSaddr, Field::IpDaddr], HAIRPIN)
                    .masquerade(),
            ),
            (
                "postrouting",
                Rule::new()
                    .in_prefix(Field::IpSaddr, self.pod_cidr.address(), self.pod_cidr.length())
                    .not_in_set(&[Field::IpDaddr], INSIDE)
                    .not_in_prefix(Field::IpDaddr, MULTICAST, 4)
                    .masquerade(),
            ),
        ]
    }

    /// Puts the table back if someone else deleted it, as a restarted firewall service does.
    pub fn restore(&self, leases: &[Lease]) -> Result<(), Error> {
        if Socket::open()?.tables()?.contains(&self.table) {
            return Ok(());
        }
        warn!(table = self.table.name, "restoring the table of the pod network, which someone else deleted");
        self.replace(leases)
    }

    /// Opens the host ports of a pod.
    pub fn open_host_ports(&self, lease: &Lease) -> Result<(), Error> {
        let mut socket = Socket::open()?;
        let held = socket.elements(&self.table, HOST_PORTS)?;
        let conflict = lease.port_mappings.iter().find(|mapping| {
            let wanted = element(mapping, lease.address);
            held.iter().any(|held| held.key == wanted.key && held.data != wanted.data)
        });
        if let Some(PortMapping { host_port, protocol, .. }) = conflict {
            return Err(Error::HostPortInUse { port: *host_port, protocol: protocol_name(*protocol) });
        }
        let mut batch = Batch::new();
        add_lease(&mut batch, &self.table, lease);
        Ok(socket.apply(batch)?)
    }

    /// Closes whatever host ports lead to a pod, and forgets its UDP flows.
    pub fn close_host_ports(&self, address: Ipv4Addr) -> Result<(), Error> {
        let mut socket = Socket::open()?;
        let leads_here = |element: &Element| matches!(&element.data, Some(Data::Value(value)) if value.as_bytes().starts_with(&address.octets()));
        let mut ports = socket.elements(&self.table, HOST_PORTS)?;
        ports.retain(leads_here);
        let mut turning = socket.elements(&self.table, HAIRPIN)?;
        turning.retain(|element| element.key == Value::from((address, address)));
        let mut batch = Batch::new();
        batch.delete_elements(&self.table, &Firewall::host_ports(), &ports);
        batch.delete_elements(&self.table, &Firewall::hairpin(), &turning);
        socket.apply(batch)?;
        Conntrack::open()?
            .delete_matching(TransportProtocol::Udp as u8, |flow| flow.answered_by.0 == IpAddr::V4(address))?;
        Ok(())
    }

    /// Deletes the table.
    pub fn delete(&self) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.destroy_table(&self.table);
        Ok(Socket::open()?.apply(batch)?)
    }
}

fn add_lease(batch: &mut Batch, table: &Table, lease: &Lease) {
    if lease.port_mappings.is_empty() {
        return;
    }
    let elements: Vec<Element> = lease.port_mappings.iter().map(|mapping| element(mapping, lease.address)).collect();
    batch.add_elements(table, &Firewall::host_ports(), &elements);
    batch.add_elements(table, &Firewall::hairpin(), &[Element::key((lease.address, lease.address))]);
}

fn element(mapping: &PortMapping, pod: Ipv4Addr) -> Element {
    let host_ip = mapping.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let key = (host_ip, transport(mapping.protocol), Port(mapping.host_port));
    Element::value(key, (pod, Port(mapping.container_port)))
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
