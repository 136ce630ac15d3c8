//! Services at the sockets: programs in the kernel that let a pod's socket connect to an endpoint instead of a cluster
//! address, so that no packet of it needs translation.
//!
//! Only cluster addresses without affinity are here, for TCP and for UDP sockets that are not connected. Everything
//! else, and whatever a program does not find, is left to the rules of nf_tables, which stand in this mode too: so
//! nothing depends on the programs, and when the process ends they go with it.
//!
//! Reading order: `program` is what happens at a socket; this file keeps its maps; `assembler` and `bpf` carry both to
//! the kernel.

mod assembler;
mod bpf;
mod program;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use corten_nftables::{IpVersion, Protocol};

use crate::error::Error;
use crate::rules::Target;
use crate::service::{Service, ServiceKey, ServicePort};
use bpf::{Kind, Map};
use program::{HOOKS, Maps, assemble};

const SERVICES: u32 = 1 << 17;
const ENDPOINTS: u32 = 1 << 21;
/// Sockets whose peers are remembered; of one that is forgotten, the endpoint shows instead of the Service.
const ASKED: u32 = 1 << 16;

type Address = [u8; 20];

/// A port of a Service as programs know it, and who serves it.
pub(crate) type Wanted = (Address, Vec<Target>);

/// What stands in the kernel of one port of a Service.
struct Standing {
    address: Address,
    /// Endpoints are never changed in place: a new generation is written whole, then entered, then the old one goes.
    generation: u64,
    endpoints: Vec<Target>,
}

/// The programs of one version of IP, and their maps.
pub(crate) struct Sockets {
    services: Map<20, 16>,
    endpoints: Map<16, 20>,
    standing: BTreeMap<ServiceKey, Vec<Standing>>,
    generation: u64,
    /// They work as long as these are open.
    _links: Vec<OwnedFd>,
}

impl Sockets {
    /// Loads the programs and attaches them to the sockets of a control group.
    pub fn open(ip: IpVersion, cgroup: &Path) -> Result<Sockets, Error> {
        let (mut sockets, programs) = Sockets::load(ip).map_err(Error::Sockets)?;
        let attach = |(program, hook): (OwnedFd, u32)| bpf::attach(program.as_fd(), cgroup, hook);
        sockets._links = programs.into_iter().map(attach).collect::<io::Result<_>>().map_err(Error::Sockets)?;
        Ok(sockets)
    }

    fn load(ip: IpVersion) -> io::Result<(Sockets, Vec<(OwnedFd, u32)>)> {
        let (services, endpoints) = (Map::create(Kind::Hash, SERVICES)?, Map::create(Kind::Hash, ENDPOINTS)?);
        let asked: Map<28, 20> = Map::create(Kind::Recent, ASKED)?;
        let maps = Maps { services: services.as_fd(), endpoints: endpoints.as_fd(), asked: asked.as_fd() };
        // Sockets of IPv6 connect to addresses of IPv4 too, not the other way round.
        let hooks = HOOKS.into_iter().filter(|hook| hook.ipv6 || ip == IpVersion::V4);
        let loaded = hooks.map(|hook| Ok((bpf::load(&assemble(hook, &maps), hook.number)?, hook.number)));
        let loaded = loaded.collect::<io::Result<Vec<_>>>()?;
        Ok((Sockets { services, endpoints, standing: BTreeMap::new(), generation: 0, _links: Vec::new() }, loaded))
    }

    /// Makes the kernel know a Service by these ports and endpoints, and by no others. If that fails, by none: the rules
    /// serve it then.
    pub fn replace(&mut self, key: &ServiceKey, wanted: Vec<Wanted>) -> Result<(), Error> {
        let before = self.standing.remove(key).unwrap_or_default();
        let known = before.iter().map(|standing| standing.address);
        let concerned: Vec<Address> = known.chain(wanted.iter().map(|(address, _)| *address)).collect();
        self.exchange(key, before, wanted).map_err(|error| {
            for address in &concerned {
                // What is refused now may be what is full; deleting needs no room.
                let _ = self.services.delete(address);
            }
            Error::Sockets(error)
        })
    }

    fn exchange(&mut self, key: &ServiceKey, mut before: Vec<Standing>, wanted: Vec<Wanted>) -> io::Result<()> {
        let mut after = Vec::with_capacity(wanted.len());
        for (address, endpoints) in wanted {
            let known = before.iter().position(|standing| standing.address == address);
            let known = known.map(|index| before.swap_remove(index));
            match known {
                Some(known) if known.endpoints == endpoints => after.push(known),
                known => {
                    after.push(self.enter(address, endpoints)?);
                    known.map_or(Ok(()), |known| self.forget(&known))?;
                }
            }
        }
        for gone in before {
            self.services.delete(&gone.address).and_then(|()| self.forget(&gone))?;
        }
        if !after.is_empty() {
            self.standing.insert(key.clone(), after);
        }
        Ok(())
    }

    fn enter(&mut self, address: Address, endpoints: Vec<Target>) -> io::Result<Standing> {
        self.generation += 1;
        let generation = self.generation;
        for (index, (endpoint, port)) in endpoints.iter().enumerate() {
            self.endpoints.set(&slot(generation, index), &address_of(*endpoint, *port, 0))?;
        }
        let mut value = [0; 16];
        value[..8].copy_from_slice(&generation.to_ne_bytes());
        value[8..12].copy_from_slice(&(endpoints.len() as u32).to_ne_bytes());
        self.services.set(&address, &value)?;
        Ok(Standing { address, generation, endpoints })
    }

    fn forget(&self, standing: &Standing) -> io::Result<()> {
        (0..standing.endpoints.len()).try_for_each(|index| self.endpoints.delete(&slot(standing.generation, index)))
    }
}

/// Whether the kernel takes the programs; the error says why not.
pub fn supports_sockets() -> Result<(), Error> {
    Sockets::load(IpVersion::V4).map(drop).map_err(Error::Sockets)
}

/// What the programs are to know of a port that these serve, if it is theirs at all.
pub(crate) fn wanted(service: &Service, port: &ServicePort, endpoints: Vec<Target>) -> Option<Wanted> {
    let served = service.affinity.is_none() && port.protocol != Protocol::Sctp && !endpoints.is_empty();
    served.then(|| (address_of(service.cluster_ip, port.port, port.protocol as u8), endpoints))
}

fn slot(generation: u64, index: usize) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&generation.to_ne_bytes());
    key[8..].copy_from_slice(&(index as u64).to_ne_bytes());
    key
}

fn address_of(address: IpAddr, port: u16, protocol: u8) -> Address {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&address.octets());
    bytes[16..18].copy_from_slice(&port.to_be_bytes());
    bytes[18] = protocol;
    bytes
}
