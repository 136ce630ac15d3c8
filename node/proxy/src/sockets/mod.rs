//! Services at the sockets: programs in the kernel that connect a pod's socket to an endpoint instead of a cluster
//! address, so that none of its packets needs translation.
//!
//! Only cluster addresses without affinity are here, for TCP and for UDP sockets that are not connected. Everything
//! else, and everything that a program does not find, is left to the rules of nf_tables, which exist in this mode too:
//! so nothing depends on the programs, and when the process ends they end with it.
//!
//! Reading order: `program` is the code at a socket; this file keeps its maps; `assembler` and `bpf` load both into the
//! kernel.

mod assembler;
mod bpf;
mod program;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use corten_nftables::{IpFamily, Protocol};

use crate::error::Error;
use crate::rules::Target;
use crate::service::{Service, ServiceKey, ServicePort};
use bpf::{Kind, Map};
use program::{HOOKS, Maps, assemble};

const SERVICES: u32 = 1 << 17;
const ENDPOINTS: u32 = 1 << 21;
/// The most sockets whose peers are remembered; a forgotten socket shows the endpoint as its peer instead of the
/// Service.
const REMEMBERED_SOCKETS: u32 = 1 << 16;

type Address = [u8; 20];

/// A port of a Service for the programs, and its endpoints.
pub(crate) struct Wanted {
    address: Address,
    endpoints: Vec<Target>,
}

/// The kernel's state of one port of a Service.
struct Served {
    address: Address,
    /// The generation of the endpoints. Endpoints are never changed in place: a new generation is written completely,
    /// then entered, then the old one is deleted.
    generation: u64,
    endpoints: Vec<Target>,
}

/// The programs of one IP family, and their maps.
pub(crate) struct Sockets {
    services: Map<20, 16>,
    endpoints: Map<16, 20>,
    served: BTreeMap<ServiceKey, Vec<Served>>,
    generation: u64,
    /// The attachments: the programs run as long as these are open.
    _links: Vec<OwnedFd>,
}

impl Sockets {
    /// Loads the programs and attaches them to the sockets of a control group.
    pub fn open(ip: IpFamily, cgroup: &Path) -> Result<Sockets, Error> {
        let (mut sockets, programs) = Sockets::load(ip).map_err(Error::Sockets)?;
        let attach = |(program, hook): (OwnedFd, u32)| bpf::attach(program.as_fd(), cgroup, hook);
        sockets._links = programs.into_iter().map(attach).collect::<io::Result<_>>().map_err(Error::Sockets)?;
        Ok(sockets)
    }

    fn load(ip: IpFamily) -> io::Result<(Sockets, Vec<(OwnedFd, u32)>)> {
        let services = Map::create(Kind::Hash, SERVICES)?;
        let endpoints = Map::create(Kind::Hash, ENDPOINTS)?;
        let requested: Map<28, 20> = Map::create(Kind::Recent, REMEMBERED_SOCKETS)?;
        let maps = Maps { services: services.as_fd(), endpoints: endpoints.as_fd(), requested: requested.as_fd() };
        // Sockets of IPv6 connect to addresses of IPv4 too, not the other way round.
        let hooks = HOOKS.into_iter().filter(|hook| hook.ipv6 || ip == IpFamily::V4);
        let loaded = hooks.map(|hook| Ok((bpf::load(&assemble(hook, &maps), hook.number)?, hook.number)));
        let loaded = loaded.collect::<io::Result<Vec<_>>>()?;
        Ok((Sockets { services, endpoints, served: BTreeMap::new(), generation: 0, _links: Vec::new() }, loaded))
    }

    /// Makes the kernel serve a Service by exactly these ports and endpoints. If that fails, by none: then the rules
    /// serve it.
    pub fn replace(&mut self, key: &ServiceKey, wanted: Vec<Wanted>) -> Result<(), Error> {
        let before = self.served.remove(key).unwrap_or_default();
        let known = before.iter().map(|served| served.address);
        let concerned: Vec<Address> = known.chain(wanted.iter().map(|port| port.address)).collect();
        self.exchange(key, before, wanted).map_err(|error| {
            for address in &concerned {
                // The refusal may be for a full map; deleting needs no space.
                let _ = self.services.delete(address);
            }
            Error::Sockets(error)
        })
    }

    fn exchange(&mut self, key: &ServiceKey, mut before: Vec<Served>, wanted: Vec<Wanted>) -> io::Result<()> {
        let mut after = Vec::with_capacity(wanted.len());
        for Wanted { address, endpoints } in wanted {
            let known = before.iter().position(|served| served.address == address);
            let known = known.map(|index| before.swap_remove(index));
            match known {
                Some(known) if known.endpoints == endpoints => after.push(known),
                known => {
                    after.push(self.enter(address, endpoints)?);
                    known.map_or(Ok(()), |known| self.forget(&known))?;
                }
            }
        }
        for deleted in before {
            self.services.delete(&deleted.address).and_then(|()| self.forget(&deleted))?;
        }
        if !after.is_empty() {
            self.served.insert(key.clone(), after);
        }
        Ok(())
    }

    fn enter(&mut self, address: Address, endpoints: Vec<Target>) -> io::Result<Served> {
        self.generation += 1;
        let generation = self.generation;
        for (index, (endpoint, port)) in endpoints.iter().enumerate() {
            self.endpoints.set(&slot(generation, index), &address_of(*endpoint, *port, 0))?;
        }
        let mut value = [0; 16];
        value[..8].copy_from_slice(&generation.to_ne_bytes());
        value[8..12].copy_from_slice(&(endpoints.len() as u32).to_ne_bytes());
        self.services.set(&address, &value)?;
        Ok(Served { address, generation, endpoints })
    }

    fn forget(&self, served: &Served) -> io::Result<()> {
        (0..served.endpoints.len()).try_for_each(|index| self.endpoints.delete(&slot(served.generation, index)))
    }
}

/// Checks that the kernel takes the programs; returns the reason if not.
pub fn supports_sockets() -> Result<(), Error> {
    Sockets::load(IpFamily::V4).map(drop).map_err(Error::Sockets)
}

/// Returns the wanted state of a port with these endpoints, if the programs serve it at all.
pub(crate) fn wanted(service: &Service, port: &ServicePort, endpoints: Vec<Target>) -> Option<Wanted> {
    let is_served = service.affinity.is_none() && port.protocol != Protocol::Sctp && !endpoints.is_empty();
    is_served.then(|| Wanted { address: address_of(service.cluster_ip, port.port, port.protocol as u8), endpoints })
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
