//! Standing sets of nodes: those that a node selector matches, or whose taints are tolerated. Computed once for all
//! equal pods, and updated node by node.

use std::collections::HashMap;
use std::sync::Arc;

use super::demand::{NodeDemand, Tolerations};
use super::node::NodeRow;
use super::shortlist::Shortlist;

const MOST_SETS: usize = 256;

/// The condition for the nodes of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeQuery {
    Selected(Arc<NodeDemand>),
    Tolerated(Tolerations),
}

impl NodeQuery {
    fn means(&self, node: &NodeRow) -> bool {
        node.known
            && match self {
                NodeQuery::Selected(demand) => demand.selects(node),
                NodeQuery::Tolerated(tolerations) => tolerations.admit(node),
            }
    }
}

struct Set {
    query: NodeQuery,
    bits: Vec<u64>,
    len: usize,
}

impl Set {
    fn put(&mut self, slot: usize, belongs: bool) {
        let (word, bit) = (slot / 64, 1u64 << (slot % 64));
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        match ((self.bits[word] & bit) != 0, belongs) {
            (false, true) => {
                self.bits[word] |= bit;
                self.len += 1;
            }
            (true, false) => {
                self.bits[word] &= !bit;
                self.len -= 1;
            }
            _ => {}
        }
    }
}

#[derive(Default)]
pub struct NodeSets {
    sets: Vec<Set>,
    by_query: HashMap<NodeQuery, usize>,
}

impl NodeSets {
    /// Starts a new scheduling cycle: earlier numbers are void.
    pub fn begin(&mut self) {
        if self.sets.len() > MOST_SETS {
            *self = NodeSets::default();
        }
    }

    pub fn set(&mut self, query: NodeQuery, nodes: &[NodeRow]) -> usize {
        if let Some(known) = self.by_query.get(&query) {
            return *known;
        }
        let mut set = Set { query: query.clone(), bits: Vec::new(), len: 0 };
        nodes.iter().for_each(|node| set.put(node.slot, query.means(node)));
        self.sets.push(set);
        self.by_query.insert(query, self.sets.len() - 1);
        self.sets.len() - 1
    }

    pub fn contains(&self, set: usize, slot: usize) -> bool {
        self.sets[set].bits.get(slot / 64).is_some_and(|word| word & (1 << (slot % 64)) != 0)
    }

    pub fn len(&self, set: usize) -> usize {
        self.sets[set].len
    }

    /// Removes the nodes that are not in the set, unless it contains most nodes.
    pub fn shorten(&self, set: usize, nodes: usize, list: &mut Shortlist) {
        if self.len(set) * 2 < nodes {
            list.retain(|slot| self.contains(set, slot));
        }
    }

    pub fn node_changed(&mut self, node: &NodeRow) {
        for set in &mut self.sets {
            let belongs = set.query.means(node);
            set.put(node.slot, belongs);
        }
    }
}
