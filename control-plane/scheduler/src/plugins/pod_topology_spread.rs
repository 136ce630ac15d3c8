//! PodTopologySpread: spreads matching pods evenly over zones, hosts or other topology domains.

use std::collections::HashSet;

use crate::framework::{ClusterEvent, MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict, state};
use crate::rows::shortlist::Shortlist;
use crate::rows::topology::{EVERY_NODE, Inclusion, Query, Tally};
use crate::rows::{NodeRow, PodMatcher, PodRow, Snapshot, Spread};

const NOT_MATCH: &str = "node(s) didn't match pod topology spread constraints";
const LABEL_MISSING: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The constraints of pods that have none.
pub enum Defaults {
    /// Soft constraints over hosts and zones, for pods that a Service or controller selects.
    System,
    List(Vec<Spread>),
}

/// The PodTopologySpread plugin.
pub struct PodTopologySpread {
    pub defaults: Defaults,
}

impl Default for PodTopologySpread {
    fn default() -> PodTopologySpread {
        PodTopologySpread { defaults: Defaults::System }
    }
}

impl PodTopologySpread {
    /// Returns the hard or soft constraints of a pod, and whether nodes must have all their labels to count.
    fn constraints(&self, pod: &PodRow, hard: bool, snapshot: &Snapshot) -> (Vec<Spread>, bool) {
        let own = &pod.demand.spread;
        if !own.is_empty() {
            return (own.iter().filter(|constraint| constraint.hard == hard).cloned().collect(), true);
        }
        let (defaults, strict) = match &self.defaults {
            Defaults::System if hard => return (Vec::new(), false),
            Defaults::System => (system_defaults(), false),
            Defaults::List(list) => (list.iter().filter(|one| one.hard == hard).cloned().collect(), true),
        };
        let selector = snapshot.selectors.of(pod);
        if defaults.is_empty() || selector.is_empty() {
            return (Vec::new(), strict);
        }
        (defaults.into_iter().map(|one| Spread { selector: selector.clone(), ..one }).collect(), strict)
    }
}

fn system_defaults() -> Vec<Spread> {
    let over = |key: &str, max_skew| Spread {
        hard: false,
        max_skew,
        min_domains: 1,
        topology_key: key.to_owned(),
        selector: corten_meta::Selector::nothing(),
        honor_affinity: true,
        honor_taints: false,
    };
    vec![over(HOSTNAME, 3), over("topology.kubernetes.io/zone", 5)]
}

/// A hard constraint with its tally.
struct Hard {
    tally: usize,
    max_skew: i64,
    min_domains: usize,
    own: i64,
}

impl Hard {
    /// Returns the most pods that a domain may have to accept one more.
    fn most(&self, tally: &Tally) -> i64 {
        // If there are fewer domains than minDomains, the global minimum is zero.
        let minimum = if tally.domains() < self.min_domains { 0 } else { tally.minimum() };
        self.max_skew + minimum - self.own
    }
}

/// A soft constraint with its tally, and the weight of a pod in it.
struct Soft {
    tally: usize,
    /// The tally of all nodes with the label.
    labelled: usize,
    max_skew: i64,
    weight: f64,
}

struct Softs {
    constraints: Vec<Soft>,
    /// The positions of feasible nodes that lack a label and are not scored.
    ignored: HashSet<usize>,
    /// The same as positions in the order of scoring.
    ignored_places: Vec<usize>,
}

impl Plugin for PodTopologySpread {
    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        let (constraints, _) = self.constraints(pod, true, snapshot);
        if constraints.is_empty() {
            return PreFilter::Skip;
        }
        let keys = keys(&constraints);
        let hard = |constraint: &Spread| Hard {
            tally: ask(snapshot, pod, constraint, &constraint.topology_key, keys.clone()),
            max_skew: i64::from(constraint.max_skew),
            min_domains: constraint.min_domains,
            own: i64::from(constraint.selector.matches(pod.labels())),
        };
        let hards: Vec<Hard> = constraints.iter().map(hard).collect();
        PreFilter::Continue(Box::new(hards))
    }

    fn filter(&self, hards: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        let topology = snapshot.topology();
        for hard in state::<Vec<Hard>>(hards).into_iter().flatten() {
            let Some((tally, division)) = topology.counted(hard.tally) else { continue };
            let Some(domain) = topology.domain(division, node.slot) else {
                return Verdict::unresolvable(LABEL_MISSING);
            };
            if tally.in_domain(domain) > hard.most(tally) {
                return Verdict::unschedulable(NOT_MATCH);
            }
        }
        Verdict::Fits
    }

    fn shorten(&self, hards: &State, snapshot: &Snapshot, list: &mut Shortlist) {
        let topology = snapshot.topology();
        for hard in state::<Vec<Hard>>(hards).into_iter().flatten() {
            let Some((tally, division)) = topology.counted(hard.tally) else { continue };
            let most = hard.most(tally);
            if tally.maximum() > most {
                let has_room = |domain| tally.in_domain(domain) <= most;
                list.retain(|slot| topology.domain(division, slot).is_some_and(has_room));
            }
        }
    }

    fn pre_score(&self, pod: &PodRow, snapshot: &mut Snapshot, feasible: &[usize]) -> PreScore {
        let (constraints, strict) = self.constraints(pod, false, snapshot);
        if constraints.is_empty() {
            return PreScore::Skip;
        }
        let keys = if strict { keys(&constraints) } else { Vec::new() };
        let lacks = |slot: usize| keys.iter().any(|key| !snapshot.node(slot).labels.contains_key(key));
        let places = feasible.iter().enumerate().filter(|(_, slot)| lacks(**slot));
        let (ignored_places, ignored): (Vec<usize>, HashSet<usize>) =
            places.map(|(place, slot)| (place, *slot)).unzip();
        let scored: Vec<usize> = feasible.iter().copied().filter(|slot| !ignored.contains(slot)).collect();
        let soft = |constraint: &Spread| {
            let labelled = snapshot.division(&constraint.topology_key);
            let (key, domains) = match constraint.topology_key.as_str() {
                HOSTNAME => (EVERY_NODE, scored.len()),
                key => (key, domains_of(snapshot, labelled, &scored)),
            };
            Soft {
                tally: ask(snapshot, pod, constraint, key, keys.clone()),
                labelled,
                max_skew: i64::from(constraint.max_skew),
                weight: (domains as f64 + 2.0).ln(),
            }
        };
        let constraints = constraints.iter().map(soft).collect();
        PreScore::Ready(Box::new(Softs { constraints, ignored, ignored_places }))
    }

    /// The fuller its domains, the lower the node's score.
    fn score(&self, softs: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> i64 {
        let Some(softs) = state::<Softs>(softs) else { return 0 };
        if softs.ignored.contains(&node.slot) {
            return 0;
        }
        let topology = snapshot.topology();
        let mut score = 0.0;
        for soft in &softs.constraints {
            let Some((tally, division)) = topology.counted(soft.tally) else { continue };
            if topology.domain(soft.labelled, node.slot).is_none() {
                continue;
            }
            let here = topology.domain(division, node.slot).map_or(0, |domain| tally.in_domain(domain));
            score += here as f64 * soft.weight + (soft.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    fn normalize(&self, softs: &State, scores: &mut [i64]) {
        let ignored = state::<Softs>(softs).map_or(&[][..], |softs| &softs.ignored_places);
        let places = |scores: &[i64]| -> Vec<usize> {
            (0..scores.len()).filter(|place| ignored.binary_search(place).is_err()).collect()
        };
        let scored = places(scores);
        let least = scored.iter().map(|place| scores[*place]).min().unwrap_or(0);
        let most = scored.iter().map(|place| scores[*place]).max().unwrap_or(0);
        ignored.iter().for_each(|place| scores[*place] = 0);
        for place in scored {
            let score = scores[place];
            scores[place] = if most == 0 { MAX_SCORE } else { MAX_SCORE * (most + least - score) / most };
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, snapshot: &Snapshot) -> bool {
        let (constraints, _) = self.constraints(pod, true, snapshot);
        let counts = |other: &PodRow| {
            other.namespace() == pod.namespace()
                && constraints.iter().any(|constraint| constraint.selector.matches(other.labels()))
        };
        match event {
            ClusterEvent::PodPlaced(other) | ClusterEvent::PodRemoved(other) => counts(other),
            ClusterEvent::PodUpdated(old, new) => counts(old) != counts(new) || old.terminating != new.terminating,
            ClusterEvent::NodeAdded(node) => keys(&constraints).iter().all(|key| node.labels.contains_key(key)),
            ClusterEvent::NodeUpdated(_, change) => change.labels || change.taints,
            ClusterEvent::NodeRemoved => true,
            _ => false,
        }
    }
}

fn keys(constraints: &[Spread]) -> Vec<String> {
    let mut keys: Vec<String> = constraints.iter().map(|constraint| constraint.topology_key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn ask(snapshot: &mut Snapshot, pod: &PodRow, constraint: &Spread, key: &str, with_labels: Vec<String>) -> usize {
    // An empty selector counts nothing.
    let pods = match constraint.selector.is_empty() {
        true => Vec::new(),
        false => vec![PodMatcher {
            namespaces: vec![pod.namespace().to_owned()],
            namespace_selector: None,
            selector: constraint.selector.clone(),
        }],
    };
    let demand = &pod.demand;
    let selected = (constraint.honor_affinity && !pod.nodes.is_empty()).then(|| pod.nodes.clone());
    let tolerated = constraint.honor_taints.then(|| demand.tolerations.clone());
    let nodes = if key == EVERY_NODE { Inclusion::default() } else { Inclusion { with_labels, selected, tolerated } };
    snapshot.tally(Query { topology_key: key.to_owned(), pods, staying: true, nodes })
}

/// Returns the number of domains of the nodes; lacking the label counts as one.
fn domains_of(snapshot: &Snapshot, division: usize, slots: &[usize]) -> usize {
    slots.iter().map(|slot| snapshot.topology().domain(division, *slot)).collect::<HashSet<_>>().len()
}
