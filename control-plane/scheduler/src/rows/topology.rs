//! Standing counts of pods by topology domain, updated pod by pod instead of being counted for every pod: a Deployment
//! of a thousand replicas needs the same count a thousand times.
//!
//! A [`Query`] gets its tally at first use, under a number that is valid for one scheduling cycle. Terms of scheduled
//! pods are counted while a pod carries them ([`Carrier`]). Invariant: a tally equals a count of all pods of all nodes.
//! Checked by property in `tests`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::demand::{NodeDemand, PodMatcher, Term, Tolerations};
use super::node::NodeRow;
use super::pod::{Class, PodRow};

pub type Namespaces = HashMap<String, BTreeMap<String, String>>;

/// The key that makes every node a domain of its own.
pub const EVERY_NODE: &str = "";
/// No domain: the node lacks the label.
const NOWHERE: u32 = u32::MAX;
/// The most tallies, before those not used recently are dropped.
const MOST_TALLIES: usize = 256;

/// The pods to count, on which nodes, by which domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    pub topology_key: String,
    /// A pod counts if it matches all of them.
    pub pods: Vec<PodMatcher>,
    /// Whether pods that are being deleted do not count.
    pub staying: bool,
    pub nodes: Inclusion,
}

/// The nodes that count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inclusion {
    /// Nodes that have all of these labels,
    pub with_labels: Vec<String>,
    /// that the selector matches,
    pub selected: Option<Arc<NodeDemand>>,
    /// and whose taints are tolerated.
    pub tolerated: Option<Tolerations>,
}

impl Inclusion {
    fn includes(&self, node: &NodeRow) -> bool {
        self.with_labels.iter().all(|key| node.labels.contains_key(key))
            && self.selected.as_ref().is_none_or(|demand| demand.selects(node))
            && self.tolerated.as_ref().is_none_or(|tolerations| tolerations.admit(node))
    }
}

/// The nodes grouped by one label.
#[derive(Default)]
struct Division {
    name: String,
    domain_of: Vec<u32>,
    values: HashMap<String, u32>,
}

impl Division {
    fn add_node(&mut self, node: &NodeRow) {
        if self.domain_of.len() <= node.slot {
            self.domain_of.resize(node.slot + 1, NOWHERE);
        }
        self.domain_of[node.slot] = self.domain(node);
    }

    fn domain(&mut self, node: &NodeRow) -> u32 {
        if !node.known {
            return NOWHERE;
        }
        if self.name == EVERY_NODE {
            return node.slot as u32;
        }
        let Some(value) = node.labels.get(&self.name) else { return NOWHERE };
        if let Some(known) = self.values.get(value) {
            return *known;
        }
        let new = self.values.len() as u32;
        self.values.insert(value.clone(), new);
        new
    }

    fn of(&self, slot: usize) -> Option<usize> {
        self.domain_of.get(slot).copied().filter(|domain| *domain != NOWHERE).map(|domain| domain as usize)
    }
}

/// Caches by class whether it matches.
#[derive(Default)]
struct Memory(Vec<Option<bool>>);

impl Memory {
    fn recall(&mut self, class: &Class, decide: impl FnOnce() -> bool) -> bool {
        if self.0.len() <= class.id {
            self.0.resize(class.id + 1, None);
        }
        *self.0[class.id].get_or_insert_with(decide)
    }
}

pub struct Tally {
    query: Query,
    division: usize,
    counts: Vec<i64>,
    /// The number of counting nodes in each domain.
    members: Vec<u32>,
    /// The number of domains with nodes by their number of pods: the first key is the minimum.
    domains_by_count: BTreeMap<i64, usize>,
    included: Vec<bool>,
    total: i64,
    memory: Memory,
    last_used: u64,
}

impl Tally {
    fn new(query: Query, division: usize) -> Tally {
        Tally {
            query,
            division,
            counts: Vec::new(),
            members: Vec::new(),
            domains_by_count: BTreeMap::new(),
            included: Vec::new(),
            total: 0,
            memory: Memory::default(),
            last_used: 0,
        }
    }

    /// Returns the pods in all domains together.
    pub fn total(&self) -> i64 {
        self.total
    }

    pub fn in_domain(&self, domain: usize) -> i64 {
        self.counts.get(domain).copied().unwrap_or(0)
    }

    /// Returns the number of domains with a counting node.
    pub fn domains(&self) -> usize {
        self.domains_by_count.values().sum()
    }

    /// Returns the fewest pods of any domain with a counting node.
    pub fn minimum(&self) -> i64 {
        self.domains_by_count.keys().next().copied().unwrap_or(0)
    }

    /// Returns the most pods of any domain with a counting node.
    pub fn maximum(&self) -> i64 {
        self.domains_by_count.keys().next_back().copied().unwrap_or(0)
    }

    fn wants(&mut self, pod: &PodRow, namespaces: &Namespaces) -> bool {
        if self.query.staying && pod.terminating {
            return false;
        }
        let class = &pod.class;
        let pods = &self.query.pods;
        self.memory.recall(class, || {
            let own = namespaces.get(&class.namespace);
            !pods.is_empty() && pods.iter().all(|matcher| matcher.matches(&class.namespace, &class.labels, own))
        })
    }

    fn grow(&mut self, domain: usize) {
        if self.counts.len() <= domain {
            self.counts.resize(domain + 1, 0);
            self.members.resize(domain + 1, 0);
        }
    }

    fn add(&mut self, domain: usize, pods: i64) {
        self.grow(domain);
        let before = self.counts[domain];
        self.counts[domain] += pods;
        self.total += pods;
        if self.members[domain] > 0 {
            self.file(before, -1);
            self.file(before + pods, 1);
        }
    }

    fn join(&mut self, domain: usize) {
        self.grow(domain);
        self.members[domain] += 1;
        if self.members[domain] == 1 {
            self.file(self.counts[domain], 1);
        }
    }

    fn leave(&mut self, domain: usize) {
        self.members[domain] -= 1;
        if self.members[domain] == 0 {
            self.file(self.counts[domain], -1);
        }
    }

    fn file(&mut self, count: i64, by: isize) {
        let domains = self.domains_by_count.entry(count).or_default();
        *domains = domains.saturating_add_signed(by);
        if *domains == 0 {
            self.domains_by_count.remove(&count);
        }
    }

    /// Adds or removes a node with all its pods.
    fn attach(&mut self, node: &NodeRow, domain: Option<usize>, namespaces: &Namespaces) {
        if self.included.len() <= node.slot {
            self.included.resize(node.slot + 1, false);
        }
        self.included[node.slot] = node.known && self.query.nodes.includes(node);
        let Some(domain) = domain.filter(|_| self.included[node.slot]) else { return };
        self.join(domain);
        let pods = node.pods.iter().filter(|pod| self.wants(pod, namespaces)).count();
        self.add(domain, pods as i64);
    }

    fn detach(&mut self, node: &NodeRow, domain: Option<usize>, namespaces: &Namespaces) {
        let Some(domain) = domain.filter(|_| self.included.get(node.slot) == Some(&true)) else { return };
        let pods = node.pods.iter().filter(|pod| self.wants(pod, namespaces)).count();
        self.add(domain, -(pods as i64));
        self.leave(domain);
        self.included[node.slot] = false;
    }
}

/// The role of a term of a scheduled pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Carries {
    RequiredAntiAffinity,
    RequiredAffinity,
    /// A preference with its weight, negative for anti-affinity.
    Preference(i64),
}

/// The domains of the scheduled pods that carry a term.
pub struct Carrier {
    pub carries: Carries,
    pub term: Term,
    division: usize,
    counts: Vec<i64>,
    pods: usize,
    memory: Memory,
}

impl Carrier {
    pub fn in_domain(&self, domain: usize) -> i64 {
        self.counts.get(domain).copied().unwrap_or(0)
    }

    fn add(&mut self, domain: Option<usize>, by: i64) {
        let Some(domain) = domain else { return };
        if self.counts.len() <= domain {
            self.counts.resize(domain + 1, 0);
        }
        self.counts[domain] += by;
    }

    /// Reports whether the term matches pods of this class.
    fn means(&mut self, class: &Class, namespaces: &Namespaces) -> bool {
        let term = &self.term;
        self.memory
            .recall(class, || term.pods.matches(&class.namespace, &class.labels, namespaces.get(&class.namespace)))
    }
}

#[derive(Default)]
pub struct Topology {
    divisions: Vec<Division>,
    tallies: Vec<Option<Tally>>,
    by_query: HashMap<Query, usize>,
    carriers: Vec<Carrier>,
    by_term: HashMap<(Carries, Term), usize>,
    clock: u64,
}

impl Topology {
    /// Returns the domain of a node in the division that a tally or carrier counts by.
    pub fn domain(&self, division: usize, slot: usize) -> Option<usize> {
        self.divisions[division].of(slot)
    }

    pub fn division(&mut self, topology_key: &str, nodes: &[NodeRow]) -> usize {
        if let Some(known) = self.divisions.iter().position(|division| division.name == topology_key) {
            return known;
        }
        let mut division = Division { name: topology_key.to_owned(), ..Division::default() };
        nodes.iter().for_each(|node| division.add_node(node));
        self.divisions.push(division);
        self.divisions.len() - 1
    }

    /// Clears everything cached by class id, because ids were reused.
    pub fn forget_classes(&mut self) {
        self.tallies.iter_mut().flatten().for_each(|tally| tally.memory = Memory::default());
        self.carriers.iter_mut().for_each(|carrier| carrier.memory = Memory::default());
    }

    /// Starts a new scheduling cycle: earlier numbers of tallies and carriers are void.
    pub fn begin(&mut self) {
        self.clock += 1;
        self.forget_unused_carriers();
        if self.by_query.len() > MOST_TALLIES {
            let mut last_used: Vec<u64> = self.tallies.iter().flatten().map(|tally| tally.last_used).collect();
            last_used.sort_unstable();
            let stale = last_used[last_used.len() / 2];
            self.drop_tallies(|tally| tally.last_used <= stale);
        }
    }

    fn drop_tallies(&mut self, which: impl Fn(&Tally) -> bool) {
        for place in &mut self.tallies {
            if let Some(tally) = place.take_if(|tally| which(tally)) {
                self.by_query.remove(&tally.query);
            }
        }
    }

    /// Returns the number of the tally for the query; counts it now if it is new.
    pub fn tally(&mut self, query: Query, nodes: &[NodeRow], namespaces: &Namespaces) -> usize {
        if let Some(known) = self.by_query.get(&query).copied() {
            if let Some(tally) = &mut self.tallies[known] {
                tally.last_used = self.clock;
            }
            return known;
        }
        let division = self.division(&query.topology_key, nodes);
        let mut tally = Tally::new(query.clone(), division);
        tally.last_used = self.clock;
        for node in nodes {
            tally.attach(node, self.divisions[division].of(node.slot), namespaces);
        }
        let free = self.tallies.iter().position(Option::is_none).unwrap_or_else(|| {
            self.tallies.push(None);
            self.tallies.len() - 1
        });
        self.tallies[free] = Some(tally);
        self.by_query.insert(query, free);
        free
    }

    /// Returns the tally of a number from this cycle, and the division it counts by.
    pub fn counted(&self, tally: usize) -> Option<(&Tally, usize)> {
        self.tallies.get(tally)?.as_ref().map(|tally| (tally, tally.division))
    }

    /// Returns the numbers of the carriers whose terms match pods of this class.
    pub fn meaning(&mut self, class: &Class, namespaces: &Namespaces) -> Vec<usize> {
        let means = |(number, carrier): (usize, &mut Carrier)| {
            (carrier.pods > 0 && carrier.means(class, namespaces)).then_some(number)
        };
        self.carriers.iter_mut().enumerate().filter_map(means).collect()
    }

    pub fn carrier(&self, number: usize) -> (&Carrier, usize) {
        let carrier = &self.carriers[number];
        (carrier, carrier.division)
    }

    pub fn pod_added(&mut self, pod: &PodRow, slot: usize, nodes: &[NodeRow], namespaces: &Namespaces) {
        self.count(pod, slot, 1, namespaces);
        self.carry(pod, slot, 1, nodes);
    }

    pub fn pod_removed(&mut self, pod: &PodRow, slot: usize, nodes: &[NodeRow], namespaces: &Namespaces) {
        self.count(pod, slot, -1, namespaces);
        self.carry(pod, slot, -1, nodes);
    }

    fn count(&mut self, pod: &PodRow, slot: usize, by: i64, namespaces: &Namespaces) {
        for tally in self.tallies.iter_mut().flatten() {
            if tally.included.get(slot) != Some(&true) || !tally.wants(pod, namespaces) {
                continue;
            }
            if let Some(domain) = self.divisions[tally.division].of(slot) {
                tally.add(domain, by);
            }
        }
    }

    fn carry(&mut self, pod: &PodRow, slot: usize, by: i64, nodes: &[NodeRow]) {
        let terms = &pod.demand.terms;
        if terms.is_empty() {
            return;
        }
        for (carries, term) in carried(pod) {
            let number = self.carrier_of(carries, term, nodes);
            let carrier = &mut self.carriers[number];
            carrier.pods = carrier.pods.saturating_add_signed(by as isize);
            carrier.add(self.divisions[carrier.division].of(slot), by);
        }
    }

    fn carrier_of(&mut self, carries: Carries, term: &Term, nodes: &[NodeRow]) -> usize {
        let key = (carries, term.clone());
        if let Some(known) = self.by_term.get(&key) {
            return *known;
        }
        let division = self.division(&term.topology_key, nodes);
        self.carriers.push(Carrier {
            carries,
            term: term.clone(),
            division,
            counts: Vec::new(),
            pods: 0,
            memory: Memory::default(),
        });
        self.by_term.insert(key, self.carriers.len() - 1);
        self.carriers.len() - 1
    }

    /// Drops terms that no pod carries any more, once they are the majority: every pod is checked against every term.
    fn forget_unused_carriers(&mut self) {
        let used = |carrier: &Carrier| carrier.pods > 0;
        if self.carriers.len() < 64 || 2 * self.carriers.iter().filter(|c| used(c)).count() > self.carriers.len() {
            return;
        }
        self.carriers.retain(used);
        let numbered = self.carriers.iter().enumerate();
        self.by_term = numbered.map(|(number, c)| ((c.carries, c.term.clone()), number)).collect();
    }

    /// Removes a node from every count, before it changes.
    pub fn detach(&mut self, node: &NodeRow, namespaces: &Namespaces) {
        for tally in self.tallies.iter_mut().flatten() {
            tally.detach(node, self.divisions[tally.division].of(node.slot), namespaces);
        }
        self.carry_node(node, -1);
    }

    /// Adds a node to every count, after it changed.
    pub fn attach(&mut self, node: &NodeRow, namespaces: &Namespaces) {
        self.divisions.iter_mut().for_each(|division| division.add_node(node));
        for tally in self.tallies.iter_mut().flatten() {
            tally.attach(node, self.divisions[tally.division].of(node.slot), namespaces);
        }
        self.carry_node(node, 1);
    }

    fn carry_node(&mut self, node: &NodeRow, by: i64) {
        for pod in node.pods.iter().filter(|pod| !pod.demand.terms.is_empty()) {
            for (carries, term) in carried(pod) {
                if let Some(number) = self.by_term.get(&(carries, term.clone())) {
                    let carrier = &mut self.carriers[*number];
                    carrier.add(self.divisions[carrier.division].of(node.slot), by);
                }
            }
        }
    }

    /// Drops the counts that depend on namespace labels, because such labels changed.
    pub fn namespace_changed(&mut self) {
        self.drop_tallies(|tally| tally.query.pods.iter().any(|matcher| matcher.namespace_selector.is_some()));
        self.carriers.iter_mut().for_each(|carrier| carrier.memory = Memory::default());
    }
}

fn carried(pod: &PodRow) -> impl Iterator<Item = (Carries, &Term)> {
    let terms = &pod.demand.terms;
    let anti = terms.anti_affinity.iter().map(|term| (Carries::RequiredAntiAffinity, term));
    let near = terms.affinity.iter().map(|term| (Carries::RequiredAffinity, term));
    anti.chain(near).chain(terms.preferred.iter().map(|(weight, term)| (Carries::Preference(*weight), term)))
}
