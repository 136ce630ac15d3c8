//! The scheduling cycle of one pod: pre-filter, filter, post-filter, pre-score, score, select.
//!
//! Plain functions on the snapshot, which a dry run changes and restores. Other modules carry out the decision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use crate::filtering::{Filters, filter_with_nominated, histogram, pre_filter};
use crate::framework::{Effect, Loaded, Point, PreScore, Search, Verdict};
use crate::metrics::ProfileSeries;
use crate::preemption::{self, Preemption};
use crate::profile::Profile;
use crate::random::Random;
use crate::refused::Refused;
use crate::rows::demand::Demand;
use crate::rows::shortlist::Shortlist;
use crate::rows::{PodRow, Snapshot};

/// The reasons why no node is feasible, in upstream's words.
#[derive(Debug)]
pub struct Rejection {
    fit_error: String,
    /// The messages of the post-filter plugins.
    pub post_filter_messages: Vec<String>,
    /// The writes that the post-filter plugins request.
    pub effects: Vec<Effect>,
    pub plugins: Vec<&'static str>,
    /// The candidates for preemption.
    pub candidates: Vec<Arc<Preemption>>,
    /// Whether the pod's nomination is void.
    pub clears_nomination: bool,
    /// Whether the cycle failed with an error: no cluster event helps the pod.
    pub is_error: bool,
}

impl Rejection {
    pub fn new(why: String, plugin: &'static str) -> Rejection {
        Rejection {
            fit_error: why,
            post_filter_messages: Vec::new(),
            effects: Vec::new(),
            plugins: vec![plugin],
            candidates: Vec::new(),
            clears_nomination: false,
            is_error: false,
        }
    }

    /// Returns the rejection for a plugin that failed.
    fn error(why: String) -> Rejection {
        Rejection { plugins: Vec::new(), is_error: true, ..Rejection::new(why, "") }
    }

    /// Returns the whole message. With a candidate for preemption, the post-filter plugins add nothing.
    pub fn message(&self) -> String {
        match self.post_filter_messages.is_empty() || !self.candidates.is_empty() {
            true => self.fit_error.clone(),
            false => format!("{} {}", self.fit_error, self.post_filter_messages.join(", ")),
        }
    }
}

/// State that changes from pod to pod without being state of the cluster.
#[derive(Default)]
pub struct Rotation {
    /// The node at which the next search starts, so that all nodes get their turn.
    next_start: usize,
    random: Random,
    /// The results of dry runs for pods like the last one.
    pub dry_runs: preemption::Memory,
    refused: Refused,
    scores: Scores,
}

/// The total of the local scores per node, for pods with the same demand: a replica changes only the node that the one
/// before it was bound to. An entry is valid for one generation of its node.
#[derive(Default)]
struct Scores {
    of: Option<(String, Arc<Demand>)>,
    nodes: Vec<Option<(u64, i64)>>,
}

impl Scores {
    /// Forgets the scores for other pods.
    fn begin(&mut self, profile: &Profile, pod: &PodRow) {
        let same = |(name, demand): &(String, Arc<Demand>)| *name == profile.name && Arc::ptr_eq(demand, &pod.demand);
        if !self.of.as_ref().is_some_and(same) {
            self.of = Some((profile.name.clone(), pod.demand.clone()));
            self.nodes.clear();
        }
    }

    fn of_node(&mut self, slot: usize, generation: u64, sum: impl FnOnce() -> i64) -> i64 {
        if self.nodes.len() <= slot {
            self.nodes.resize(slot + 1, None);
        }
        match &mut self.nodes[slot] {
            Some((at, score)) if *at == generation => *score,
            place => place.insert((generation, sum())).1,
        }
    }
}

impl Rotation {
    pub fn new(seed: u64) -> Rotation {
        Rotation { random: Random::new(seed), ..Rotation::default() }
    }
}

/// Runs all filters on every node and collects the reasons of each infeasible one.
pub fn search(snapshot: &mut Snapshot, profile: &Profile, pod: &PodRow, rotation: &mut Rotation) -> Search {
    searched(snapshot, profile, pod, rotation, true)
}

/// Searches feasible nodes. `thorough` does not change which are found. If some are feasible, the reasons of the others
/// are not needed.
fn searched(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    rotation: &mut Rotation,
    thorough: bool,
) -> Search {
    let (series, began) = (&profile.series, Instant::now());
    let mut filters = match pre_filter(snapshot, profile, pod) {
        Ok(filters) => filters,
        Err((plugin, verdict)) => {
            series.point(Point::PreFilter, verdict.status(), began);
            return Search { absent: Some((vec![plugin], verdict)), refused: true, ..Search::default() };
        }
    };
    series.point(Point::PreFilter, "Success", began);
    filters.timed = series.sample().then_some(series);
    let began = Instant::now();
    let again = if thorough { None } else { rotation.refused.take(profile, pod, &filters, snapshot) };
    let search = again.unwrap_or_else(|| {
        let list = if thorough { Shortlist::default() } else { filters.shortlist(snapshot) };
        let mut search = find_feasible(snapshot, profile, pod, &filters, rotation, &list);
        search.repeatable = !thorough && search.error.is_none() && filters.only.is_none() && filters.are_local();
        search
    });
    series.point(Point::Filter, "Success", began);
    count_filters(&filters, &search, series);
    search
}

/// Counts the calls of each filter: a plugin is called for the nodes that passed those before it.
fn count_filters(filters: &Filters<'_>, search: &Search, series: &ProfileSeries) {
    let mut evaluated = search.feasible.len() + search.rejected.len();
    for (plugin, _) in &filters.plugins {
        series.evaluated(plugin.name, Point::PreFilter, 1);
        series.evaluated(plugin.name, Point::Filter, evaluated);
        let refused = search.refusals.iter().filter(|(name, _)| *name == plugin.name);
        evaluated -= refused.map(|(_, count)| count).sum::<usize>();
    }
}

fn find_feasible(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    filters: &Filters<'_>,
    rotation: &mut Rotation,
    list: &Shortlist,
) -> Search {
    let mut search = Search::default();
    // The nominated node is tried first: preemption has made room there for this pod.
    let nominated = snapshot.find(&pod.nominated).map(|node| node.slot);
    if let Some(slot) = nominated.filter(|slot| filter_with_nominated(filters, pod, *slot, snapshot).is_none()) {
        search.feasible.push(slot);
        search.nominated = true;
        return search;
    }
    let total = snapshot.len();
    let (only, start) = match &filters.only {
        Some((slots, names)) => {
            let why = format!("node(s) didn't satisfy plugin(s) [{}]", names.join(" "));
            search.absent = Some((names.clone(), Verdict::unresolvable_because(why)));
            (Some(slots), 0)
        }
        None => (None, rotation.next_start),
    };
    let nodes = only.map_or(total, Vec::len);
    let enough = profile.feasible_to_find(nodes);
    let (mut looked_at, mut next) = (0, start);
    while looked_at < nodes && search.feasible.len() < enough {
        // The number of nodes may have decreased since the last search.
        next = if next < nodes { next } else { next % nodes };
        let slot = only.map_or_else(|| snapshot.order()[next], |slots| slots[next]);
        (looked_at, next) = (looked_at + 1, next + 1);
        if !list.contains(slot) {
            continue;
        }
        match filter_with_nominated(filters, pod, slot, snapshot) {
            Some((plugin, Verdict::Error(why))) => {
                search.fail(plugin, &why);
                return search;
            }
            Some((plugin, verdict)) => search.reject(slot, plugin, verdict),
            None => search.feasible.push(slot),
        }
    }
    if search.feasible.is_empty() && !list.is_complete() {
        // The message needs the reasons of all nodes.
        return find_feasible(snapshot, profile, pod, filters, rotation, &Shortlist::default());
    }
    rotation.next_start = (rotation.next_start + looked_at) % total.max(1);
    search
}

/// Runs the post-filter plugins and preemption for a pod without a feasible node.
pub fn post_filter(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    search: &Search,
    rotation: &mut Rotation,
) -> Rejection {
    if let Some(error) = &search.error {
        return Rejection::error(error.clone());
    }
    let fit_error = fit_error(snapshot.len(), search);
    let mut plugins: BTreeSet<&'static str> = search.refusals.iter().map(|(plugin, _)| *plugin).collect();
    plugins.extend(search.absent.iter().flat_map(|(names, _)| names));
    if search.by_extender {
        plugins.insert("Extender");
    }
    let mut rejection = Rejection { plugins: plugins.into_iter().collect(), ..Rejection::new(fit_error, "") };
    let began = Instant::now();
    for plugin in profile.at(Point::PostFilter) {
        if let Some(after) = plugin.post_filter(pod, search, snapshot) {
            rejection.post_filter_messages.push(after.why);
            rejection.effects.extend(after.effect);
            if after.ends {
                break;
            }
        } else if let Some(limits) = plugin.preemption() {
            profile.series.preemption();
            let sought =
                preemption::find(snapshot, profile, pod, search, &mut rotation.dry_runs, &mut rotation.random, limits);
            rejection.clears_nomination = sought.clears_nomination;
            rejection.candidates = sought.candidates;
            rejection.post_filter_messages.push(format!("preemption: {}", sought.why_not));
        }
    }
    let status = if rejection.candidates.is_empty() { "Unschedulable" } else { "Success" };
    profile.series.point(Point::PostFilter, status, began);
    rejection
}

/// Returns a message such as `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s).`
fn fit_error(total: usize, search: &Search) -> String {
    if let (true, Some((_, verdict))) = (search.refused, &search.absent) {
        let why = verdict.reasons().map(|reasons| reasons.text()).unwrap_or_default();
        return format!("0/{total} nodes are available: {why}.");
    }
    let looked_at = search.rejected.iter().map(|rejected| (&rejected.verdict, 1));
    let rest = total.saturating_sub(search.rejected.len());
    let absent = search.absent.iter().map(|(_, verdict)| (verdict, rest)).filter(|(_, nodes)| *nodes > 0);
    histogram(total, looked_at.chain(absent))
}

/// Returns the weighted scores of nodes, in their order.
pub fn scores(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    nodes: &[usize],
    rotation: &mut Rotation,
) -> Vec<i64> {
    let (series, began) = (&profile.series, Instant::now());
    let prepared: Vec<(&Loaded, i64, PreScore)> =
        profile.scorers().map(|(plugin, weight)| (plugin, weight, plugin.pre_score(pod, snapshot, nodes))).collect();
    series.point(Point::PreScore, "Success", began);
    let began = Instant::now();
    let mut totals = vec![0; nodes.len()];
    let mut local = Vec::new();
    for (plugin, weight, prepared) in prepared.into_iter().filter(|(_, _, one)| !matches!(one, PreScore::Skip)) {
        series.evaluated(plugin.name, Point::PreScore, 1);
        series.evaluated(plugin.name, Point::Score, nodes.len());
        match prepared {
            PreScore::Ready(state) if plugin.scores_locally() => local.push((plugin, weight, state)),
            prepared => {
                let scores = prepared_scores(snapshot, plugin, pod, nodes, prepared).unwrap_or_default();
                totals.iter_mut().zip(scores).for_each(|(total, score)| *total += score * weight);
            }
        }
    }
    rotation.scores.begin(profile, pod);
    for (total, slot) in totals.iter_mut().zip(nodes) {
        let sum = || {
            let node = snapshot.node(*slot);
            local.iter().map(|(plugin, weight, state)| plugin.score(state, pod, node, snapshot) * weight).sum()
        };
        *total += rotation.scores.of_node(*slot, snapshot.room(*slot).generation, sum);
    }
    series.point(Point::Score, "Success", began);
    totals
}

/// Returns the normalized scores of one plugin; none if it skips scoring.
pub fn plugin_scores(snapshot: &mut Snapshot, plugin: &Loaded, pod: &PodRow, nodes: &[usize]) -> Option<Vec<i64>> {
    let prepared = plugin.pre_score(pod, snapshot, nodes);
    prepared_scores(snapshot, plugin, pod, nodes, prepared)
}

fn prepared_scores(
    snapshot: &Snapshot,
    plugin: &Loaded,
    pod: &PodRow,
    nodes: &[usize],
    prepared: PreScore,
) -> Option<Vec<i64>> {
    let state = match prepared {
        PreScore::Skip => return None,
        PreScore::Same(score) => return Some(vec![score; nodes.len()]),
        PreScore::Ready(state) => state,
    };
    let score = |slot: &usize| plugin.score(&state, pod, snapshot.node(*slot), snapshot);
    let mut scores: Vec<i64> = nodes.iter().map(score).collect();
    plugin.normalize(&state, &mut scores);
    Some(scores)
}

/// Returns the node with the highest score; of several, a random one.
pub fn select(nodes: &[usize], scores: &[i64], rotation: &mut Rotation) -> Option<usize> {
    let highest = scores.iter().copied().max()?;
    let best: Vec<usize> =
        nodes.iter().zip(scores).filter(|(_, score)| **score == highest).map(|(slot, _)| *slot).collect();
    best.get(rotation.random.below(best.len())).copied()
}

/// Runs the whole cycle for a pod that no extender is interested in.
pub fn schedule(
    snapshot: &mut Snapshot,
    profile: &Profile,
    pod: &PodRow,
    rotation: &mut Rotation,
) -> Result<usize, Box<Rejection>> {
    if snapshot.len() == 0 {
        return Err(Box::new(no_nodes()));
    }
    let began = Instant::now();
    let search = searched(snapshot, profile, pod, rotation, false);
    let chosen = match search.feasible.as_slice() {
        [] => None,
        [only] => Some(*only),
        several => {
            let scores = scores(snapshot, profile, pod, several, rotation);
            select(several, &scores, rotation)
        }
    };
    profile.series.decided(began);
    chosen.ok_or_else(|| {
        let rejection = Box::new(post_filter(snapshot, profile, pod, &search, rotation));
        if search.repeatable {
            rotation.refused.keep(profile, pod, search, snapshot);
        }
        rejection
    })
}

pub fn no_nodes() -> Rejection {
    Rejection::new("no nodes available to schedule pods".to_owned(), "NodeName")
}

#[cfg(test)]
#[path = "cycle_tests.rs"]
mod tests;
