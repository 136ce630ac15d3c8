//! Cluster addresses by the kernel's own load balancer, IPVS, where it has one.
//!
//! IPVS sees only packets that are delivered to the node, so the cluster addresses are on a link of their own,
//! `kube-ipvs0`; the name is upstream's, because other programs know to ignore it. Everything else stays with
//! nf_tables: refusals, masquerading, node ports and addresses for outside traffic, which are on no link here.
//!
//! A deleted destination gets no more connections, and is removed with its last one; of UDP it is removed at once.
//!
//! Reading order: `message` is the format of messages; this file keeps the state. Services and addresses on other links
//! are never changed.

pub(crate) mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use corten_nftables::{Conversation, GenericFamily, IpFamily, Protocol, request_flags};
use netlink_sys::protocols::NETLINK_ROUTE;
use tracing::debug;

pub(crate) use message::Virtual;

use crate::error::Error;
use crate::rules::Target;
use crate::service::{Service, ServiceKey, ServicePort};

const FAMILY: &str = "IPVS";
const LINK: &str = "kube-ipvs0";
const KIND: &str = "dummy";

const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const NEW_DESTINATION: u8 = 5;
const SET_DESTINATION: u8 = 6;
const DELETE_DESTINATION: u8 = 7;
const GET_DESTINATION: u8 = 8;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;

/// The settings of IPVS that make translation and masquerade work together, and connections end with their endpoint.
const SETTINGS: [&str; 3] = ["conntrack", "expire_nodest_conn", "expire_quiescent_template"];

/// A port of a Service for IPVS: its address, its clients' seconds of affinity, and its endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub service: Virtual,
    pub affinity: Option<u32>,
    pub endpoints: Vec<Target>,
}

/// The kernel's state of a Service.
#[derive(Default)]
struct Served {
    /// The affinity; `None` for a Service of an earlier run.
    affinity: Option<Option<u32>>,
    /// The destinations with their weights.
    destinations: BTreeMap<Target, u32>,
}

/// The kernel, or its model in tests.
trait Kernel: Send {
    /// Sends a command of IPVS; returns the attributes of every answer.
    fn ipvs(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>>;
    /// Sends a request for links and addresses; returns every answer.
    fn links(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>>;
}

struct Netlink {
    family: GenericFamily,
    links: Conversation,
}

impl Kernel for Netlink {
    fn ipvs(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.family.request(command, flags, attributes)
    }

    fn links(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.links.request(kind, flags, body)
    }
}

/// The Services of one IP family.
pub(crate) struct Ipvs {
    ip: IpFamily,
    kernel: Box<dyn Kernel>,
    index: u32,
    served: BTreeMap<Virtual, Served>,
    addresses: BTreeSet<IpAddr>,
    owned: BTreeMap<ServiceKey, Vec<Virtual>>,
    /// The existing Services that no object wants: until every Service has been set, those of an earlier run.
    found: BTreeSet<Virtual>,
    /// The addresses that may be unused.
    spare: BTreeSet<IpAddr>,
}

impl Ipvs {
    /// Makes the link, and reads the state of an earlier run, whose connections go on.
    pub fn open(ip: IpFamily) -> Result<Ipvs, Error> {
        let family = GenericFamily::open(FAMILY).map_err(Error::NoIpvs)?;
        for setting in SETTINGS {
            std::fs::write(format!("/proc/sys/net/ipv4/vs/{setting}"), "1").map_err(Error::Ipvs)?;
        }
        let links = Conversation::open(NETLINK_ROUTE).map_err(Error::Ipvs)?;
        Ipvs::with(ip, Box::new(Netlink { family, links })).map_err(Error::Ipvs)
    }

    fn with(ip: IpFamily, kernel: Box<dyn Kernel>) -> io::Result<Ipvs> {
        let served = BTreeMap::new();
        let owned = BTreeMap::new();
        let addresses = BTreeSet::new();
        let found = BTreeSet::new();
        let spare = BTreeSet::new();
        let mut ipvs = Ipvs { ip, kernel, index: 0, served, addresses, owned, found, spare };
        ipvs.make_link()?;
        ipvs.read_state()?;
        Ok(ipvs)
    }

    fn make_link(&mut self) -> io::Result<()> {
        self.kernel.links(
            NEW_LINK,
            request_flags::CREATE | request_flags::ACKNOWLEDGE,
            &message::link(LINK, Some(KIND)),
        )?;
        self.index = index(&mut *self.kernel)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(())
    }

    /// Reads the kernel's state of our addresses.
    fn read_state(&mut self) -> io::Result<()> {
        self.addresses = self.present_addresses()?;
        self.spare = self.addresses.clone();
        self.served.clear();
        for service in self.present_services()? {
            let destinations = self.destinations(&service)?;
            let destinations = destinations.into_iter().map(|found| (found.target, found.weight)).collect();
            self.served.insert(service, Served { affinity: None, destinations });
        }
        self.found = self.served.keys().copied().collect();
        Ok(())
    }

    fn present_addresses(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let answers = self.kernel.links(GET_ADDRESS, request_flags::DUMP, &[0; 8])?;
        let addresses = answers.iter().filter_map(|answer| message::read_link_address(answer));
        let ours = addresses
            .filter(|(index, address)| *index == self.index && self.ip.holds(*address) && !is_link_local(*address));
        Ok(ours.map(|(_, address)| address).collect())
    }

    fn present_services(&mut self) -> io::Result<BTreeSet<Virtual>> {
        let answers = self.kernel.ipvs(GET_SERVICE, request_flags::DUMP, &[])?;
        let services = answers.iter().filter_map(|answer| message::read_service(answer));
        Ok(services.filter(|service| self.addresses.contains(&service.address)).collect())
    }

    fn destinations(&mut self, service: &Virtual) -> io::Result<Vec<message::Destination>> {
        let answers = self.kernel.ipvs(GET_DESTINATION, request_flags::DUMP, &message::service_key(service))?;
        let ipv4 = self.ip == IpFamily::V4;
        Ok(answers.iter().filter_map(|answer| message::read_destination(answer, ipv4)).collect())
    }

    /// Makes the kernel serve a Service by exactly these ports and destinations. A failed call may be repeated.
    pub fn replace(&mut self, key: &ServiceKey, wanted: &[Wanted]) -> Result<(), Error> {
        let services = wanted.iter().map(|port| port.service).collect();
        let before = self.owned.insert(key.clone(), services).unwrap_or_default();
        self.found.extend(before.iter().filter(|service| self.served.contains_key(service)));
        for port in wanted {
            self.found.remove(&port.service);
            self.serve(&port.service, port.affinity, &port.endpoints).map_err(Error::Ipvs)?;
        }
        if wanted.is_empty() {
            self.owned.remove(key);
        }
        Ok(())
    }

    /// Deletes everything unwanted, once every Service has been set.
    pub fn finish(&mut self) -> Result<(), Error> {
        for service in &self.found {
            self.served.remove(service);
            self.spare.insert(service.address);
        }
        // Addresses first, or the node would deliver their packets to itself.
        while let Some(address) = self.spare.first().copied() {
            if !self.serves(address) {
                self.drop_address(address).map_err(Error::Ipvs)?;
            }
            self.spare.remove(&address);
        }
        while let Some(service) = self.found.first().copied() {
            ignore_missing(self.command(DELETE_SERVICE, &message::service_key(&service))).map_err(Error::Ipvs)?;
            self.found.remove(&service);
        }
        Ok(())
    }

    /// Reports whether any port of an address is served.
    fn serves(&self, address: IpAddr) -> bool {
        let first = Virtual { address, port: 0, protocol: Protocol::Tcp };
        self.served.range(first..).next().is_some_and(|(service, _)| service.address == address)
    }

    fn serve(&mut self, service: &Virtual, affinity: Option<u32>, targets: &[Target]) -> io::Result<()> {
        let before = self.served.get(service).map(|served| served.affinity);
        if before != Some(Some(affinity)) {
            let message = message::service(service, affinity);
            match before
                .map_or_else(|| self.command(NEW_SERVICE, &message), |_| Err(io::ErrorKind::AlreadyExists.into()))
            {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.command(SET_SERVICE, &message)?,
                made => made?,
            }
            self.served.entry(*service).or_default().affinity = Some(affinity);
        }
        let known = self.served.get(service).map(|served| served.destinations.clone()).unwrap_or_default();
        for target in targets {
            match known.get(target) {
                Some(1) => {}
                Some(_) => self.set_weight(SET_DESTINATION, service, *target, 1)?,
                None => self.set_weight(NEW_DESTINATION, service, *target, 1)?,
            }
        }
        for (target, weight) in known {
            match (targets.contains(&target), service.protocol) {
                (true, _) => {}
                (false, Protocol::Udp) => self.remove_destination(service, target)?,
                (false, _) if weight > 0 => self.set_weight(SET_DESTINATION, service, target, 0)?,
                (false, _) => {}
            }
        }
        // Last: before, the node would deliver the address's packets to itself.
        if !self.addresses.contains(&service.address) {
            let message = message::link_address(self.index, service.address);
            self.kernel.links(
                NEW_ADDRESS,
                request_flags::CREATE | request_flags::REPLACE | request_flags::ACKNOWLEDGE,
                &message,
            )?;
            self.addresses.insert(service.address);
        }
        Ok(())
    }

    fn command(&mut self, command: u8, message: &[u8]) -> io::Result<()> {
        self.kernel.ipvs(command, request_flags::ACKNOWLEDGE, message).map(drop)
    }

    fn set_weight(&mut self, command: u8, service: &Virtual, target: Target, weight: u32) -> io::Result<()> {
        self.command(command, &message::destination(service, target, weight))?;
        self.served.entry(*service).or_default().destinations.insert(target, weight);
        Ok(())
    }

    fn remove_destination(&mut self, service: &Virtual, target: Target) -> io::Result<()> {
        ignore_missing(self.command(DELETE_DESTINATION, &message::destination(service, target, 0)))?;
        self.served.entry(*service).or_default().destinations.remove(&target);
        Ok(())
    }

    fn drop_address(&mut self, address: IpAddr) -> io::Result<()> {
        let message = message::link_address(self.index, address);
        ignore_missing(self.kernel.links(DELETE_ADDRESS, request_flags::ACKNOWLEDGE, &message).map(drop))?;
        self.addresses.remove(&address);
        Ok(())
    }

    /// Removes deleted destinations whose last connection ended. Returns whether the wanted state exists; if not, every
    /// Service must be set again.
    pub fn check(&mut self) -> Result<bool, Error> {
        let mut look = || -> io::Result<bool> {
            let complete = index(&mut *self.kernel)? == Some(self.index)
                && self.present_addresses()? == self.addresses
                && self.present_services()?.iter().eq(self.served.keys());
            if complete {
                self.remove_idle()?;
            } else {
                self.make_link()?;
                self.read_state()?;
            }
            Ok(complete)
        };
        look().map_err(Error::Ipvs)
    }

    fn remove_idle(&mut self) -> io::Result<()> {
        let leaving = |served: &Served| served.destinations.values().any(|weight| *weight == 0);
        let some = self.served.iter().filter(|(_, served)| leaving(served)).map(|(service, _)| *service);
        for service in some.collect::<Vec<_>>() {
            for destination in self.destinations(&service)? {
                if destination.weight == 0 && destination.connections == 0 {
                    debug!(address = %destination.target.0, port = destination.target.1, "removed a destination with its last connection");
                    self.remove_destination(&service, destination.target)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the index of our link, if it exists.
fn index(kernel: &mut dyn Kernel) -> io::Result<Option<u32>> {
    match kernel.links(GET_LINK, request_flags::ACKNOWLEDGE, &message::link(LINK, None)) {
        Ok(answers) => Ok(answers.iter().find_map(|answer| message::read_link(answer))),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ignores the error of a missing object.
fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL)) => Ok(()),
        other => other,
    }
}

/// Reports whether an address is link-local: every link that is up has one in IPv6.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Returns the wanted state of a port with these endpoints; `None` without endpoints.
pub(crate) fn wanted(service: &Service, port: &ServicePort, endpoints: Vec<Target>) -> Option<Wanted> {
    let virtual_service = Virtual { address: service.cluster_ip, protocol: port.protocol, port: port.port };
    (!endpoints.is_empty()).then_some(Wanted { service: virtual_service, affinity: service.affinity, endpoints })
}

/// Checks that this kernel has IPVS; returns an error if not.
pub fn supports_ipvs() -> Result<(), Error> {
    GenericFamily::open(FAMILY).map(drop).map_err(Error::NoIpvs)
}

/// Deletes everything of the mode: the Services on our addresses, and the link with them. A kernel without IPVS has
/// neither.
pub(crate) fn cleanup() -> Result<(), Error> {
    let Ok(family) = GenericFamily::open(FAMILY) else { return Ok(()) };
    let mut kernel = Netlink { family, links: Conversation::open(NETLINK_ROUTE).map_err(Error::Ipvs)? };
    if index(&mut kernel).map_err(Error::Ipvs)?.is_none() {
        return Ok(());
    }
    for ip in IpFamily::ALL {
        // No Service has been set, so none is wanted.
        Ipvs::open(ip)?.finish()?;
    }
    kernel.links(DELETE_LINK, request_flags::ACKNOWLEDGE, &message::link(LINK, None)).map(drop).map_err(Error::Ipvs)
}

#[cfg(test)]
mod tests;
