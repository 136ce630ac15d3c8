//! DefaultPreemption: finds the node and the lower-priority pods to evict so that a pod fits.
//!
//! The dry run removes pods from nodes and always puts them back. It finds victims; it never deletes them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::filtering::{Filters, filter_with_nominated, histogram, pre_filter};
use crate::framework::{Limits, Search, Verdict};
use crate::profile::Profile;
use crate::random::Random;
use crate::rows::demand::{Demand, NodeDemand};
use crate::rows::{Budget, PodRow, Snapshot};

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// A candidate for preemption: a node and its victims.
#[derive(Clone, Debug)]
pub struct Preemption {
    pub node: String,
    pub victims: Vec<Arc<PodRow>>,
    /// The number of victims whose eviction violates a PodDisruptionBudget.
    pub violations: usize,
    harm: Harm,
}

/// The order of candidates: fewest violations, lowest highest priority, lowest sum of priorities, fewest victims,
/// latest start.
type Harm = (usize, i32, i64, usize, Reverse<Timestamp>);

impl Preemption {
    pub fn new(node: String, victims: Vec<Arc<PodRow>>, violations: usize) -> Preemption {
        let highest = victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
        // Priorities may be negative: they are shifted, so that more victims always weigh more.
        let sum = victims.iter().map(|victim| i64::from(victim.priority) + i64::from(i32::MAX) + 1).sum();
        let of_highest = victims.iter().filter(|victim| victim.priority == highest);
        let youngest = of_highest.filter_map(|victim| victim.started).min().unwrap_or(Timestamp::MAX);
        let harm = (violations, highest, sum, victims.len(), Reverse(youngest));
        Preemption { node, victims, violations, harm }
    }
}

/// The candidates for preemption, or the reasons why there are none.
#[derive(Default)]
pub struct Sought {
    pub candidates: Vec<Arc<Preemption>>,
    pub why_not: String,
    /// Whether no node is a candidate: an earlier nomination is void.
    pub clears_nomination: bool,
}

pub fn find(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    search: &Search,
    memory: &mut Memory,
    random: &mut Random,
    limits: Limits,
) -> Sought {
    if let Some(reason) = not_eligible(snapshot, pod, search) {
        return Sought { why_not: reason.to_owned(), ..Sought::default() };
    }
    let possible: Vec<usize> = possible(snapshot, search);
    let total = snapshot.len();
    let enough = limits.candidates(possible.len());
    let dry_run = dry_run(snapshot, profile, pod, Wanted { possible: &possible, enough }, memory, random);
    if !dry_run.candidates.is_empty() {
        return Sought { candidates: dry_run.candidates, ..Sought::default() };
    }
    let unhelpful = Verdict::unresolvable(NOT_HELPFUL);
    let rest = total.saturating_sub(dry_run.refused.len());
    let verdicts = dry_run.refused.iter().map(|verdict| (verdict, 1)).chain([(&unhelpful, rest)]);
    let why_not = histogram(total, verdicts.filter(|(_, nodes)| *nodes > 0));
    Sought { why_not, clears_nomination: true, candidates: Vec::new() }
}

/// Returns the best candidate; the name decides ties.
pub fn best(candidates: Vec<Arc<Preemption>>) -> Option<Arc<Preemption>> {
    candidates.into_iter().min_by(|a, b| a.harm.cmp(&b.harm).then_with(|| a.node.cmp(&b.node)))
}

fn not_eligible(snapshot: &Snapshot, pod: &PodRow, search: &Search) -> Option<&'static str> {
    if pod.demand.never_preempts {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = snapshot.find(&pod.nominated)?;
    let verdict = search.rejected.iter().find(|rejected| rejected.slot == node.slot).map(|rejected| &rejected.verdict);
    if matches!(verdict, Some(Verdict::Unresolvable(_))) {
        return None;
    }
    let leaving = |other: &Arc<PodRow>| other.terminating && other.preempted && other.priority < pod.priority;
    node.pods.iter().any(leaving).then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Returns the nodes that could be feasible with fewer pods.
fn possible(snapshot: &Snapshot, search: &Search) -> Vec<usize> {
    if let (true, Some((_, Verdict::Unschedulable(_)))) = (search.refused, &search.absent) {
        return snapshot.nodes().map(|node| node.slot).collect();
    }
    let by_pods = search.rejected.iter().filter(|rejected| matches!(rejected.verdict, Verdict::Unschedulable(_)));
    by_pods.map(|rejected| rejected.slot).collect()
}

/// The results of dry runs per node, for pods with the same demand: of a thousand replicas that preempt, each examines
/// only nodes that changed since the one before. An entry is valid for one generation of its node.
#[derive(Default)]
pub struct Memory {
    of: Option<(Arc<Demand>, Arc<NodeDemand>, i32)>,
    nodes: Vec<Option<(u64, Found)>>,
}

type Found = Result<Arc<Preemption>, Verdict>;

impl Memory {
    /// Forgets the results for other pods.
    fn begin(&mut self, pod: &PodRow) {
        let same = self.of.as_ref().is_some_and(|(demand, nodes, priority)| {
            Arc::ptr_eq(demand, &pod.demand) && Arc::ptr_eq(nodes, &pod.nodes) && *priority == pod.priority
        });
        if !same {
            self.of = Some((pod.demand.clone(), pod.nodes.clone(), pod.priority));
            self.nodes.clear();
        }
    }

    /// Returns the result for a node, from memory unless the node changed.
    fn of_node(&mut self, snapshot: &mut Snapshot, pod: &PodRow, slot: usize, filters: &Filters<'_>) -> &Found {
        if self.nodes.len() <= slot {
            self.nodes.resize(slot + 1, None);
        }
        let (place, generation) = (&mut self.nodes[slot], snapshot.room(slot).generation);
        place.take_if(|(at, _)| *at != generation);
        let (_, found) = place.get_or_insert_with(|| {
            let found = victims_on(snapshot, pod, slot, filters);
            // The dry run removed pods and put them back.
            (snapshot.room(slot).generation, found)
        });
        found
    }
}

#[derive(Default)]
struct DryRun {
    candidates: Vec<Arc<Preemption>>,
    /// The verdicts of nodes without candidates, while there is no candidate at all.
    refused: Vec<Verdict>,
    /// Whether a candidate violates no budget.
    harmless: bool,
}

impl DryRun {
    fn found(&mut self, found: &Found) {
        match found {
            Ok(preemption) => {
                self.harmless |= preemption.violations == 0;
                self.candidates.push(preemption.clone());
            }
            Err(verdict) if self.candidates.is_empty() => self.refused.push(verdict.clone()),
            Err(_) => {}
        }
    }
}

/// The nodes of a dry run, and the number of candidates that is enough.
struct Wanted<'a> {
    possible: &'a [usize],
    enough: usize,
}

fn dry_run(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    wanted: Wanted<'_>,
    memory: &mut Memory,
    random: &mut Random,
) -> DryRun {
    let Wanted { possible, enough } = wanted;
    let mut run = DryRun::default();
    if possible.is_empty() {
        return run;
    }
    let Ok(filters) = pre_filter(snapshot, profile, pod) else { return run };
    let (before, after) = possible.split_at(random.below(possible.len()));
    // On its nominated node a pod does not block itself.
    let own = snapshot.find(&pod.nominated).map(|node| node.slot);
    let memorable = snapshot.budgets.is_empty() && filters.are_local();
    memory.begin(pod);
    for slot in after.iter().chain(before) {
        match memorable && own != Some(*slot) {
            true => run.found(memory.of_node(snapshot, pod, *slot, &filters)),
            false => run.found(&victims_on(snapshot, pod, *slot, &filters)),
        }
        if run.harmless && run.candidates.len() >= enough {
            break;
        }
    }
    run
}

/// Returns the fewest victims on the node: removes all pods of lower priority, then puts back those that still fit,
/// first those that a budget protects.
fn victims_on(snapshot: &mut Snapshot, pod: &PodRow, slot: usize, filters: &Filters<'_>) -> Found {
    let row = snapshot.node(slot);
    let name = row.name.clone();
    let mut lesser: Vec<Arc<PodRow>> = row.pods.iter().filter(|other| other.priority < pod.priority).cloned().collect();
    if lesser.is_empty() {
        return Err(Verdict::unresolvable(NO_VICTIMS));
    }
    lesser.iter().for_each(|other| drop(snapshot.lift(slot, &other.uid)));
    if let Some((_, verdict)) = filter_with_nominated(filters, pod, slot, snapshot) {
        lesser.into_iter().for_each(|other| snapshot.put(slot, other));
        return Err(verdict);
    }
    lesser.sort_by(|a, b| importance(a).cmp(&importance(b)));
    let (protected, others) = by_budget(lesser, snapshot.budgets.values());
    let mut victims = reprieve(snapshot, pod, slot, filters, protected);
    let violations = victims.len();
    victims.extend(reprieve(snapshot, pod, slot, filters, others));
    victims.iter().for_each(|victim| snapshot.put(slot, victim.clone()));
    if victims.is_empty() {
        return Err(Verdict::unresolvable(NO_VICTIMS));
    }
    victims.sort_by(|a, b| importance(a).cmp(&importance(b)));
    Ok(Arc::new(Preemption::new(name, victims, violations)))
}

/// Sorts by importance, the most important first: by priority, then by start time.
pub fn importance(pod: &PodRow) -> (Reverse<i32>, Timestamp, &str) {
    (Reverse(pod.priority), pod.started.unwrap_or(Timestamp::MAX), &pod.uid)
}

/// Puts pods back while the pod still fits; returns those that cannot stay, removed from the node.
fn reprieve(
    snapshot: &mut Snapshot,
    pod: &PodRow,
    slot: usize,
    filters: &Filters<'_>,
    pods: Vec<Arc<PodRow>>,
) -> Vec<Arc<PodRow>> {
    let mut victims = Vec::new();
    for other in pods {
        snapshot.put(slot, other.clone());
        if filter_with_nominated(filters, pod, slot, snapshot).is_some() {
            snapshot.lift(slot, &other.uid);
            victims.push(other);
        }
    }
    victims
}

/// Separates pods whose eviction violates a budget from others; those that a budget still allows use it up.
fn by_budget<'a>(
    pods: Vec<Arc<PodRow>>,
    budgets: impl Iterator<Item = &'a Budget>,
) -> (Vec<Arc<PodRow>>, Vec<Arc<PodRow>>) {
    let budgets: Vec<&Budget> = budgets.collect();
    let mut allowed: HashMap<usize, i32> = HashMap::new();
    pods.into_iter().partition(|pod| {
        let mut violated = false;
        for (number, budget) in budgets.iter().enumerate() {
            let covers = budget.namespace == pod.namespace()
                && !pod.labels().is_empty()
                && !budget.selector.is_empty()
                && budget.selector.matches(pod.labels())
                && !budget.disrupted.contains(&pod.name);
            if covers {
                let left = allowed.entry(number).or_insert(budget.allowed);
                *left -= 1;
                violated |= *left < 0;
            }
        }
        violated
    })
}
