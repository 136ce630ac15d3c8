//! Cluster addresses by the kernel's own load balancer, IPVS, where it has one.
//!
//! IPVS sees only what is delivered to the node, so the cluster addresses stand on a link of their own, `kube-ipvs0`; the
//! name is upstream's, because other programs know to leave it alone. Everything else stays with nf_tables: who is
//! refused, who is masqueraded, node ports and whatever is addressed from outside, whose addresses belong to nobody's
//! link here.
//!
//! A destination that goes away gets no more connections, and leaves with its last one; of UDP it leaves at once.
//!
//! Reading order: `message` is what is said; this file keeps what stands. Services and addresses on other links are never
//! touched.

pub(crate) mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use corten_nftables::{Conversation, GenericFamily, IpVersion, Protocol, asking};
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

/// What IPVS must do so that translation and masquerade work together, and connections end with their endpoint.
const SETTINGS: [&str; 3] = ["conntrack", "expire_nodest_conn", "expire_quiescent_template"];

/// A port of a Service as IPVS is to know it: its clients' seconds of affinity, and who serves it.
pub(crate) type Wanted = (Virtual, Option<u32>, Vec<Target>);

/// What the kernel knows of a Service.
#[derive(Default)]
struct Standing {
    /// None of what an earlier run left.
    affinity: Option<Option<u32>>,
    /// With their weights.
    destinations: BTreeMap<Target, u32>,
}

/// Who is spoken to: the kernel, or in tests what stands for it.
trait Kernel: Send {
    /// A command of IPVS, and the attributes of every answer.
    fn ipvs(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>>;
    /// A question of links and addresses, and every answer.
    fn links(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>>;
}

struct Netlink {
    family: GenericFamily,
    links: Conversation,
}

impl Kernel for Netlink {
    fn ipvs(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.family.ask(command, flags, attributes)
    }

    fn links(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.links.ask(kind, flags, body)
    }
}

/// The Services of one version of IP.
pub(crate) struct Ipvs {
    ip: IpVersion,
    kernel: Box<dyn Kernel>,
    index: u32,
    standing: BTreeMap<Virtual, Standing>,
    addresses: BTreeSet<IpAddr>,
    owned: BTreeMap<ServiceKey, Vec<Virtual>>,
    /// What stands and nobody wants: until every Service has been said, what an earlier run left.
    found: BTreeSet<Virtual>,
    /// Addresses that may be of no use any more.
    spare: BTreeSet<IpAddr>,
}

impl Ipvs {
    /// Makes the link stand, and learns what an earlier run left, whose connections go on.
    pub fn open(ip: IpVersion) -> Result<Ipvs, Error> {
        let family = GenericFamily::open(FAMILY).map_err(Error::NoIpvs)?;
        for setting in SETTINGS {
            std::fs::write(format!("/proc/sys/net/ipv4/vs/{setting}"), "1").map_err(Error::Ipvs)?;
        }
        let links = Conversation::open(NETLINK_ROUTE).map_err(Error::Ipvs)?;
        Ipvs::with(ip, Box::new(Netlink { family, links })).map_err(Error::Ipvs)
    }

    fn with(ip: IpVersion, kernel: Box<dyn Kernel>) -> io::Result<Ipvs> {
        let (standing, owned) = (BTreeMap::new(), BTreeMap::new());
        let (addresses, found, spare) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut ipvs = Ipvs { ip, kernel, index: 0, standing, addresses, owned, found, spare };
        ipvs.make_link()?;
        ipvs.learn()?;
        Ok(ipvs)
    }

    fn make_link(&mut self) -> io::Result<()> {
        self.kernel.links(NEW_LINK, asking::CREATE | asking::ACKNOWLEDGE, &message::link(LINK, Some(KIND)))?;
        self.index = index(&mut *self.kernel)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(())
    }

    /// Reads what the kernel holds on our addresses.
    fn learn(&mut self) -> io::Result<()> {
        self.addresses = self.present_addresses()?;
        self.spare = self.addresses.clone();
        self.standing.clear();
        for service in self.present_services()? {
            let told = self.destinations(&service)?;
            let destinations = told.into_iter().map(|told| (told.target, told.weight)).collect();
            self.standing.insert(service, Standing { affinity: None, destinations });
        }
        self.found = self.standing.keys().copied().collect();
        Ok(())
    }

    fn present_addresses(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        let told = self.kernel.links(GET_ADDRESS, asking::DUMP, &[0; 8])?;
        let told = told.iter().filter_map(|answer| message::read_link_address(answer));
        let ours =
            told.filter(|(index, address)| *index == self.index && self.ip.holds(*address) && !is_link_local(*address));
        Ok(ours.map(|(_, address)| address).collect())
    }

    fn present_services(&mut self) -> io::Result<BTreeSet<Virtual>> {
        let told = self.kernel.ipvs(GET_SERVICE, asking::DUMP, &[])?;
        let told = told.iter().filter_map(|answer| message::read_service(answer));
        Ok(told.filter(|service| self.addresses.contains(&service.address)).collect())
    }

    fn destinations(&mut self, service: &Virtual) -> io::Result<Vec<message::Told>> {
        let told = self.kernel.ipvs(GET_DESTINATION, asking::DUMP, &message::about(service))?;
        let ipv4 = self.ip == IpVersion::V4;
        Ok(told.iter().filter_map(|answer| message::read_destination(answer, ipv4)).collect())
    }

    /// Makes the kernel know a Service by these ports and destinations, and by no others. What fails may be repeated.
    pub fn replace(&mut self, key: &ServiceKey, wanted: &[Wanted]) -> Result<(), Error> {
        let services = wanted.iter().map(|(service, ..)| *service).collect();
        let before = self.owned.insert(key.clone(), services).unwrap_or_default();
        self.found.extend(before.iter().filter(|gone| self.standing.contains_key(gone)));
        for (service, affinity, targets) in wanted {
            self.found.remove(service);
            self.serve(service, *affinity, targets).map_err(Error::Ipvs)?;
        }
        if wanted.is_empty() {
            self.owned.remove(key);
        }
        Ok(())
    }

    /// Takes away what nobody wanted since the last time, once every Service has been said.
    pub fn finish(&mut self) -> Result<(), Error> {
        for service in &self.found {
            self.standing.remove(service);
            self.spare.insert(service.address);
        }
        // Addresses first, or the node would take what comes to them for its own.
        while let Some(address) = self.spare.first().copied() {
            if !self.serves(address) {
                self.drop_address(address).map_err(Error::Ipvs)?;
            }
            self.spare.remove(&address);
        }
        while let Some(service) = self.found.first().copied() {
            gone(self.command(DELETE_SERVICE, &message::about(&service))).map_err(Error::Ipvs)?;
            self.found.remove(&service);
        }
        Ok(())
    }

    /// Whether any port of an address is served.
    fn serves(&self, address: IpAddr) -> bool {
        let first = Virtual { address, port: 0, protocol: Protocol::Tcp };
        self.standing.range(first..).next().is_some_and(|(service, _)| service.address == address)
    }

    fn serve(&mut self, service: &Virtual, affinity: Option<u32>, targets: &[Target]) -> io::Result<()> {
        let before = self.standing.get(service).map(|standing| standing.affinity);
        if before != Some(Some(affinity)) {
            let message = message::service(service, affinity);
            match before
                .map_or_else(|| self.command(NEW_SERVICE, &message), |_| Err(io::ErrorKind::AlreadyExists.into()))
            {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.command(SET_SERVICE, &message)?,
                made => made?,
            }
            self.standing.entry(*service).or_default().affinity = Some(affinity);
        }
        let known = self.standing.get(service).map(|standing| standing.destinations.clone()).unwrap_or_default();
        for target in targets {
            match known.get(target) {
                Some(1) => {}
                Some(_) => self.weigh(SET_DESTINATION, service, *target, 1)?,
                None => self.weigh(NEW_DESTINATION, service, *target, 1)?,
            }
        }
        for (target, weight) in known {
            match (targets.contains(&target), service.protocol) {
                (true, _) => {}
                (false, Protocol::Udp) => self.dismiss(service, target)?,
                (false, _) if weight > 0 => self.weigh(SET_DESTINATION, service, target, 0)?,
                (false, _) => {}
            }
        }
        // Last, for until then there is nobody to serve what the node would take for its own.
        if !self.addresses.contains(&service.address) {
            let message = message::link_address(self.index, service.address);
            self.kernel.links(NEW_ADDRESS, asking::CREATE | asking::REPLACE | asking::ACKNOWLEDGE, &message)?;
            self.addresses.insert(service.address);
        }
        Ok(())
    }

    fn command(&mut self, command: u8, message: &[u8]) -> io::Result<()> {
        self.kernel.ipvs(command, asking::ACKNOWLEDGE, message).map(drop)
    }

    fn weigh(&mut self, command: u8, service: &Virtual, target: Target, weight: u32) -> io::Result<()> {
        self.command(command, &message::destination(service, target, weight))?;
        self.standing.entry(*service).or_default().destinations.insert(target, weight);
        Ok(())
    }

    fn dismiss(&mut self, service: &Virtual, target: Target) -> io::Result<()> {
        gone(self.command(DELETE_DESTINATION, &message::destination(service, target, 0)))?;
        self.standing.entry(*service).or_default().destinations.remove(&target);
        Ok(())
    }

    fn drop_address(&mut self, address: IpAddr) -> io::Result<()> {
        let message = message::link_address(self.index, address);
        gone(self.kernel.links(DELETE_ADDRESS, asking::ACKNOWLEDGE, &message).map(drop))?;
        self.addresses.remove(&address);
        Ok(())
    }

    /// Lets destinations go whose last connection ended. Says whether all that should stand does; if not, every Service
    /// must be said again.
    pub fn check(&mut self) -> Result<bool, Error> {
        let mut look = || -> io::Result<bool> {
            let whole = index(&mut *self.kernel)? == Some(self.index)
                && self.present_addresses()? == self.addresses
                && self.present_services()?.iter().eq(self.standing.keys());
            if whole {
                self.dismiss_idle()?;
            } else {
                self.make_link()?;
                self.learn()?;
            }
            Ok(whole)
        };
        look().map_err(Error::Ipvs)
    }

    fn dismiss_idle(&mut self) -> io::Result<()> {
        let leaving = |standing: &Standing| standing.destinations.values().any(|weight| *weight == 0);
        let some = self.standing.iter().filter(|(_, standing)| leaving(standing)).map(|(service, _)| *service);
        for service in some.collect::<Vec<_>>() {
            for told in self.destinations(&service)? {
                if told.weight == 0 && told.connections == 0 {
                    debug!(address = %told.target.0, port = told.target.1, "a destination left with its last connection");
                    self.dismiss(&service, told.target)?;
                }
            }
        }
        Ok(())
    }
}

/// The number of our link, if it stands.
fn index(kernel: &mut dyn Kernel) -> io::Result<Option<u32>> {
    match kernel.links(GET_LINK, asking::ACKNOWLEDGE, &message::link(LINK, None)) {
        Ok(answers) => Ok(answers.iter().find_map(|answer| message::read_link(answer))),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is gone already need not go.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL)) => Ok(()),
        other => other,
    }
}

/// Every link that is up has one of these in IPVS's other version.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// What IPVS is to know of a port that these serve; none if nobody does.
pub(crate) fn wanted(service: &Service, port: &ServicePort, endpoints: Vec<Target>) -> Option<Wanted> {
    let served = Virtual { address: service.cluster_ip, protocol: port.protocol, port: port.port };
    (!endpoints.is_empty()).then_some((served, service.affinity, endpoints))
}

/// Whether this kernel has IPVS; the error says so if not.
pub fn supports_ipvs() -> Result<(), Error> {
    GenericFamily::open(FAMILY).map(drop).map_err(Error::NoIpvs)
}

/// Takes away what the mode left: the Services on our addresses, and the link with them. A kernel without IPVS has neither.
pub(crate) fn cleanup() -> Result<(), Error> {
    let Ok(family) = GenericFamily::open(FAMILY) else { return Ok(()) };
    let mut kernel = Netlink { family, links: Conversation::open(NETLINK_ROUTE).map_err(Error::Ipvs)? };
    if index(&mut kernel).map_err(Error::Ipvs)?.is_none() {
        return Ok(());
    }
    for ip in IpVersion::ALL {
        // Nothing has been said, so nothing is wanted.
        Ipvs::open(ip)?.finish()?;
    }
    kernel.links(DELETE_LINK, asking::ACKNOWLEDGE, &message::link(LINK, None)).map(drop).map_err(Error::Ipvs)
}

#[cfg(test)]
mod tests;
