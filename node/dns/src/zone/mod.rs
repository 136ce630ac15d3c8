//! The names of the cluster: the data, and their pure lookup.
//!
//! ```text
//! <service>.<namespace>.svc.<domain>                     A, AAAA, SRV; CNAME if external
//! _<port>._<protocol>.<service>.<namespace>.svc.<domain> SRV
//! <host or dashed address>.<service>.<namespace>.svc.<domain>   A, AAAA
//! <dashed address>.<namespace>.pod.<domain>              A, AAAA
//! <reverse address>.in-addr.arpa, ip6.arpa               PTR
//! dns-version.<domain>                                   TXT
//! ```
//!
//! Invariant: a name that exists but has no record of the queried type is "no data", never "no such name": resolvers
//! that query AAAA first would give up on the whole name.

mod lookup;
mod records;
#[cfg(test)]
mod tests;

pub use records::{Endpoint, Endpoints, Port, Service};

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use hickory_proto::rr::rdata::SOA;
use hickory_proto::rr::{Name, RData, Record};

use crate::error::Error;

/// The names of the cluster domain.
#[derive(Clone, Debug)]
pub struct Zone {
    domain: Name,
    ttl: u32,
    /// The number of changes.
    serial: u32,
    /// Whether the first lists of the watches are complete.
    synced: bool,
    namespaces: HashMap<String, Namespace>,
    /// Names by address, for reverse lookups.
    reverse: HashMap<IpAddr, BTreeSet<String>>,
    reverse_ranges: Vec<(IpAddr, u8)>,
}

#[derive(Clone, Debug, Default)]
struct Namespace {
    exists: bool,
    services: HashMap<String, Service>,
    /// Slices of a Service, by their names.
    endpoints: HashMap<String, BTreeMap<String, Endpoints>>,
    /// The Service of each slice.
    slices: HashMap<String, String>,
}

/// The cluster's answer to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Records {
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    /// The name is an alias of another one, which may be of any domain.
    Alias(Name),
    NoData,
    NoSuchName,
    /// Not of the cluster: query the resolvers.
    Foreign,
    /// The first lists of the watches are not complete yet.
    NotReady,
}

impl Zone {
    /// Makes an empty zone, not synced.
    pub fn new(domain: &str, ttl: u32, reverse_ranges: Vec<(IpAddr, u8)>) -> Result<Zone, Error> {
        let mut name = Name::from_ascii(domain).map_err(|_| Error::InvalidDomain(domain.to_owned()))?.to_lowercase();
        name.set_fqdn(true);
        Ok(Zone {
            domain: name,
            ttl,
            serial: 1,
            synced: false,
            namespaces: HashMap::new(),
            reverse: HashMap::new(),
            reverse_ranges,
        })
    }

    /// Marks the zone as synced: from now on missing names do not exist.
    pub fn set_synced(&mut self) {
        self.synced = true;
    }

    /// Updates a Namespace.
    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        self.change(name, |namespace| namespace.exists = exists);
    }

    /// Updates a Service.
    pub fn set_service(&mut self, namespace: &str, name: &str, service: Option<Service>) {
        let target = format!("{name}.{namespace}.svc");
        let before = self.namespaces.get(namespace).and_then(|known| known.services.get(name)).cloned();
        self.unlink(virtual_addresses(before.as_ref()), &target);
        self.link(virtual_addresses(service.as_ref()), &target);
        self.change(namespace, |namespace| match service {
            Some(service) => drop(namespace.services.insert(name.to_owned(), service)),
            None => drop(namespace.services.remove(name)),
        });
    }

    /// Updates an EndpointSlice.
    pub fn set_endpoints(&mut self, namespace: &str, slice: &str, endpoints: Option<Endpoints>) {
        let known = self.namespaces.get(namespace);
        let owner = known.and_then(|known| known.slices.get(slice)).cloned();
        let before = owner.as_ref().and_then(|owner| known?.endpoints.get(owner)?.get(slice)).cloned();
        for (address, target) in host_names(namespace, before.as_ref()) {
            self.unlink([address].into_iter(), &target);
        }
        for (address, target) in host_names(namespace, endpoints.as_ref()) {
            self.link([address].into_iter(), &target);
        }
        self.change(namespace, |namespace| {
            namespace.slices.remove(slice);
            if let Some(slices) = owner.as_ref().and_then(|owner| namespace.endpoints.get_mut(owner)) {
                slices.remove(slice);
            }
            if let Some(endpoints) = endpoints {
                namespace.slices.insert(slice.to_owned(), endpoints.service.clone());
                let slices = namespace.endpoints.entry(endpoints.service.clone()).or_default();
                slices.insert(slice.to_owned(), endpoints);
            }
            namespace.endpoints.retain(|_, slices| !slices.is_empty());
        });
    }

    fn change(&mut self, namespace: &str, change: impl FnOnce(&mut Namespace)) {
        self.serial = self.serial.wrapping_add(1);
        let entry = self.namespaces.entry(namespace.to_owned()).or_default();
        change(entry);
        let empty = !entry.exists && entry.services.is_empty() && entry.endpoints.is_empty();
        if empty {
            self.namespaces.remove(namespace);
        }
    }

    fn link(&mut self, addresses: impl Iterator<Item = IpAddr>, target: &str) {
        for address in addresses {
            self.reverse.entry(address).or_default().insert(target.to_owned());
        }
    }

    fn unlink(&mut self, addresses: impl Iterator<Item = IpAddr>, target: &str) {
        for address in addresses {
            if let Some(targets) = self.reverse.get_mut(&address) {
                targets.remove(target);
                if targets.is_empty() {
                    self.reverse.remove(&address);
                }
            }
        }
    }

    /// Returns the record of a negative answer: it holds the answer's lifetime.
    pub(crate) fn soa(&self) -> Record {
        let below = |label: &str| self.name(label).unwrap_or_else(|| self.domain.clone());
        let server = below("ns.dns");
        let mailbox = below("hostmaster");
        let soa = SOA::new(server, mailbox, self.serial, 7200, 1800, 86400, self.ttl);
        Record::from_rdata(self.domain.clone(), self.ttl, RData::SOA(soa))
    }

    /// Returns a name below the domain; `None` if it is too long to be one.
    fn name(&self, relative: &str) -> Option<Name> {
        let labels = relative.split('.').map(str::as_bytes);
        let mut name = Name::from_labels(labels).ok()?;
        name.set_fqdn(false);
        name.append_domain(&self.domain).ok()
    }
}

fn virtual_addresses(service: Option<&Service>) -> impl Iterator<Item = IpAddr> + use<> {
    let addresses = match service {
        Some(Service::Virtual { addresses, .. }) => addresses.clone(),
        _ => Vec::new(),
    };
    addresses.into_iter()
}

/// Returns the host names of endpoints, which have reverse names of their own.
fn host_names(namespace: &str, endpoints: Option<&Endpoints>) -> Vec<(IpAddr, String)> {
    let Some(Endpoints { service, endpoints, .. }) = endpoints else { return Vec::new() };
    let named = endpoints.iter().filter_map(|endpoint| Some((endpoint.address, endpoint.hostname.as_ref()?)));
    named.map(|(address, hostname)| (address, format!("{hostname}.{service}.{namespace}.svc"))).collect()
}
