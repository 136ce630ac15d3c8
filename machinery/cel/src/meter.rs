//! The cost of an evaluation so far, in upstream's units, and its actual work.
//!
//! Kubernetes specifies the cost, and some operations are cheap in it that are not cheap to execute (concatenating long
//! lists, comparing deep objects). Work is counted separately, so that no expression runs long or takes much memory.

use crate::error::Error;

/// The cost limit of one evaluation.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// The most values or characters that one evaluation may touch.
const WORK_LIMIT: u64 = 40_000_000;

#[derive(Debug)]
pub struct Meter {
    pub cost: u64,
    limit: u64,
    work: u64,
}

impl Meter {
    pub fn new(limit: u64) -> Meter {
        Meter { cost: 0, limit, work: 0 }
    }

    pub fn charge(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Error::CostLimit) } else { Ok(()) }
    }

    /// Counts work before it is done.
    pub fn work(&mut self, steps: u64) -> Result<(), Error> {
        self.work = self.work.saturating_add(steps);
        if self.work > WORK_LIMIT { Err(Error::CostLimit) } else { Ok(()) }
    }
}
