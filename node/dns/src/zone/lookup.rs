//! The lookup of a name in the zone: one function per kind of name.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::rdata::{NS, PTR, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::{Answer, Endpoint, Endpoints, Namespace, Port, Service, Zone};

/// The version of the DNS specification that we answer by.
const SCHEMA_VERSION: &str = "1.1.0";

impl Zone {
    /// Returns the cluster's answer to a name. Case does not matter; answers have the name as queried.
    pub(crate) fn lookup(&self, name: &Name, record_type: RecordType) -> Answer {
        if !self.domain.zone_of(name) {
            return self.lookup_reverse(name, record_type);
        }
        if !self.synced {
            return Answer::NotReady;
        }
        let below = name.num_labels() - self.domain.num_labels();
        let labels: Option<Vec<String>> = name
            .iter()
            .take(usize::from(below))
            .map(|label| Some(std::str::from_utf8(label).ok()?.to_ascii_lowercase()))
            .collect();
        let Some(labels) = labels else { return Answer::NoSuchName };
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let query = Query { zone: self, name, record_type };
        match labels.as_slice() {
            [] => query.apex(),
            ["dns-version"] => query.version(),
            ["svc" | "pod" | "dns"] => Answer::NoData,
            ["ns", "dns"] => Answer::NoData,
            [namespace, "svc" | "pod"] => query.namespace(namespace),
            [address, namespace, "pod"] => query.pod(address, namespace),
            [host @ .., service, namespace, "svc"] => query.service(host, service, namespace),
            _ => Answer::NoSuchName,
        }
    }

    fn lookup_reverse(&self, name: &Name, record_type: RecordType) -> Answer {
        let Ok(network) = name.parse_arpa_name() else { return Answer::Foreign };
        let address = network.addr();
        let is_complete = network.prefix_len() == network.max_prefix_len();
        if let Some(targets) = self.reverse.get(&address).filter(|_| is_complete) {
            let query = Query { zone: self, name, record_type };
            let pointers = targets.iter().filter_map(|target| self.name(target));
            return query.records(RecordType::PTR, pointers.map(|target| RData::PTR(PTR(target))));
        }
        let ours =
            |(range, length): &(IpAddr, u8)| network.prefix_len() >= *length && in_range(address, *range, *length);
        match self.reverse_ranges.iter().any(ours) {
            true if !self.synced => Answer::NotReady,
            true if is_complete => Answer::NoSuchName,
            true => Answer::NoData,
            false => Answer::Foreign,
        }
    }
}

fn in_range(address: IpAddr, range: IpAddr, length: u8) -> bool {
    let shifted = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_bits().checked_shr(32 - u32::from(length)).map(u128::from),
        IpAddr::V6(address) => address.to_bits().checked_shr(128 - u32::from(length)),
    };
    address.is_ipv4() == range.is_ipv4() && shifted(address) == shifted(range)
}

struct Query<'a> {
    zone: &'a Zone,
    name: &'a Name,
    record_type: RecordType,
}

impl Query<'_> {
    fn record(&self, data: RData) -> Record {
        Record::from_rdata(self.name.clone(), self.zone.ttl, data)
    }

    /// Returns records of one type, if that is the queried one.
    fn records(&self, record_type: RecordType, data: impl Iterator<Item = RData>) -> Answer {
        let answers: Vec<Record> = match self.record_type == record_type {
            true => data.map(|data| self.record(data)).collect(),
            false => Vec::new(),
        };
        self.found(answers, Vec::new())
    }

    fn found(&self, answers: Vec<Record>, additionals: Vec<Record>) -> Answer {
        if answers.is_empty() { Answer::NoData } else { Answer::Records { answers, additionals } }
    }

    fn addresses(&self, addresses: impl Iterator<Item = IpAddr>) -> Answer {
        let data = addresses.map(RData::from).filter(|data| data.record_type() == self.record_type);
        self.found(data.map(|data| self.record(data)).collect(), Vec::new())
    }

    fn apex(&self) -> Answer {
        match self.record_type {
            RecordType::SOA => self.found(vec![self.zone.soa()], Vec::new()),
            _ => self.records(RecordType::NS, self.zone.name("ns.dns").map(|name| RData::NS(NS(name))).into_iter()),
        }
    }

    fn version(&self) -> Answer {
        let version = RData::TXT(TXT::new(vec![SCHEMA_VERSION.to_owned()]));
        self.records(RecordType::TXT, std::iter::once(version))
    }

    fn namespace(&self, name: &str) -> Answer {
        if self.existing(name).is_some() { Answer::NoData } else { Answer::NoSuchName }
    }

    fn existing(&self, name: &str) -> Option<&Namespace> {
        self.zone.namespaces.get(name).filter(|namespace| namespace.exists)
    }

    /// Returns the address that the name itself contains, whether or not a pod has it.
    fn pod(&self, address: &str, namespace: &str) -> Answer {
        let parsed = dashed_address(address);
        match (self.existing(namespace), parsed) {
            (Some(_), Some(address)) => self.addresses(std::iter::once(address)),
            _ => Answer::NoSuchName,
        }
    }

    fn service(&self, host: &[&str], name: &str, namespace: &str) -> Answer {
        let Some(namespace_entry) = self.zone.namespaces.get(namespace) else { return Answer::NoSuchName };
        let Some(service) = namespace_entry.services.get(name) else { return Answer::NoSuchName };
        let slices: Vec<&Endpoints> =
            namespace_entry.endpoints.get(name).into_iter().flat_map(|slices| slices.values()).collect();
        let at = FoundService { base: format!("{name}.{namespace}.svc"), service, slices };
        match host {
            [] => self.service_itself(&at),
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => {
                self.named_port(&at, &port[1..], &protocol[1..])
            }
            [protocol] if protocol.starts_with('_') => match at.has_port(|port| port.protocol == protocol[1..]) {
                true => Answer::NoData,
                false => Answer::NoSuchName,
            },
            [label] => self.endpoint(&at, label),
            _ => Answer::NoSuchName,
        }
    }

    fn service_itself(&self, at: &FoundService<'_>) -> Answer {
        match at.service {
            Service::External(target) => match absolute(target) {
                Some(target) => Answer::Alias(target),
                None => Answer::NoData,
            },
            Service::Headless if at.endpoints().next().is_none() => Answer::NoSuchName,
            _ if self.record_type == RecordType::SRV => self.services(at, |_| true),
            Service::Virtual { addresses, .. } => self.addresses(addresses.iter().copied()),
            Service::Headless => {
                let distinct: BTreeSet<IpAddr> = at.endpoints().map(|(endpoint, _)| endpoint.address).collect();
                self.addresses(distinct.into_iter())
            }
        }
    }

    fn endpoint(&self, at: &FoundService<'_>, label: &str) -> Answer {
        let named: BTreeSet<IpAddr> = at
            .endpoints()
            .filter(|(endpoint, _)| endpoint.label() == label)
            .map(|(endpoint, _)| endpoint.address)
            .collect();
        if named.is_empty() { Answer::NoSuchName } else { self.addresses(named.into_iter()) }
    }

    fn named_port(&self, at: &FoundService<'_>, name: &str, protocol: &str) -> Answer {
        let matches = |port: &Port| port.name == name && port.protocol == protocol;
        if !at.has_port(matches) {
            return Answer::NoSuchName;
        }
        match self.record_type {
            RecordType::SRV => self.services(at, matches),
            _ => Answer::NoData,
        }
    }

    /// Returns SRV records of the ports that match, with the addresses of their targets as additional records.
    fn services(&self, at: &FoundService<'_>, matches: impl Fn(&Port) -> bool) -> Answer {
        let mut targets: Vec<(String, u16, Vec<IpAddr>)> = match at.service {
            Service::Virtual { addresses, ports } => {
                let ports = ports.iter().filter(|port| matches(port));
                ports.map(|port| (at.base.clone(), port.number, addresses.clone())).collect()
            }
            _ => at
                .endpoints()
                .flat_map(|(endpoint, ports)| ports.iter().map(move |port| (endpoint, port)))
                .filter(|(_, port)| matches(port))
                .map(|(endpoint, port)| {
                    (format!("{}.{}", endpoint.label(), at.base), port.number, vec![endpoint.address])
                })
                .collect(),
        };
        targets.sort_unstable();
        targets.dedup();
        let weight = (100 / targets.len().max(1)).max(1) as u16;
        let mut answers = Vec::new();
        let mut additionals = Vec::new();
        for (target, port, addresses) in targets {
            let Some(target) = self.zone.name(&target) else { continue };
            let glue = addresses
                .into_iter()
                .map(|address| Record::from_rdata(target.clone(), self.zone.ttl, RData::from(address)));
            for record in glue {
                if !additionals.contains(&record) {
                    additionals.push(record);
                }
            }
            answers.push(self.record(RData::SRV(SRV::new(0, weight, port, target))));
        }
        self.found(answers, additionals)
    }
}

/// A Service with its slices.
struct FoundService<'a> {
    /// Its name below the domain.
    base: String,
    service: &'a Service,
    slices: Vec<&'a Endpoints>,
}

impl<'a> FoundService<'a> {
    fn endpoints(&self) -> impl Iterator<Item = (&'a Endpoint, &'a [Port])> {
        self.slices.iter().flat_map(|slice| slice.endpoints.iter().map(|endpoint| (endpoint, slice.ports.as_slice())))
    }

    fn has_port(&self, matches: impl Fn(&Port) -> bool) -> bool {
        match self.service {
            Service::Virtual { ports, .. } => ports.iter().any(matches),
            Service::Headless => self
                .slices
                .iter()
                .filter(|slice| !slice.endpoints.is_empty())
                .any(|slice| slice.ports.iter().any(&matches)),
            Service::External(_) => false,
        }
    }
}

fn absolute(target: &str) -> Option<Name> {
    let mut name = Name::from_ascii(target).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// Parses `10-244-0-5` or `fd00--5`.
fn dashed_address(label: &str) -> Option<IpAddr> {
    let four = label.replace('-', ".").parse::<Ipv4Addr>().map(IpAddr::from);
    four.or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::from)).ok()
}
