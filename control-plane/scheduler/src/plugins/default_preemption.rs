//! DefaultPreemption: makes room by evicting pods of lesser priority. The search is `preemption`; this holds its bounds.

use crate::framework::{Plugin, Point};

/// How many nodes are looked at before the best of them is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub percentage: usize,
    pub absolute: usize,
}

impl Limits {
    pub fn candidates(self, nodes: usize) -> usize {
        (nodes * self.percentage / 100).max(self.absolute).min(nodes)
    }
}

pub struct DefaultPreemption(pub Limits);

impl Default for DefaultPreemption {
    fn default() -> DefaultPreemption {
        DefaultPreemption(Limits { percentage: 10, absolute: 100 })
    }
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PostFilter]
    }

    fn preemption(&self) -> Option<Limits> {
        Some(self.0)
    }
}
