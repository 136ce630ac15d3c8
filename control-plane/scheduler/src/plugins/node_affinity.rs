//! NodeAffinity: the nodes that a pod requires or prefers by label or name, and those that a profile adds.

use corten_api::k8s_openapi::api::core::v1::{NodeAffinity as Affinity, PreferredSchedulingTerm};
use corten_api::placement::node_term_matches;

use crate::framework::{ClusterEvent, Plugin, PreFilter, PreScore, State, Verdict, normalize, state};
use crate::rows::demand::NodeDemand;
use crate::rows::node_sets::NodeQuery;
use crate::rows::shortlist::Shortlist;
use crate::rows::{NodeRow, PodRow, Snapshot};

/// The NodeAffinity plugin.
#[derive(Default)]
pub struct NodeAffinity {
    added: NodeDemand,
    added_preferences: Vec<PreferredSchedulingTerm>,
}

impl NodeAffinity {
    pub fn with_added(added: Option<Affinity>) -> NodeAffinity {
        let Some(added) = added else { return NodeAffinity::default() };
        let required = added.required_during_scheduling_ignored_during_execution;
        NodeAffinity {
            added: NodeDemand {
                required: required.map(|selector| selector.node_selector_terms),
                ..NodeDemand::default()
            },
            added_preferences: added.preferred_during_scheduling_ignored_during_execution.unwrap_or_default(),
        }
    }

    fn preferences<'a>(&'a self, pod: &'a PodRow) -> impl Iterator<Item = &'a PreferredSchedulingTerm> {
        self.added_preferences.iter().chain(&pod.demand.preferred_nodes)
    }
}

/// The lookup of the matching nodes.
enum Meant {
    Set(usize),
    /// Few enough to check each.
    Ask,
}

impl Plugin for NodeAffinity {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        let demand = &pod.nodes;
        if demand.is_empty() && self.added.is_empty() {
            return PreFilter::Skip;
        }
        if let Some(names) = demand.names() {
            if names.is_empty() {
                return PreFilter::Reject(Verdict::unresolvable("pod affinity terms conflict"));
            }
            let slots = names.into_iter().filter_map(|name| snapshot.find(name)).map(|node| node.slot).collect();
            return PreFilter::Only(Box::new(Meant::Ask), slots);
        }
        PreFilter::Continue(Box::new(Meant::Set(snapshot.node_set(NodeQuery::Selected(demand.clone())))))
    }

    fn filter(&self, meant: &State, pod: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        if !self.added.is_empty() && !self.added.selects(node) {
            return Verdict::unresolvable("node(s) didn't match scheduler-enforced node affinity");
        }
        let selected = match state::<Meant>(meant) {
            Some(Meant::Set(set)) => snapshot.sets().contains(*set, node.slot),
            _ => pod.nodes.selects(node),
        };
        match selected {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) didn't match Pod's node affinity/selector"),
        }
    }

    fn surely_fits(&self, meant: &State, _: &PodRow, slot: usize, snapshot: &Snapshot) -> bool {
        let in_set = |set: usize| snapshot.sets().contains(set, slot);
        self.added.is_empty() && matches!(state::<Meant>(meant), Some(Meant::Set(set)) if in_set(*set))
    }

    fn shorten(&self, meant: &State, snapshot: &Snapshot, list: &mut Shortlist) {
        if let Some(Meant::Set(set)) = state::<Meant>(meant) {
            snapshot.sets().shorten(*set, snapshot.len(), list);
        }
    }

    fn pre_score(&self, pod: &PodRow, _: &mut Snapshot, _: &[usize]) -> PreScore {
        if self.preferences(pod).next().is_some() { PreScore::Ready(Box::new(())) } else { PreScore::Skip }
    }

    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> i64 {
        let matching = |term: &&PreferredSchedulingTerm| {
            term.weight != 0 && node_term_matches(&term.preference, &node.name, &node.labels)
        };
        self.preferences(pod).filter(matching).map(|term| i64::from(term.weight)).sum()
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        normalize(scores, false);
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        let selects = |node: &NodeRow| (self.added.is_empty() || self.added.selects(node)) && pod.nodes.selects(node);
        match event {
            ClusterEvent::NodeAdded(node) => selects(node),
            ClusterEvent::NodeUpdated(node, change) => change.labels && selects(node),
            _ => false,
        }
    }
}
