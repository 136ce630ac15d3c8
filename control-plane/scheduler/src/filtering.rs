//! Filtering: what the plugins of a profile say of a node.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::framework::{Plugin, Point, PreFilter, State, Verdict};
use crate::metrics::ProfileSeries;
use crate::profile::Profile;
use crate::rows::shortlist::Shortlist;
use crate::rows::{PodRow, Snapshot};

/// The filters that have something to say about a pod, each with what it prepared.
pub struct Filters<'a> {
    pub plugins: Vec<(&'a dyn Plugin, State)>,
    /// The only nodes worth a look, and who said so.
    pub only: Option<(Vec<usize>, Vec<&'static str>)>,
    /// Where each plugin's time is written, if it is to be.
    pub timed: Option<&'a ProfileSeries>,
}

/// Asks the filters of a profile what they want to prepare for a pod.
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
            PreFilter::Reject(verdict) => return Err((plugin.name(), verdict)),
            PreFilter::Only(state, slots) => {
                filters.plugins.push((plugin, state));
                filters.only = Some(match filters.only.take() {
                    None => (slots, vec![plugin.name()]),
                    Some((known, mut names)) => {
                        names.push(plugin.name());
                        (known.into_iter().filter(|slot| slots.contains(slot)).collect(), names)
                    }
                });
            }
        }
    }
    Ok(filters)
}

impl Filters<'_> {
    /// The nodes that no plugin is sure to refuse. Where only some nodes are looked at, there is nothing to shorten.
    pub fn shortlist(&self, snapshot: &Snapshot) -> Shortlist {
        let mut list = Shortlist::new(snapshot.slots());
        if self.only.is_none() {
            self.plugins.iter().for_each(|(plugin, state)| plugin.shorten(state, snapshot, &mut list));
        }
        list
    }

    /// Whether what they say of a node hangs on nothing but its own row.
    pub fn are_local(&self) -> bool {
        self.plugins.iter().all(|(plugin, _)| plugin.is_local())
    }
}

/// The first rejection, with the plugin that spoke it.
pub fn filter(
    filters: &Filters<'_>,
    pod: &PodRow,
    slot: usize,
    snapshot: &Snapshot,
) -> Option<(&'static str, Verdict)> {
    let node = snapshot.node(slot);
    filters.plugins.iter().find_map(|(plugin, state)| {
        if plugin.surely_fits(state, pod, slot, snapshot) {
            debug_assert!(plugin.filter(state, pod, node, snapshot).fits(), "{} is not sure", plugin.name());
            return None;
        }
        let verdict = match filters.timed {
            None => plugin.filter(state, pod, node, snapshot),
            Some(series) => {
                let began = Instant::now();
                let verdict = plugin.filter(state, pod, node, snapshot);
                series.plugin(plugin.name(), Point::Filter, verdict.status(), began);
                verdict
            }
        };
        (!verdict.fits()).then(|| (plugin.name(), verdict))
    })
}

/// What every plugin says of a node, whether or not another has already refused it.
pub fn verdicts(filters: &Filters<'_>, pod: &PodRow, slot: usize, snapshot: &Snapshot) -> Vec<(&'static str, Verdict)> {
    let node = snapshot.node(slot);
    let of = |(plugin, state): &(&dyn Plugin, State)| (plugin.name(), plugin.filter(state, pod, node, snapshot));
    filters.plugins.iter().map(of).collect()
}

/// Filters a node as if the pods nominated to it, of no lesser priority, were already there; and as if not.
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

/// Reasons counted by node.
pub fn histogram<'a>(total: usize, verdicts: impl Iterator<Item = (&'a Verdict, usize)>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    // Most nodes say the same as the one before, by the very same text.
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
