//! DefaultPreemption: makes room by evicting pods of lower priority. `preemption` has the search; this holds its
//! limits.

use crate::framework::{Limits, Plugin};

pub struct DefaultPreemption(pub Limits);

impl Default for DefaultPreemption {
    fn default() -> DefaultPreemption {
        DefaultPreemption(Limits { percentage: 10, absolute: 100 })
    }
}

impl Plugin for DefaultPreemption {
    fn preemption(&self) -> Option<Limits> {
        Some(self.0)
    }
}
