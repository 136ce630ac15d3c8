//! What an evaluation has cost so far, in upstream's units, and how much work it really was.
//!
//! Cost is what Kubernetes promises to count, and some things are cheap in it that are not cheap to do (adding two
//! long lists, comparing deep objects). Work is counted beside it, so that no expression runs for long or takes much
//! memory whatever it is made of.

use crate::error::Error;

/// The most that one evaluation may cost.
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
    pub fn work(&mut self, amount: u64) -> Result<(), Error> {
        self.work = self.work.saturating_add(amount);
        if self.work > WORK_LIMIT { Err(Error::CostLimit) } else { Ok(()) }
    }
}
