//! InterPodAffinity: pods that want to be, or must not be, in the same domain as certain others.

use crate::framework::{ClusterEvent, MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict, state};
use crate::rows::demand::{PodMatcher, Term};
use crate::rows::shortlist::Shortlist;
use crate::rows::topology::{Carries, Inclusion, Query};
use crate::rows::{NodeRow, PodRow, Snapshot};

/// The InterPodAffinity plugin.
pub struct InterPodAffinity {
    /// The weight of the required affinity terms of existing pods, in scoring.
    pub hard_pod_affinity_weight: i64,
    pub ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinity {
    fn default() -> InterPodAffinity {
        InterPodAffinity { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

/// The tallies of a pod's terms.
struct TermTallies {
    /// Pods that match all required affinity terms, by the domain of each term.
    attracting: Vec<usize>,
    /// Pods that match a required anti-affinity term.
    avoided: Vec<usize>,
    /// Anti-affinity terms of scheduled pods that match this one.
    repelling: Vec<usize>,
    selects_self: bool,
}

impl Plugin for InterPodAffinity {
    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        let meaning = snapshot.terms_meaning(pod);
        let repels = |number: &usize| snapshot.topology().carrier(*number).0.carries == Carries::RequiredAntiAffinity;
        let repelling: Vec<usize> = meaning.into_iter().filter(repels).collect();
        let terms = &pod.demand.terms;
        if repelling.is_empty() && terms.affinity.is_empty() && terms.anti_affinity.is_empty() {
            return PreFilter::Skip;
        }
        let all: Vec<PodMatcher> = terms.affinity.iter().map(|term| term.pods.clone()).collect();
        let own = snapshot.namespaces.get(pod.namespace());
        let selects_self = all.iter().all(|matcher| matcher.matches(pod.namespace(), pod.labels(), own));
        let attracting = terms.affinity.iter().map(|term| ask(snapshot, &term.topology_key, all.clone())).collect();
        let avoid = |term: &Term| ask(snapshot, &term.topology_key, vec![term.pods.clone()]);
        let avoided = terms.anti_affinity.iter().map(avoid).collect();
        PreFilter::Continue(Box::new(TermTallies { attracting, avoided, repelling, selects_self }))
    }

    fn filter(&self, cycle_state: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        let Some(tallies) = state::<TermTallies>(cycle_state) else { return Verdict::Fits };
        if !near_enough(tallies, node.slot, snapshot) {
            return Verdict::unresolvable("node(s) didn't match pod affinity rules");
        }
        if tallies.avoided.iter().any(|tally| here(*tally, node.slot, snapshot).is_some_and(|pods| pods > 0)) {
            return Verdict::unschedulable("node(s) didn't match pod anti-affinity rules");
        }
        let repelled = tallies.repelling.iter().any(|number| {
            let (carrier, division) = snapshot.topology().carrier(*number);
            snapshot.topology().domain(division, node.slot).is_some_and(|domain| carrier.in_domain(domain) > 0)
        });
        match repelled {
            true => Verdict::unschedulable("node(s) didn't satisfy existing pods anti-affinity rules"),
            false => Verdict::Fits,
        }
    }

    fn shorten(&self, cycle_state: &State, snapshot: &Snapshot, list: &mut Shortlist) {
        let Some(tallies) = state::<TermTallies>(cycle_state) else { return };
        let counted = |tally: &usize| snapshot.topology().counted(*tally).map(|(tally, _)| tally);
        let somewhere = |tally: &usize| counted(tally).is_some_and(|tally| tally.minimum() == 0 && tally.total() > 0);
        if tallies.attracting.iter().any(somewhere) {
            list.retain(|slot| near_enough(tallies, slot, snapshot));
        }
        for avoided in &tallies.avoided {
            // So few are not worth a walk over all nodes.
            if counted(avoided).is_some_and(|tally| tally.total() > tally.domains() as i64 / 5) {
                list.retain(|slot| here(*avoided, slot, snapshot).is_none_or(|pods| pods == 0));
            }
        }
    }

    fn pre_score(&self, pod: &PodRow, snapshot: &mut Snapshot, _: &[usize]) -> PreScore {
        let wishes = &pod.demand.terms.preferred;
        if self.ignore_preferred_terms_of_existing_pods && wishes.is_empty() {
            return PreScore::Skip;
        }
        let own = |(weight, term): &(i64, Term)| (*weight, ask(snapshot, &term.topology_key, vec![term.pods.clone()]));
        let own: Vec<(i64, usize)> = wishes.iter().map(own).collect();
        let own: Vec<(i64, usize)> = own
            .into_iter()
            .filter(|(_, tally)| snapshot.topology().counted(*tally).is_some_and(|(tally, _)| tally.total() > 0))
            .collect();
        let meaning = snapshot.terms_meaning(pod);
        let weigh = |number: usize| {
            let weight = match snapshot.topology().carrier(number).0.carries {
                Carries::RequiredAntiAffinity => 0,
                Carries::RequiredAffinity => self.hard_pod_affinity_weight,
                Carries::Preference(weight) => weight,
            };
            (weight, number)
        };
        let theirs: Vec<(i64, usize)> = meaning.into_iter().map(weigh).filter(|(weight, _)| *weight != 0).collect();
        match own.is_empty() && theirs.is_empty() {
            true => PreScore::Skip,
            false => PreScore::Ready(Box::new(Weights { own, theirs })),
        }
    }

    fn score(&self, weights: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> i64 {
        let Some(weights) = state::<Weights>(weights) else { return 0 };
        let own = weights.own.iter().map(|(weight, tally)| weight * here(*tally, node.slot, snapshot).unwrap_or(0));
        let theirs = weights.theirs.iter().map(|(weight, number)| {
            let (carrier, division) = snapshot.topology().carrier(*number);
            let domain = snapshot.topology().domain(division, node.slot);
            weight * domain.map_or(0, |domain| carrier.in_domain(domain))
        });
        own.chain(theirs).sum()
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        let (least, most) = (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
        for score in scores.iter_mut() {
            let share = if most > least { (*score - least) as f64 / (most - least) as f64 } else { 0.0 };
            *score = (MAX_SCORE as f64 * share) as i64;
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, snapshot: &Snapshot) -> bool {
        let terms = &pod.demand.terms;
        let means = |term: &Term, other: &PodRow| {
            let labels = snapshot.namespaces.get(other.namespace());
            term.pods.matches(other.namespace(), other.labels(), labels)
        };
        let attracts = |other: &PodRow| terms.affinity.iter().any(|term| means(term, other));
        let frees = |other: &PodRow| {
            terms.anti_affinity.iter().any(|term| means(term, other))
                || other.demand.terms.anti_affinity.iter().any(|term| means(term, pod))
        };
        match event {
            ClusterEvent::PodPlaced(other) => attracts(other),
            ClusterEvent::PodUpdated(old, new) => attracts(new) || frees(old),
            ClusterEvent::PodRemoved(other) => frees(other),
            ClusterEvent::NodeAdded(node) => {
                let mut keys = terms.affinity.iter().map(|term| &term.topology_key);
                keys.all(|key| node.labels.contains_key(key))
            }
            ClusterEvent::NodeUpdated(_, change) => change.labels,
            ClusterEvent::NamespaceChanged => true,
            _ => false,
        }
    }
}

/// Tallies and carriers with their weights.
struct Weights {
    own: Vec<(i64, usize)>,
    theirs: Vec<(i64, usize)>,
}

fn ask(snapshot: &mut Snapshot, topology_key: &str, pods: Vec<PodMatcher>) -> usize {
    let topology_key = topology_key.to_owned();
    snapshot.tally(Query { topology_key, pods, staying: false, nodes: Inclusion::default() })
}

/// Returns the count in the node's domain; none if the node is in no domain.
fn here(tally: usize, slot: usize, snapshot: &Snapshot) -> Option<i64> {
    let (tally, division) = snapshot.topology().counted(tally)?;
    Some(tally.in_domain(snapshot.topology().domain(division, slot)?))
}

fn near_enough(tallies: &TermTallies, slot: usize, snapshot: &Snapshot) -> bool {
    let mut all_there = true;
    for tally in &tallies.attracting {
        let Some(pods) = here(*tally, slot, snapshot) else { return false };
        all_there &= pods > 0;
    }
    // The first pod of a group with affinity to itself has no other pod to be near to.
    let has_no_pods = |tally: &usize| snapshot.topology().counted(*tally).is_none_or(|(tally, _)| tally.total() == 0);
    all_there || (tallies.selects_self && tallies.attracting.iter().all(has_no_pods))
}
