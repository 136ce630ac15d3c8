//! The load balancers and routes that were changed a moment ago.
//!
//! Services that are reconciled together share the lists of load balancers, target groups, subnets and security groups,
//! and nodes those of route tables. A list that is up to a minute old lacks only the changes of others, and those of this
//! process to the same load balancer or route, for which this remembers that it must be asked anew.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant};

use super::super::batch::HELD;

/// The time for which the tags of a load balancer or target group are held. Those of all that a comparison of many Services
/// needs are asked for once.
pub const TAGS_HELD: Duration = Duration::from_secs(300);

/// The moments at which answers may have been asked for at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    pub lists: Instant,
    pub tags: Instant,
}

impl Since {
    /// Permits no older answer.
    pub fn now() -> Since {
        let now = Instant::now();
        Since { lists: now, tags: now }
    }

    /// Permits the answers that are held.
    pub fn held() -> Since {
        let now = Instant::now();
        let before = |held| now.checked_sub(held).unwrap_or(now);
        Since { lists: before(HELD), tags: before(TAGS_HELD) }
    }
}

/// The moments at which load balancers and routes were last reconciled, by their names and CIDRs.
#[derive(Default)]
pub struct Recent(Mutex<BTreeMap<String, Instant>>);

impl Recent {
    /// Returns the moments at which answers about a load balancer or route may have been asked for at the earliest.
    pub fn since(&self, name: &str) -> Since {
        if self.lock().contains_key(name) { Since::now() } else { Since::held() }
    }

    /// Forgets all.
    pub fn clear(&self) {
        self.lock().clear();
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_that_was_changed_is_asked_for_anew() {
        let recent = Recent::default();
        tokio::time::advance(TAGS_HELD * 2).await;
        let now = Instant::now();
        let held = Since { lists: now - HELD, tags: now - TAGS_HELD };
        assert_eq!(recent.since("a"), held);
        recent.note("a");
        assert_eq!((recent.since("a"), recent.since("b")), (Since::now(), held));
        tokio::time::advance(HELD + Duration::from_secs(1)).await;
        recent.note("b");
        assert_eq!(recent.since("a"), Since::held());
    }
}
