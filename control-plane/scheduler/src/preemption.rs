//! DefaultPreemption: which pods of lesser priority must go, and where, so that a pod fits.
//!
//! The dry run takes pods out of the snapshot and always puts them back. It finds; it never deletes.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::cycle::{Nominated, filter_with_nominated, histogram, pre_filter};
use crate::framework::Verdict;
use crate::rows::{PodRow, Snapshot};

const MIN_CANDIDATES: usize = 100;
const CANDIDATE_PERCENT: usize = 10;

/// Room for a pod, once the victims are gone.
#[derive(Debug)]
pub struct Preemption {
    pub node: String,
    pub victims: Vec<Arc<PodRow>>,
}

/// The best place to make room, or why there is none.
pub fn find(
    snapshot: &mut Snapshot,
    pod: &PodRow,
    rejected: &BTreeMap<String, (&'static str, Verdict)>,
    nominated: &Nominated,
) -> (Option<Preemption>, String) {
    if let Some(reason) = not_eligible(snapshot, pod) {
        return (None, reason.to_owned());
    }
    let total = snapshot.nodes().count();
    let (mut candidates, mut reasons): (Vec<Preemption>, Vec<Cow<'static, str>>) = (Vec::new(), Vec::new());
    let enough = (total * CANDIDATE_PERCENT / 100).max(MIN_CANDIDATES);
    for (node, (_, verdict)) in rejected {
        match verdict {
            Verdict::Unschedulable(_) if candidates.len() < enough => {
                match victims_on(snapshot, pod, node, nominated) {
                    Ok(victims) => candidates.push(Preemption { node: node.clone(), victims }),
                    Err(why) => reasons.extend(why),
                }
            }
            _ => reasons.push(Cow::Borrowed("Preemption is not helpful for scheduling")),
        }
    }
    match candidates.into_iter().min_by_key(cost) {
        Some(best) => (Some(best), String::new()),
        None => (None, histogram(total, reasons.iter())),
    }
}

fn not_eligible(snapshot: &Snapshot, pod: &PodRow) -> Option<&'static str> {
    if pod.never_preempts {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = snapshot.node(&pod.nominated)?;
    let leaving = node.pods.values().any(|other| other.terminating && other.priority < pod.priority);
    leaving.then_some("not eligible due to a terminating pod on the nominated node.")
}

/// The fewest pods that must leave the node: all of lesser priority at first, then back with those that still fit.
fn victims_on(
    snapshot: &mut Snapshot,
    pod: &PodRow,
    node: &str,
    nominated: &Nominated,
) -> Result<Vec<Arc<PodRow>>, Vec<Cow<'static, str>>> {
    let Some(row) = snapshot.node(node) else { return Err(Vec::new()) };
    let mut lesser: Vec<Arc<PodRow>> =
        row.pods.values().filter(|other| other.priority < pod.priority).cloned().collect();
    if lesser.is_empty() {
        return Err(vec![Cow::Borrowed("No preemption victims found for incoming pod")]);
    }
    lesser.sort_by_key(|other| (Reverse(other.priority), other.started.unwrap_or(Timestamp::MAX), other.uid.clone()));
    for other in &lesser {
        snapshot.remove_pod(&other.uid);
    }
    let outcome = match rejection(snapshot, pod, node, nominated) {
        Some(verdict) => Err(verdict.reasons().to_vec()),
        None => Ok(reprieve(snapshot, pod, node, nominated, &lesser)),
    };
    for other in lesser {
        snapshot.add_pod(other);
    }
    outcome
}

fn reprieve(
    snapshot: &mut Snapshot,
    pod: &PodRow,
    node: &str,
    nominated: &Nominated,
    lesser: &[Arc<PodRow>],
) -> Vec<Arc<PodRow>> {
    let mut victims = Vec::new();
    for other in lesser {
        snapshot.add_pod(other.clone());
        if rejection(snapshot, pod, node, nominated).is_some() {
            snapshot.remove_pod(&other.uid);
            victims.push(other.clone());
        }
    }
    victims
}

fn rejection(snapshot: &Snapshot, pod: &PodRow, node: &str, nominated: &Nominated) -> Option<Verdict> {
    let filters = pre_filter(snapshot, pod);
    filter_with_nominated(&filters, pod, snapshot.node(node)?, nominated).map(|(_, verdict)| verdict)
}

/// Least important victims first, then the least of them, the fewest, the youngest; the name settles the rest.
fn cost(candidate: &Preemption) -> (i32, i64, usize, Reverse<Timestamp>, String) {
    let highest = candidate.victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
    // Priorities may be negative: shifted, so that more victims always weigh more.
    let sum = candidate.victims.iter().map(|victim| i64::from(victim.priority) + i64::from(i32::MAX) + 1).sum();
    let of_highest = candidate.victims.iter().filter(|victim| victim.priority == highest);
    let youngest = of_highest.filter_map(|victim| victim.started).min().unwrap_or(Timestamp::MAX);
    (highest, sum, candidate.victims.len(), Reverse(youngest), candidate.node.clone())
}
