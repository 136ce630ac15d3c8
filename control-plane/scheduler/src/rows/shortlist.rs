//! The nodes that are worth a look, for pods that most nodes are out of the question for.
//!
//! A pod that must go to one zone of ten would have every plugin judge the nodes of the other nine. Plugins that know
//! such nodes by a standing set or count strike them off first, with one look at a number each.
//! Invariant: only nodes are struck off that the plugin's filter refuses.

#[derive(Default)]
pub struct Shortlist {
    slots: usize,
    /// By slot; empty as long as all are on it.
    on: Vec<bool>,
}

impl Shortlist {
    /// With all nodes of so many slots.
    pub fn new(slots: usize) -> Shortlist {
        Shortlist { slots, on: Vec::new() }
    }

    /// Whether nobody has struck off anything.
    pub fn is_whole(&self) -> bool {
        self.on.is_empty()
    }

    pub fn contains(&self, slot: usize) -> bool {
        self.on.get(slot).copied().unwrap_or(true)
    }

    /// Strikes off the nodes of which this is not true.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        if self.on.is_empty() {
            self.on.resize(self.slots, true);
        }
        for (slot, on) in self.on.iter_mut().enumerate() {
            *on = *on && keep(slot);
        }
    }
}
