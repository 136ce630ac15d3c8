//! The rules: those for every packet, and the chains that Services of one shape share.
//!
//! ```text
//! filter-prerouting, filter-output   unavailable Services, source ranges   (before translation)
//! nat-prerouting, nat-output         → services → @services, @node-ports → @shapes
//! cluster-…, external-…, external-local-…   masquerading, and the choice of endpoints
//! pick-…                             one endpoint of @endpoints, at random or by affinity
//! nat-postrouting                    masquerade marked packets, and those that return to their sender
//! ```

use std::time::Duration;

use corten_nftables::{
    Batch, Bytes4, Chain, ChainType, Element, Field, Hook, Index, IpFamily, Protocol, Register, Reject, Rule, Verdict,
    flags, priority,
};

use crate::Mode;
use crate::rulebook::Rulebook;
use crate::sets::{self, AFFINITY, Name, REFUSALS, SHAPES};

/// The priority before `dstnat`, so that addresses are still those of Services.
const BEFORE_TRANSLATION: i32 = priority::DSTNAT - 10;
/// The index of the first local endpoint in @endpoints, after those of the whole cluster.
pub(crate) const FIRST_LOCAL: u32 = 1 << 16;
const REJECT: &str = "reject";
const DROP_OUTSIDE: &str = "drop-outside";

/// The treatment of traffic that no endpoint on this node may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub(crate) enum Refusal {
    /// No endpoint anywhere: reject.
    Reject = 1,
    /// Another node could serve it: drop, so that the client tries that node.
    Drop = 2,
    /// As drop, but pods and this node itself are served.
    DropOutside = 3,
}

impl Refusal {
    const ALL: [Refusal; 3] = [Refusal::Reject, Refusal::Drop, Refusal::DropOutside];

    fn verdict(self) -> Verdict {
        match self {
            Refusal::Reject => Verdict::Goto(REJECT.to_owned()),
            Refusal::Drop => Verdict::Drop,
            Refusal::DropOutside => Verdict::Goto(DROP_OUTSIDE.to_owned()),
        }
    }
}

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Entry {
    Address,
    NodePort,
}

/// A choice among endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pick {
    pub entry: Entry,
    pub local: bool,
    pub count: u32,
    /// The seconds that a client stays with its endpoint.
    pub affinity: Option<u32>,
}

/// A chain that Services share; its name follows from its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Shape {
    /// One endpoint.
    Pick(Pick),
    /// Traffic to a cluster address.
    Cluster(Pick),
    /// Traffic from anywhere to any endpoint.
    External(Pick),
    /// Traffic from anywhere to endpoints of this node; from pods and the node itself to all.
    ExternalLocal { all: Option<Pick>, local: Option<Pick> },
}

impl Pick {
    fn name(&self) -> String {
        let entry = match self.entry {
            Entry::Address => "",
            Entry::NodePort => "-node-port",
        };
        let local = if self.local { "-local" } else { "" };
        let affinity = self.affinity.map(|seconds| format!("-affinity-{seconds}")).unwrap_or_default();
        format!("pick{entry}{local}-{}{affinity}", self.count)
    }

    /// Returns `address . protocol . port`, as the elements of this entry have it.
    fn key(&self, ip: IpFamily) -> [Field; 3] {
        let address = match self.entry {
            Entry::Address => ip.destination(),
            Entry::NodePort => Field::Constant(ip.unspecified().into()),
        };
        [address, Field::L4Proto, Field::ThDport]
    }

    fn random(&self) -> Field {
        let first = if self.local { FIRST_LOCAL } else { 0 };
        Field::RandomFrom { modulus: self.count, first }
    }

    fn rules(&self, ip: IpFamily) -> Vec<Rule> {
        let [address, protocol, port] = self.key(ip);
        let spread = Rule::new().dnat_map(
            ip.family(),
            &[address.clone(), protocol.clone(), port.clone(), self.random()],
            Name::Endpoints.as_str(),
        );
        let Some(seconds) = self.affinity else { return vec![spread] };
        // Registers: an unused one, endpoint, its port, address, protocol, port, client. Those of IPv6 fill all
        // sixteen. The value that is loaded at the endpoint's registers is for `nft` alone (see `sets`).
        let width = ip.registers();
        let filler = Register(0);
        let endpoint = Register(1);
        let endpoint_port = Register(1 + width);
        let service = Register(2 + width);
        let client = Register(4 + 2 * width);
        let timeout = Some(Duration::from_secs(seconds.into()));
        let known = || {
            let rule = Rule::new().load_at(endpoint, &[ip.source(), Field::ThDport]);
            let rule = rule.load_at(service, &[address.clone(), protocol.clone(), port.clone(), ip.source()]);
            rule.lookup_at(AFFINITY, service, filler).load_at(filler, &[Field::Mark])
        };
        let remember = |rule: Rule| {
            let remembered = rule.update_at(AFFINITY, service, Some(filler), timeout);
            remembered.dnat_at(ip.family(), endpoint, Some(endpoint_port))
        };
        // Sixteen bytes that every packet has; their meaning in IPv4 does not matter.
        let sixteen = Field::Ip6Saddr;
        let chosen = Rule::new().load_at(filler, &[sixteen]).load_at(Register(4), &[Field::Mark, Field::Mark]);
        let chosen = chosen
            .load_at(service, &[address.clone(), protocol.clone(), port.clone(), self.random()])
            .lookup_at(Name::Endpoints.as_str(), service, endpoint);
        let serves = Name::AffinityEndpoints.as_str();
        vec![
            // A known client whose endpoint still serves.
            remember(known().contains_at(serves, endpoint)),
            // A known client whose endpoint does not serve: delete the entry, for its data cannot be overwritten.
            known().lacks_at(serves, endpoint).delete_at(AFFINITY, service, Some(filler)),
            // A new client.
            remember(chosen.load_at(client, &[ip.source()])),
            // A client beyond the size of the affinity map.
            spread,
        ]
    }
}

impl Shape {
    pub fn name(&self) -> String {
        let count = |pick: &Option<Pick>| pick.map_or("none".to_owned(), |pick| pick.name());
        match self {
            Shape::Pick(pick) => pick.name(),
            Shape::Cluster(pick) => format!("cluster-{}", pick.name()),
            Shape::External(pick) => format!("external-{}", pick.name()),
            Shape::ExternalLocal { all, local } => format!("external-local-{}-or-{}", count(local), count(all)),
        }
    }

    /// Returns the three numbers by which elements name the shape.
    pub fn numbers(&self) -> (Index, Index, Index) {
        let count = |pick: Option<Pick>| pick.map_or(0, |pick| pick.count);
        let (kind, cluster, local) = match *self {
            Shape::Pick(pick) | Shape::Cluster(pick) if pick.local => (0, 0, pick.count),
            Shape::Pick(pick) | Shape::Cluster(pick) => (0, pick.count, 0),
            Shape::External(pick) => (1, pick.count, 0),
            Shape::ExternalLocal { all, local } => (2, count(all), count(local)),
        };
        let pick = self.picks().next();
        let node_port = matches!(pick, Some(Shape::Pick(Pick { entry: Entry::NodePort, .. })));
        let affinity = match pick {
            Some(Shape::Pick(Pick { affinity, .. })) => affinity.unwrap_or(0),
            _ => 0,
        };
        (Index(kind | u32::from(node_port) << 2 | affinity << 3), Index(cluster), Index(local))
    }

    /// Returns the element of @shapes; the chains of endpoints alone have none.
    pub fn element(&self) -> Option<Element> {
        let entry = !matches!(self, Shape::Pick(_));
        entry.then(|| Element::verdict(self.numbers(), Verdict::Goto(self.name())))
    }

    /// Returns the chains this one leads to.
    pub fn picks(&self) -> impl Iterator<Item = Shape> + use<> {
        let picks = match *self {
            Shape::Pick(_) => [None, None],
            Shape::Cluster(pick) | Shape::External(pick) => [Some(pick), None],
            Shape::ExternalLocal { all, local } => [all, local],
        };
        picks.into_iter().flatten().map(Shape::Pick)
    }

    pub fn rules(&self, book: &Rulebook) -> Vec<Rule> {
        let ip = book.ip;
        let config = &book.config;
        let mark = |rule: Rule| rule.mark_or(config.masquerade_mark);
        match self {
            Shape::Pick(pick) => pick.rules(ip),
            Shape::External(pick) => vec![mark(Rule::new()), Rule::new().goto(&pick.name())],
            Shape::Cluster(pick) => {
                let ipvs = config.mode == Mode::Ipvs;
                let foreign = match book.cluster_cidr() {
                    _ if config.masquerade_all => Some(mark(Rule::new())),
                    Some((address, length)) => Some(mark(Rule::new().not_in_prefix(ip.source(), address, length))),
                    // The node itself would send from the cluster address that it holds.
                    None => ipvs.then(|| mark(Rule::new().eq(Field::FibSaddrType, Bytes4(Field::ADDRESS_LOCAL)))),
                };
                let pick = (!ipvs).then(|| Rule::new().goto(&pick.name()));
                foreign.into_iter().chain(pick).collect()
            }
            Shape::ExternalLocal { all, local } => {
                let mut rules = Vec::new();
                if let Some(all) = all {
                    let from_node = || Rule::new().eq(Field::FibSaddrType, Bytes4(Field::ADDRESS_LOCAL));
                    let to_all = |rule: Rule| rule.goto(&all.name());
                    let from_pods = book
                        .cluster_cidr()
                        .map(|(address, length)| Rule::new().in_prefix(ip.source(), address, length));
                    rules.extend(from_pods.map(to_all));
                    rules.push(to_all(mark(from_node())));
                }
                rules.extend(local.map(|local| Rule::new().goto(&local.name())));
                rules
            }
        }
    }
}

/// Makes the empty table of a fresh start: sets, base chains and their rules.
pub(crate) fn skeleton(batch: &mut Batch, book: &Rulebook) {
    let table = book.table();
    batch.replace_table(&table);
    for name in Name::ALL {
        batch.add_set(&table, &name.declaration(book.ip));
    }
    for set in [sets::shapes(), sets::refusals(), sets::affinity(book.ip)] {
        batch.add_set(&table, &set);
    }
    for chain in [
        Chain::base("filter-prerouting", ChainType::Filter, Hook::Prerouting, BEFORE_TRANSLATION),
        Chain::base("filter-output", ChainType::Filter, Hook::Output, BEFORE_TRANSLATION),
        Chain::base("nat-prerouting", ChainType::Nat, Hook::Prerouting, priority::DSTNAT),
        Chain::base("nat-output", ChainType::Nat, Hook::Output, priority::DSTNAT),
        Chain::base("nat-postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT),
    ] {
        batch.add_chain(&table, &chain);
    }
    for chain in ["filter", "services", REJECT, DROP_OUTSIDE] {
        batch.add_chain(&table, &Chain::regular(chain));
    }
    for (chain, rule) in fixed_rules(book) {
        batch.add_rule(&table, chain, &rule);
    }
    let refusals = Refusal::ALL.map(|refusal| Element::verdict(Index(refusal as u32), refusal.verdict()));
    batch.add_elements(&table, &sets::refusals(), &refusals);
}

fn fixed_rules(book: &Rulebook) -> Vec<(&'static str, Rule)> {
    let ip = book.ip;
    let config = &book.config;
    let service = [ip.destination(), Field::L4Proto, Field::ThDport];
    // The mark is no part of the key: it fills the register that `nft` takes for the numbers of a shape.
    let node_port = [Field::L4Proto, Field::ThDport, Field::Mark];
    let new = || Rule::new().has_any(Field::CtState, flags::CT_STATE_NEW);
    let to_node = |rule: Rule| {
        let rule = rule.eq(Field::FibDaddrType, Bytes4(Field::ADDRESS_LOCAL));
        // No kernel routes ::1, so localhost has node ports by IPv4 alone.
        let localhost = config.localhost_node_ports && ip == IpFamily::V4;
        let (loopback, length) = ip.loopback();
        if localhost { rule } else { rule.not_in_prefix(ip.destination(), loopback, length) }
    };
    let mut from_cluster = vec![Rule::new().eq(Field::FibSaddrType, Bytes4(Field::ADDRESS_LOCAL))];
    from_cluster
        .extend(book.cluster_cidr().map(|(address, length)| Rule::new().in_prefix(ip.source(), address, length)));
    let source = [ip.destination(), Field::L4Proto, Field::ThDport, ip.source()];

    // Connections that IPVS translates do not have this mark; but no pod sends to itself by the node without
    // translation.
    let translated = match config.mode {
        Mode::Ipvs => Rule::new(),
        _ => Rule::new().has_any(Field::CtStatus, flags::CT_STATUS_DNAT),
    };
    let unused = Register(0);
    let first = Register(1);
    let by = |rule: Rule, key: &[Field], map: Name, verdicts: &str| {
        rule.load_at(first, key).lookup_at(map.as_str(), first, unused).vmap_at(verdicts, first)
    };

    let mut rules = vec![
        ("filter-prerouting", new().jump("filter")),
        ("filter-output", new().jump("filter")),
        ("filter", by(Rule::new(), &service, Name::Unavailable, REFUSALS)),
        ("filter", by(to_node(Rule::new()), &node_port, Name::UnavailableNodePorts, REFUSALS)),
        (
            "filter",
            Rule::new().in_set(&service, Name::Restricted.as_str()).not_in_set(&source, Name::Sources.as_str()).drop(),
        ),
        ("nat-prerouting", Rule::new().jump("services")),
        ("nat-output", Rule::new().jump("services")),
        ("services", by(Rule::new(), &service, Name::Services, SHAPES)),
        ("services", by(to_node(Rule::new()), &node_port, Name::NodePorts, SHAPES)),
        (REJECT, Rule::new().eq(Field::L4Proto, Protocol::Tcp).reject(Reject::TcpReset)),
        (REJECT, Rule::new().reject(ip.port_unreachable())),
    ];
    if config.mode == Mode::Ipvs {
        // A packet to another port of the Service must not reach a process of the node.
        let served = Rule::new().load_at(first, &service).lookup_at(Name::Services.as_str(), first, unused);
        rules.push(("filter", served.verdict(Verdict::Return)));
        rules.push(("filter", Rule::new().in_set(&[ip.destination()], Name::Held.as_str()).goto(REJECT)));
    }
    rules.extend(from_cluster.into_iter().map(|rule| (DROP_OUTSIDE, rule.verdict(Verdict::Return))));
    rules.push((DROP_OUTSIDE, Rule::new().drop()));
    rules.extend([
        ("nat-postrouting", translated.in_set(&[ip.source(), ip.destination()], Name::Hairpin.as_str()).masquerade()),
        (
            "nat-postrouting",
            Rule::new().has_any(Field::Mark, config.masquerade_mark).mark_clear(config.masquerade_mark).masquerade(),
        ),
    ]);
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_nftables::Socket;

    /// The kernel takes the rules of every mode that has some, also where it lacks the mode's own feature.
    #[test]
    fn the_kernel_takes_the_rules_of_each_mode() {
        let rules = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("tests run as root");
            for (mode, ip) in
                [Mode::Nftables, Mode::Ipvs].into_iter().flat_map(|mode| IpFamily::ALL.map(|ip| (mode, ip)))
            {
                for cluster_cidrs in [vec![], vec![([10, 244, 0, 0].into(), 16), ("fd00::".parse().unwrap(), 64)]] {
                    let mut config = crate::Config::new("node", cluster_cidrs);
                    config.mode = mode;
                    let book = Rulebook { ip, config };
                    let pick = Pick { entry: Entry::Address, local: false, count: 2, affinity: Some(10) };
                    let mut batch = Batch::new();
                    skeleton(&mut batch, &book);
                    for shape in [Shape::Pick(pick), Shape::Cluster(pick)] {
                        batch.add_chain(&book.table(), &Chain::regular(&shape.name()));
                        for rule in shape.rules(&book) {
                            batch.add_rule(&book.table(), &shape.name(), &rule);
                        }
                    }
                    Socket::open().unwrap().apply(batch).unwrap();
                }
            }
        });
        rules.join().unwrap();
    }
}
