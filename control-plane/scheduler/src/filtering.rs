//! Filtering: the verdicts of a profile's plugins on a node.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::framework::{Loaded, Point, PreFilter, State, Verdict};
use crate::metrics::ProfileSeries;
use crate::profile::Profile;
use crate::rows::shortlist::Shortlist;
use crate::rows::{PodRow, Snapshot};

/// The filters that apply to a pod, each with its state.
pub struct Filters<'a> {
    pub plugins: Vec<(&'a Loaded, State)>,
    /// The only nodes that can be feasible, and the plugins that said so.
    pub only: Option<(Vec<usize>, Vec<&'static str>)>,
    /// The series for the duration of each plugin, if it is measured.
    pub timed: Option<&'a ProfileSeries>,
}

/// Runs the pre-filter hooks of a profile for a pod.
pub fn pre_filter<'a>(
    snapshot: &mut Snapshot,
    profile: &'a Profile,
    pod: &PodRow,
) -> Result<Filters<'a>, (&'static str, Verdict)> {
    snapshot.begin();
    let mut filters = Filters { plugins: Vec::new(), only: None, timed: None };
    for plugin in profile.filters() {
        match plugin.pre_filter(pod, snapshot) {
            PreFilter::Skip => {}
            PreFilter::Continue(state) => filters.plugins.push((plugin, state)),
            PreFilter::Reject(verdict) => return Err((plugin.name, verdict)),
            PreFilter::Only(state, slots) => {
                filters.plugins.push((plugin, state));
                filters.only = Some(match filters.only.take() {
                    None => (slots, vec![plugin.name]),
                    Some((known, mut names)) => {
                        names.push(plugin.name);
                        (known.into_iter().filter(|slot| slots.contains(slot)).collect(), names)
                    }
                });
            }
        }
    }
    Ok(filters)
}

impl Filters<'_> {
    /// Returns the nodes that no plugin certainly rejects. If only some nodes can be feasible, there is nothing to
    /// shorten.
    pub fn shortlist(&self, snapshot: &Snapshot) -> Shortlist {
        let mut list = Shortlist::new(snapshot.slots());
        if self.only.is_none() {
            self.plugins.iter().for_each(|(plugin, state)| plugin.shorten(state, snapshot, &mut list));
        }
        list
    }

    /// Reports whether the verdicts on a node depend only on its own row.
    pub fn are_local(&self) -> bool {
        self.plugins.iter().all(|(plugin, _)| plugin.is_local())
    }
}

/// Returns the first rejection, with its plugin.
pub fn filter(
    filters: &Filters<'_>,
    pod: &PodRow,
    slot: usize,
    snapshot: &Snapshot,
) -> Option<(&'static str, Verdict)> {
    let node = snapshot.node(slot);
    filters.plugins.iter().find_map(|(plugin, state)| {
        if plugin.surely_fits(state, pod, slot, snapshot) {
            debug_assert!(plugin.filter(state, pod, node, snapshot).fits(), "{} is not sure", plugin.name);
            return None;
        }
        let verdict = match filters.timed {
            None => plugin.filter(state, pod, node, snapshot),
            Some(series) => {
                let began = Instant::now();
                let verdict = plugin.filter(state, pod, node, snapshot);
                series.plugin(plugin.name, Point::Filter, verdict.status(), began);
                verdict
            }
        };
        (!verdict.fits()).then_some((plugin.name, verdict))
    })
}

/// Returns the verdict of every plugin on a node, whether or not another has already rejected it.
pub fn verdicts(filters: &Filters<'_>, pod: &PodRow, slot: usize, snapshot: &Snapshot) -> Vec<(&'static str, Verdict)> {
    let node = snapshot.node(slot);
    let of = |(plugin, state): &(&Loaded, State)| (plugin.name, plugin.filter(state, pod, node, snapshot));
    filters.plugins.iter().map(of).collect()
}

/// Filters a node with the nominated pods of equal or higher priority added, and again without them.
pub fn filter_with_nominated(
    filters: &Filters<'_>,
    pod: &PodRow,
    slot: usize,
    snapshot: &mut Snapshot,
) -> Option<(&'static str, Verdict)> {
    if snapshot.nominated.is_empty() {
        return filter(filters, pod, slot, snapshot);
    }
    let coming = snapshot.nominated.on(&snapshot.node(slot).name).iter();
    let coming: Vec<_> =
        coming.filter(|other| other.uid != pod.uid && other.priority >= pod.priority).cloned().collect();
    if coming.is_empty() {
        return filter(filters, pod, slot, snapshot);
    }
    coming.iter().for_each(|other| snapshot.put(slot, other.clone()));
    let crowded = filter(filters, pod, slot, snapshot);
    coming.iter().for_each(|other| drop(snapshot.lift(slot, &other.uid)));
    crowded.or_else(|| filter(filters, pod, slot, snapshot))
}

/// Counts the reasons by node.
pub fn histogram<'a>(total: usize, verdicts: impl Iterator<Item = (&'a Verdict, usize)>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    // Most nodes have the same reason as the one before, the same static string.
    let mut run: (&str, usize) = ("", 0);
    for (verdict, nodes) in verdicts {
        for reason in verdict.reasons().into_iter().flat_map(|reasons| reasons.iter()) {
            if !std::ptr::eq(reason, run.0) {
                *counts.entry(run.0).or_default() += run.1;
                run = (reason, 0);
            }
            run.1 += nodes;
        }
    }
    *counts.entry(run.0).or_default() += run.1;
    counts.retain(|_, count| *count > 0);
    let mut lines: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    lines.sort_unstable();
    match lines.is_empty() {
        true => format!("0/{total} nodes are available:"),
        false => format!("0/{total} nodes are available: {}.", lines.join(", ")),
    }
}
