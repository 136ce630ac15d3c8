//! The rules of enforcement: those for every forwarded packet, and one chain for each different sum of policies.
//!
//! ```text
//! forward      answers and related packets pass, a pod reaches itself; then
//!              source → @egress → jump egress-…      may it leave?
//!              destination → @ingress → jump ingress-…   may it enter?
//! input        the egress of a pod's queries to cluster DNS on its node, or of all its packets to its node
//! ingress-7    source in @pods-3, protocol and port in @ingress-7-ports-0: return; …; drop
//! ```
//!
//! An allowed packet *returns*, so that traffic within the node passes both directions' chains. Packets of the node
//! itself are not filtered: probes always pass. Where IPVS translates Services, which forwards nothing, `forward` hooks
//! in where packets leave the node. Every packet of the direction that opened the connection is filtered anew, so a new
//! policy also cuts open connections.

use std::net::IpAddr;

use corten_nftables::{
    Batch, Bytes4, Chain, ChainType, DataType, Element, Family, Field, Hook, Port, Protocol, Rule, Set, Table, Value,
    Verdict, flags, priority,
};

use super::Config;
use super::blocks::{self, PortRange};
use super::members::{Member, Subject};
use super::objects::{Allowed, Direction, Peer, PortMatch};

const OWN: &str = "own";
const FORWARD: &str = "forward";
const INPUT: &str = "input";
pub(crate) const DNS_PORT: u16 = 53;

/// The allowed traffic of one chain's pods in one direction: the sum of their policies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub direction: Direction,
    pub allowed: Vec<Allowed>,
}

impl Group {
    /// Reports whether the sum of the policies forbids nothing.
    pub fn allows_everything(&self) -> bool {
        self.allowed.iter().any(|allowed| allowed.peers.is_none() && allowed.ports.is_none())
    }

    pub fn chain(&self, id: u32) -> String {
        format!("{}-{id}", self.direction.as_str())
    }

    /// Returns the sets of addresses that its rules read.
    pub fn subjects(&self) -> impl Iterator<Item = Subject> {
        let peers = self.allowed.iter().flat_map(|allowed| allowed.peers.iter().flatten());
        let peers = peers.filter_map(|peer| match peer {
            Peer::Pods(peer) => Some(Subject::Peer(peer.clone())),
            Peer::Block { .. } => None,
        });
        let ports = self.allowed.iter().flat_map(|allowed| allowed.ports.iter().flatten());
        let ports = ports.filter_map(|port| match port {
            PortMatch::Named(name) => Some(Subject::Port(name.clone())),
            PortMatch::Range { .. } => None,
        });
        peers.chain(ports)
    }
}

/// The rules of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Side {
    pub ipv4: bool,
}

impl Side {
    pub fn table(self, name: &str) -> Table {
        Table::new(if self.ipv4 { Family::Ipv4 } else { Family::Ipv6 }, name)
    }

    pub fn holds(self, address: IpAddr) -> bool {
        address.is_ipv4() == self.ipv4
    }

    fn address(self) -> DataType {
        if self.ipv4 { DataType::Ipv4Addr } else { DataType::Ipv6Addr }
    }

    fn source(self) -> Field {
        if self.ipv4 { Field::IpSaddr } else { Field::Ip6Saddr }
    }

    fn destination(self) -> Field {
        if self.ipv4 { Field::IpDaddr } else { Field::Ip6Daddr }
    }

    fn peer(self, direction: Direction) -> Field {
        match direction {
            Direction::Ingress => self.source(),
            Direction::Egress => self.destination(),
        }
    }

    /// Returns the set of this node's pods, which may reach themselves.
    pub fn own(self) -> Set {
        Set::new(OWN, &[self.address(), self.address()])
    }

    pub fn own_element(self, address: IpAddr) -> Element {
        Element::key((address, address))
    }

    /// Returns the verdict map from isolated pods of this node to their chains.
    pub fn verdicts(self, direction: Direction) -> Set {
        Set::vmap(direction.as_str(), &[self.address()])
    }

    /// Returns the set of a subject.
    pub fn member_set(self, subject: &Subject, id: u32) -> Set {
        match subject {
            Subject::Peer(_) => Set::new(&member_set_name(subject, id), &[self.address()]),
            Subject::Port(_) => {
                let key = [self.address(), DataType::InetProto, DataType::InetService];
                Set::new(&member_set_name(subject, id), &key)
            }
        }
    }

    /// Returns the element of a member; `None` if it is of the other family.
    pub fn member(self, subject: &Subject, (address, port): &Member) -> Option<Element> {
        let key: Value = match subject {
            Subject::Peer(_) => (*address).into(),
            Subject::Port(name) => (*address, name.protocol, Port((*port)?)).into(),
        };
        self.holds(*address).then(|| Element::key(key))
    }

    /// Makes the empty table of a fresh start.
    pub fn skeleton(self, batch: &mut Batch, config: &Config) {
        let table = self.table(&config.table);
        let ipvs = config.ipvs;
        batch.replace_table(&table);
        batch.add_set(&table, &self.own());
        for direction in Direction::ALL {
            batch.add_set(&table, &self.verdicts(direction));
        }
        // IPVS takes packets that were delivered to the node, late in the input hook, and sends them on without
        // forwarding them: the only common hook is where packets leave the node.
        let (forward, input) = match ipvs {
            false => (Hook::Forward, priority::FILTER),
            true => (Hook::Postrouting, priority::SRCNAT + 1),
        };
        batch.add_chain(&table, &Chain::base(FORWARD, ChainType::Filter, forward, priority::FILTER));
        batch.add_chain(&table, &Chain::base(INPUT, ChainType::Filter, Hook::Input, input));
        if ipvs {
            let own = Rule::new().eq(Field::FibSaddrType, Bytes4(Field::ADDRESS_LOCAL));
            batch.add_rule(&table, FORWARD, &own.accept());
        }
        let answer = || Rule::new().eq(Field::CtDirection, Field::DIRECTION_REPLY).accept();
        let leaves = |rule: Rule| rule.vmap(&[self.source()], Direction::Egress.as_str());
        let enters = Rule::new().vmap(&[self.destination()], Direction::Ingress.as_str());
        for rule in [
            answer(),
            Rule::new().has_any(Field::CtState, flags::CT_STATE_RELATED).accept(),
            Rule::new().in_set(&[self.source(), self.destination()], OWN).accept(),
            leaves(Rule::new()),
            enters,
        ] {
            batch.add_rule(&table, FORWARD, &rule);
        }
        let dns = config.dns(self);
        if dns.is_none() && !config.host_egress {
            return;
        }
        batch.add_rule(&table, INPUT, &answer());
        for rule in self.to_node(config, dns) {
            batch.add_rule(&table, INPUT, &leaves(rule));
        }
    }

    /// Returns matches of the filtered packets to the node itself. Neighbour discovery and other ICMP messages always
    /// pass.
    fn to_node(self, config: &Config, dns: Option<IpAddr>) -> Vec<Rule> {
        let of = |protocol: Protocol| Rule::new().eq(Field::L4Proto, protocol);
        if config.host_egress {
            return vec![of(Protocol::Tcp), of(Protocol::Udp), of(Protocol::Sctp)];
        }
        let asks =
            |protocol| dns.map(|dns| of(protocol).eq(self.destination(), dns).eq(Field::ThDport, Port(DNS_PORT)));
        [Protocol::Udp, Protocol::Tcp].into_iter().filter_map(asks).collect()
    }

    /// Compiles the chain of a group, and the sets that belong to it alone.
    pub fn compile(self, group: &Group, id: u32, number: &dyn Fn(&Subject) -> Option<u32>) -> Compiled {
        let mut compiled = Compiled { sets: Vec::new(), rules: Vec::new() };
        let chain = group.chain(id);
        for (index, allowed) in group.allowed.iter().enumerate() {
            let peers =
                self.peer_matches(allowed, group.direction, &format!("{chain}-blocks-{index}"), number, &mut compiled);
            let ports = self.port_matches(allowed, &format!("{chain}-ports-{index}"), number, &mut compiled);
            for peer in &peers {
                for port in &ports {
                    let rule = [peer, port].into_iter().flatten();
                    let rule = rule.fold(Rule::new(), |rule, (fields, set)| rule.in_set(fields, set));
                    compiled.rules.push(rule.verdict(Verdict::Return));
                }
            }
        }
        compiled.rules.push(Rule::new().drop());
        compiled
    }

    fn peer_matches(
        self,
        allowed: &Allowed,
        direction: Direction,
        blocks_set: &str,
        number: &dyn Fn(&Subject) -> Option<u32>,
        compiled: &mut Compiled,
    ) -> Vec<Match> {
        let Some(peers) = &allowed.peers else { return vec![None] };
        let field = vec![self.peer(direction)];
        let mut matches = Vec::new();
        for peer in peers {
            let Peer::Pods(peer) = peer else { continue };
            let subject = Subject::Peer(peer.clone());
            matches.extend(number(&subject).map(|id| Some((field.clone(), member_set_name(&subject, id)))));
        }
        let blocks = peers.iter().filter_map(|peer| match peer {
            Peer::Block { cidr, except } => Some((cidr, except)),
            Peer::Pods(_) => None,
        });
        let ranges = blocks::ranges(blocks, self.ipv4);
        if !ranges.is_empty() {
            let elements = ranges.into_iter().map(|(first, last)| Element::range(first, last)).collect();
            compiled.sets.push((Set::new(blocks_set, &[self.address()]).intervals(), elements));
            matches.push(Some((field, blocks_set.to_owned())));
        }
        matches
    }

    fn port_matches(
        self,
        allowed: &Allowed,
        ports_set: &str,
        number: &dyn Fn(&Subject) -> Option<u32>,
        compiled: &mut Compiled,
    ) -> Vec<Match> {
        let Some(ports) = &allowed.ports else { return vec![None] };
        let mut matches = Vec::new();
        for port in ports {
            let PortMatch::Named(name) = port else { continue };
            let subject = Subject::Port(name.clone());
            let fields = vec![self.destination(), Field::L4Proto, Field::ThDport];
            matches.extend(number(&subject).map(|id| Some((fields, member_set_name(&subject, id)))));
        }
        let ranges = ports.iter().filter_map(|port| match port {
            PortMatch::Range { protocol, first, last } => {
                Some(PortRange { protocol: *protocol, first: *first, last: *last })
            }
            PortMatch::Named(_) => None,
        });
        let ranges = blocks::ports(ranges);
        if !ranges.is_empty() {
            let element =
                |PortRange { protocol, first, last }| Element::range((protocol, Port(first)), (protocol, Port(last)));
            let set = Set::new(ports_set, &[DataType::InetProto, DataType::InetService]).intervals();
            compiled.sets.push((set, ranges.into_iter().map(element).collect()));
            matches.push(Some((vec![Field::L4Proto, Field::ThDport], ports_set.to_owned())));
        }
        matches
    }
}

/// Fields that must be in a set; `None` matches everything.
type Match = Option<(Vec<Field>, String)>;

/// A chain in the kernel's terms.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub sets: Vec<(Set, Vec<Element>)>,
    pub rules: Vec<Rule>,
}

fn member_set_name(subject: &Subject, id: u32) -> String {
    match subject {
        Subject::Peer(_) => format!("pods-{id}"),
        Subject::Port(_) => format!("ports-{id}"),
    }
}
