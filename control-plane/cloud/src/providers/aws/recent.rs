//! The load balancers and routes that were changed a moment ago.
//!
//! Services that are reconciled together share the lists of load balancers, target groups, subnets and security groups,
//! and nodes those of route tables. A list that is some seconds old lacks only the changes of others, and those of this
//! process to the same load balancer or route, for which this remembers that it must be asked anew.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::super::batch::HELD;

/// The moments at which load balancers and routes were last reconciled, by their names and CIDRs.
#[derive(Default)]
pub struct Recent(Mutex<BTreeMap<String, Instant>>);

impl Recent {
    /// Returns the moment at which a list that shows a load balancer or route may have been asked for at the earliest.
    pub fn since(&self, name: &str) -> Instant {
        let now = Instant::now();
        match self.lock().contains_key(name) {
            true => now,
            false => now.checked_sub(HELD).unwrap_or(now),
        }
    }

    /// Notes that a load balancer or route may have been changed.
    pub fn note(&self, name: &str) {
        let mut all = self.lock();
        all.retain(|_, noted| noted.elapsed() <= HELD);
        all.insert(name.to_owned(), Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_that_was_changed_is_asked_for_anew() {
        let recent = Recent::default();
        tokio::time::advance(Duration::from_secs(60)).await;
        let now = Instant::now();
        assert_eq!(recent.since("a"), now - HELD);
        recent.note("a");
        assert_eq!((recent.since("a"), recent.since("b")), (now, now - HELD));
        tokio::time::advance(HELD + Duration::from_secs(1)).await;
        recent.note("b");
        assert_eq!(recent.since("a"), Instant::now() - HELD);
    }
}
