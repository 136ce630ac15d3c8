//! DefaultPreemption: makes room by evicting pods of lesser priority. The search is `preemption`; this holds its bounds.

use crate::framework::{Limits, Plugin, Point};

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
