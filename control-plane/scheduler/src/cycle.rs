//! One pod, one decision: pre-filter, filter, post-filter, pre-score, score, select.
//!
//! Pure but for the snapshot that a preemption dry run changes and restores. What is decided is carried out elsewhere.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::framework::{Plugin, PreFilter, PreScore, State, Verdict};
use crate::plugins::PLUGINS;
use crate::preemption::{self, Preemption};
use crate::rows::{NodeRow, PodRow, Snapshot};

const MIN_FEASIBLE: usize = 100;
const MIN_FEASIBLE_PERCENT: usize = 5;

/// Pods that a preemption made room for, by node, until they are placed.
pub type Nominated = HashMap<String, Vec<Arc<PodRow>>>;

/// Why no node was found, in upstream's words.
#[derive(Debug)]
pub struct Rejection {
    pub message: String,
    pub plugins: Vec<&'static str>,
    pub preemption: Option<Preemption>,
}

/// What changes from pod to pod without being state of the cluster.
#[derive(Default)]
pub struct Rotation {
    /// Where the search for feasible nodes goes on, so that all nodes get their turn.
    next_start: usize,
    /// State of a small generator that breaks ties.
    seed: u64,
}

impl Rotation {
    pub fn new(seed: u64) -> Rotation {
        Rotation { next_start: 0, seed: seed | 1 }
    }

    /// A number below `bound`, by xorshift.
    fn below(&mut self, bound: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % bound.max(1) as u64) as usize
    }
}

/// The filters that have something to say about a pod.
pub type Filters = Vec<(&'static dyn Plugin, State)>;

/// The name of the node the pod goes to.
pub fn schedule(
    snapshot: &mut Snapshot,
    pod: &PodRow,
    nominated: &Nominated,
    rotation: &mut Rotation,
) -> Result<String, Rejection> {
    let total = snapshot.nodes().count();
    if total == 0 {
        let plugins = vec!["NodeName"];
        return Err(Rejection { message: "no nodes available to schedule pods".to_owned(), plugins, preemption: None });
    }
    let filters = pre_filter(snapshot, pod);
    let search = find_feasible(snapshot, pod, &filters, nominated, rotation);
    if search.feasible.is_empty() {
        return Err(post_filter(snapshot, pod, search.rejected, nominated));
    }
    Ok(select(snapshot, pod, &search.feasible, rotation))
}

pub fn pre_filter(snapshot: &Snapshot, pod: &PodRow) -> Filters {
    let consulted = |(plugin, _): (&'static dyn Plugin, i64)| match plugin.pre_filter(pod, snapshot) {
        PreFilter::Skip => None,
        PreFilter::Continue(state) => Some((plugin, state)),
    };
    PLUGINS.into_iter().filter_map(consulted).collect()
}

/// The first rejection, with the plugin that spoke it.
pub fn filter(filters: &Filters, pod: &PodRow, node: &NodeRow) -> Option<(&'static str, Verdict)> {
    filters.iter().find_map(|(plugin, state)| {
        let verdict = plugin.filter(state, pod, node);
        (verdict != Verdict::Fits).then(|| (plugin.name(), verdict))
    })
}

/// Filters a node as if the pods nominated to it, of no lesser priority, were already there.
pub fn filter_with_nominated(
    filters: &Filters,
    pod: &PodRow,
    node: &NodeRow,
    nominated: &Nominated,
) -> Option<(&'static str, Verdict)> {
    let coming = nominated.get(&node.name).into_iter().flatten();
    let mut coming = coming.filter(|other| other.uid != pod.uid && other.priority >= pod.priority).peekable();
    if coming.peek().is_none() {
        return filter(filters, pod, node);
    }
    let mut crowded = node.clone();
    coming.for_each(|other| crowded.add(other.clone()));
    filter(filters, pod, &crowded).or_else(|| filter(filters, pod, node))
}

struct Search {
    feasible: Vec<String>,
    rejected: BTreeMap<String, (&'static str, Verdict)>,
}

fn find_feasible(
    snapshot: &Snapshot,
    pod: &PodRow,
    filters: &Filters,
    nominated: &Nominated,
    rotation: &mut Rotation,
) -> Search {
    let nodes: Vec<&NodeRow> = snapshot.nodes().collect();
    let enough = feasible_to_find(nodes.len());
    let mut search = Search { feasible: Vec::new(), rejected: BTreeMap::new() };
    let start = rotation.next_start % nodes.len();
    let mut looked_at = 0;
    // A node that a preemption cleared for this pod is tried first: others must not take the pod elsewhere meanwhile.
    if let Some(node) = snapshot.node(&pod.nominated)
        && filter_with_nominated(filters, pod, node, nominated).is_none()
    {
        search.feasible.push(node.name.clone());
        return search;
    }
    for node in nodes[start..].iter().chain(&nodes[..start]) {
        looked_at += 1;
        match filter_with_nominated(filters, pod, node, nominated) {
            Some(rejection) => drop(search.rejected.insert(node.name.clone(), rejection)),
            None => search.feasible.push(node.name.clone()),
        }
        if search.feasible.len() >= enough {
            break;
        }
    }
    rotation.next_start = (start + looked_at) % nodes.len();
    search
}

/// In a large cluster a good node among some is found sooner than the best among all.
fn feasible_to_find(nodes: usize) -> usize {
    if nodes < MIN_FEASIBLE {
        return nodes;
    }
    let percent = 50usize.saturating_sub(nodes / 125).max(MIN_FEASIBLE_PERCENT);
    (nodes * percent / 100).max(MIN_FEASIBLE)
}

fn post_filter(
    snapshot: &mut Snapshot,
    pod: &PodRow,
    rejected: BTreeMap<String, (&'static str, Verdict)>,
    nominated: &Nominated,
) -> Rejection {
    let total = snapshot.nodes().count();
    let plugins: BTreeSet<&'static str> = rejected.values().map(|(plugin, _)| *plugin).collect();
    let reasons = rejected.values().flat_map(|(_, verdict)| verdict.reasons());
    let fit_error = histogram(total, reasons);
    let (preemption, why_not) = preemption::find(snapshot, pod, &rejected, nominated);
    let message = if why_not.is_empty() { fit_error } else { format!("{fit_error} preemption: {why_not}") };
    Rejection { message, plugins: plugins.into_iter().collect(), preemption }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).`
pub fn histogram<'a>(total: usize, reasons: impl Iterator<Item = &'a Cow<'static, str>>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut lines: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    lines.sort();
    match lines.is_empty() {
        true => format!("0/{total} nodes are available:"),
        false => format!("0/{total} nodes are available: {}.", lines.join(", ")),
    }
}

/// The feasible node with the highest weighted score; of several, any.
fn select(snapshot: &Snapshot, pod: &PodRow, feasible: &[String], rotation: &mut Rotation) -> String {
    if let [only] = feasible {
        return only.clone();
    }
    let nodes: Vec<&NodeRow> = feasible.iter().filter_map(|name| snapshot.node(name)).collect();
    let totals = scores(snapshot, pod, &nodes);
    let highest = totals.iter().copied().max().unwrap_or(0);
    let best: Vec<&NodeRow> =
        nodes.iter().zip(&totals).filter(|(_, total)| **total == highest).map(|(node, _)| *node).collect();
    best[rotation.below(best.len())].name.clone()
}

fn scores(snapshot: &Snapshot, pod: &PodRow, nodes: &[&NodeRow]) -> Vec<i64> {
    let mut totals = vec![0; nodes.len()];
    for (plugin, weight) in PLUGINS.iter().filter(|(_, weight)| *weight > 0) {
        let PreScore::Ready(state) = plugin.pre_score(pod, snapshot, nodes) else { continue };
        let mut scores: Vec<i64> = nodes.iter().map(|node| plugin.score(&state, pod, node)).collect();
        plugin.normalize(&state, &mut scores);
        for (total, score) in totals.iter_mut().zip(scores) {
            *total += score * weight;
        }
    }
    totals
}

#[cfg(test)]
#[path = "cycle_tests.rs"]
mod tests;
