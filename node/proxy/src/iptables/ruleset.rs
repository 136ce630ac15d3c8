//! The rules in the format of `iptables-restore`.
//!
//! ```text
//! CORTEN-SERVICES   address, port → CORTEN-SVC-… (cluster) or CORTEN-EXT-… (from anywhere); to this node → node ports
//! CORTEN-EXT-…      masquerading, and the choice of endpoints → CORTEN-SVC-… or CORTEN-SVL-… (of this node)
//! CORTEN-SVC-…      one of the endpoints, at random or by affinity → CORTEN-SEP-…
//! CORTEN-SEP-…      translation to the endpoint
//! CORTEN-REFUSED    (filter) Services without endpoints, and refused sources
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use corten_nftables::{IpFamily, Protocol};

use crate::rulebook::Rulebook;
use crate::rules::{Served, Target};
use crate::service::{Service, ServiceKey, ServicePort};

pub(crate) const SERVICES: &str = "CORTEN-SERVICES";
const NODE_PORTS: &str = "CORTEN-NODEPORTS";
pub(crate) const POSTROUTING: &str = "CORTEN-POSTROUTING";
const MARK: &str = "CORTEN-MARK-MASQ";
pub(crate) const REFUSED: &str = "CORTEN-REFUSED";
const NAT: [&str; 4] = [SERVICES, NODE_PORTS, POSTROUTING, MARK];

/// Reports whether a chain belongs to one Service or endpoint.
pub(super) fn is_of_service(chain: &str) -> bool {
    ["CORTEN-SVC-", "CORTEN-SVL-", "CORTEN-EXT-", "CORTEN-SEP-"].iter().any(|prefix| chain.starts_with(prefix))
}

/// A port of a Service, and its endpoints.
pub(crate) struct Portal<'a> {
    pub key: &'a ServiceKey,
    pub service: &'a Service,
    pub port: &'a ServicePort,
    pub served: Served,
}

/// Rules of both tables, and the chains of Services among them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub chains: BTreeSet<String>,
    nat: String,
    node_ports: String,
    refused: String,
}

impl Ruleset {
    /// Returns the input of `iptables-restore`: every chain emptied and filled, those of deleted Services deleted.
    pub fn restore(&self, deleted: &[&String]) -> String {
        let mut out = String::from("*filter\n");
        let _ = writeln!(out, ":{REFUSED} - [0:0]\n{}COMMIT\n*nat", self.refused);
        let kept = self.chains.iter().map(String::as_str);
        for chain in NAT.into_iter().chain(kept).chain(deleted.iter().map(|chain| chain.as_str())) {
            let _ = writeln!(out, ":{chain} - [0:0]");
        }
        out.push_str(&self.nat);
        out.push_str(&self.node_ports);
        for chain in deleted {
            let _ = writeln!(out, "-X {chain}");
        }
        out.push_str("COMMIT\n");
        out
    }
}

/// Returns the input that deletes all our chains, once nothing leads to them.
pub(super) fn removal(chains: &BTreeSet<String>) -> String {
    let mut out = format!("*filter\n:{REFUSED} - [0:0]\n-X {REFUSED}\nCOMMIT\n*nat\n");
    let all: Vec<&str> = NAT.into_iter().chain(chains.iter().map(String::as_str)).collect();
    for chain in &all {
        let _ = writeln!(out, ":{chain} - [0:0]");
    }
    for chain in &all {
        let _ = writeln!(out, "-X {chain}");
    }
    out.push_str("COMMIT\n");
    out
}

/// Renders the rules of all portals.
pub(crate) fn render<'a>(book: &Rulebook, portals: impl Iterator<Item = Portal<'a>>) -> Ruleset {
    let mut ruleset = Ruleset::default();
    for portal in portals {
        Writer { book, ruleset: &mut ruleset, portal: &portal }.write();
    }
    let mark = format!("{0:#x}/{0:#x}", book.config.masquerade_mark);
    let loopback = book.ip.loopback();
    let localhost = match book.ip == IpFamily::V4 && book.config.localhost_node_ports {
        true => String::new(),
        false => format!(" ! -d {}/{}", loopback.0, loopback.1),
    };
    let _ = writeln!(ruleset.nat, "-A {MARK} -j MARK --or-mark {:#x}", book.config.masquerade_mark);
    let _ = writeln!(ruleset.nat, "-A {POSTROUTING} -m mark ! --mark {mark} -j RETURN");
    let _ = writeln!(ruleset.nat, "-A {POSTROUTING} -j MARK --xor-mark {:#x}", book.config.masquerade_mark);
    let _ = writeln!(ruleset.nat, "-A {POSTROUTING} -j MASQUERADE --random-fully");
    let _ = writeln!(ruleset.nat, "-A {SERVICES}{localhost} -m addrtype --dst-type LOCAL -j {NODE_PORTS}");
    ruleset
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
        _ => "tcp",
    }
}

/// Returns sixteen characters that identify a longer string; the names of chains are short.
fn hash(name: &str) -> String {
    const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const FNV_PRIME: u64 = 0x100_0000_01b3;
    let hash = name.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    format!("{hash:016X}")
}

struct Writer<'a, 'b> {
    book: &'a Rulebook,
    ruleset: &'a mut Ruleset,
    portal: &'a Portal<'b>,
}

impl Writer<'_, '_> {
    fn write(&mut self) {
        let Portal { service, port, served, .. } = self.portal;
        let cluster = self.chain("SVC");
        let internal = if service.internal_local { &served.local } else { &served.cluster };
        let own = if service.internal_local { self.chain("SVL") } else { cluster.clone() };
        self.endpoints(&cluster, &served.cluster);
        if service.external_local || service.internal_local {
            let local = self.chain("SVL");
            self.endpoints(&local, &served.local);
        }
        let at = self.at(service.cluster_ip, port.port);
        match internal.is_empty() {
            false => {
                self.masquerade_foreign(&at);
                self.nat(&format!("-A {SERVICES} {at} -j {own}"));
            }
            true => self.refuse(&at),
        }
        self.external();
    }

    /// Writes the rules for traffic from anywhere: external addresses, load balancers, node ports.
    fn external(&mut self) {
        let Portal { service, port, served, .. } = self.portal;
        let addresses: BTreeSet<IpAddr> = service.external_ips.union(&service.load_balancer_ips).copied().collect();
        if addresses.is_empty() && port.node_port.is_none() {
            return;
        }
        let serving = !served.cluster.is_empty() || (service.external_local && !served.local.is_empty());
        let external = self.chain("EXT");
        if serving {
            self.external_chain(&external);
        }
        for address in addresses {
            let at = self.at(address, port.port);
            let restricted = service.load_balancer_ips.contains(&address) && !service.source_ranges.is_empty();
            match (serving, restricted) {
                (true, true) => {
                    for (network, length) in &service.source_ranges {
                        self.nat(&format!("-A {SERVICES} -s {network}/{length} {at} -j {external}"));
                    }
                    // A packet that no range allowed is not translated, and is dropped here.
                    self.refused(&format!("{at} -j DROP"));
                }
                (true, false) => self.nat(&format!("-A {SERVICES} {at} -j {external}")),
                (false, _) => self.refuse(&at),
            }
            if serving && service.external_local && served.local.is_empty() {
                self.refused(&format!("{at} -j DROP"));
            }
        }
        if let Some(node_port) = port.node_port {
            let at = format!("-p {} --dport {node_port}", protocol(port.protocol));
            let local = format!("-m addrtype --dst-type LOCAL {at}");
            match serving {
                true => {
                    let _ = writeln!(self.ruleset.node_ports, "-A {NODE_PORTS} {at} -j {external}");
                    if service.external_local && served.local.is_empty() {
                        self.refused(&format!("{local} -j DROP"));
                    }
                }
                false => self.refuse(&local),
            }
        }
    }

    fn external_chain(&mut self, external: &str) {
        let all = self.chain("SVC");
        let local = self.chain("SVL");
        if !self.portal.service.external_local {
            self.nat(&format!("-A {external} -j {MARK}"));
            return self.nat(&format!("-A {external} -j {all}"));
        }
        if !self.portal.served.cluster.is_empty() {
            if let Some((network, length)) = self.book.cluster_cidr() {
                self.nat(&format!("-A {external} -s {network}/{length} -j {all}"));
            }
            self.nat(&format!("-A {external} -m addrtype --src-type LOCAL -j {MARK}"));
            self.nat(&format!("-A {external} -m addrtype --src-type LOCAL -j {all}"));
        }
        self.nat(&format!("-A {external} -j {local}"));
    }

    fn masquerade_foreign(&mut self, at: &str) {
        match self.book.cluster_cidr() {
            _ if self.book.config.masquerade_all => self.nat(&format!("-A {SERVICES} {at} -j {MARK}")),
            Some((network, length)) => self.nat(&format!("-A {SERVICES} ! -s {network}/{length} {at} -j {MARK}")),
            None => {}
        }
    }

    /// Writes a chain that leads to one of the endpoints, and the endpoints' own chains.
    fn endpoints(&mut self, chain: &str, endpoints: &[Target]) {
        let affinity = self.portal.service.affinity;
        let names: Vec<String> = endpoints.iter().map(|endpoint| self.endpoint_chain(*endpoint)).collect();
        if let Some(seconds) = affinity {
            for name in &names {
                self.nat(&format!("-A {chain} -m recent --name {name} --rcheck --seconds {seconds} --reap -j {name}"));
            }
        }
        for (index, name) in names.iter().enumerate() {
            let left = names.len() - index;
            let chance = match left {
                1 => String::new(),
                left => format!(" -m statistic --mode random --probability {:.10}", 1.0 / left as f64),
            };
            self.nat(&format!("-A {chain}{chance} -j {name}"));
        }
    }

    fn endpoint_chain(&mut self, (address, port): Target) -> String {
        let Portal { key, port: served, .. } = self.portal;
        let named = format!("{}/{}:{} {address}:{port}", key.namespace, key.name, served.name);
        let name = format!("CORTEN-SEP-{}", hash(&format!("{named} {}", protocol(served.protocol))));
        if self.ruleset.chains.insert(name.clone()) {
            let to = if address.is_ipv4() { format!("{address}:{port}") } else { format!("[{address}]:{port}") };
            let recent = match self.portal.service.affinity {
                Some(_) => format!(" -m recent --name {name} --set"),
                None => String::new(),
            };
            // A pod that is sent to itself must see the node as its client.
            self.nat(&format!("-A {name} -s {address} -j {MARK}"));
            let protocol = protocol(served.protocol);
            self.nat(&format!("-A {name} -p {protocol}{recent} -j DNAT --to-destination {to}"));
        }
        name
    }

    fn chain(&mut self, kind: &str) -> String {
        let Portal { key, port, .. } = self.portal;
        let named = format!("{}/{}:{} {}", key.namespace, key.name, port.name, protocol(port.protocol));
        let name = format!("CORTEN-{kind}-{}", hash(&named));
        self.ruleset.chains.insert(name.clone());
        name
    }

    fn at(&self, address: IpAddr, port: u16) -> String {
        let length = IpFamily::of(address).bits();
        format!("-d {address}/{length} -p {} --dport {port}", protocol(self.portal.port.protocol))
    }

    /// Refuses: drops where another node could serve, rejects where no node can.
    fn refuse(&mut self, at: &str) {
        let tcp = if self.portal.port.protocol == Protocol::Tcp { " --reject-with tcp-reset" } else { "" };
        let how = if self.portal.served.any { "DROP".to_owned() } else { format!("REJECT{tcp}") };
        self.refused(&format!("{at} -j {how}"));
    }

    fn refused(&mut self, rule: &str) {
        let _ = writeln!(self.ruleset.refused, "-A {REFUSED} {rule}");
    }

    fn nat(&mut self, rule: &str) {
        self.ruleset.nat.push_str(rule);
        self.ruleset.nat.push('\n');
    }
}
