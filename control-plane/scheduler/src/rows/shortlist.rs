//! The nodes that can be feasible, for pods that most nodes reject.
//!
//! For a pod that requires one zone of ten, every plugin would filter the nodes of the other nine. Plugins that know
//! such nodes by a standing set or count remove them first, at the cost of one comparison each. Invariant: a plugin
//! removes only nodes that its filter rejects.

#[derive(Default)]
pub struct Shortlist {
    slots: usize,
    /// By slot; empty while all nodes are on the list.
    on: Vec<bool>,
}

impl Shortlist {
    /// Makes a list of all nodes.
    pub fn new(slots: usize) -> Shortlist {
        Shortlist { slots, on: Vec::new() }
    }

    /// Reports whether no node has been removed.
    pub fn is_complete(&self) -> bool {
        self.on.is_empty()
    }

    pub fn contains(&self, slot: usize) -> bool {
        self.on.get(slot).copied().unwrap_or(true)
    }

    /// Removes the nodes for which `keep` returns false.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        if self.on.is_empty() {
            self.on.resize(self.slots, true);
        }
        for (slot, on) in self.on.iter_mut().enumerate() {
            *on = *on && keep(slot);
        }
    }
}
