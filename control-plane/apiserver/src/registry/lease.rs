//! The lease of objects that expire. Many share one, because a lease costs the store more than a key.

use std::time::Duration;

use corten_store::{Error, LeaseId, NO_LEASE, Store};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The longest time that a lease is given to new objects, its largest part of the time to live, and the most objects
/// of a lease; upstream's.
const REUSE: Duration = Duration::from_secs(60);
const REUSE_PERCENT: u32 = 5;
const MAX_OBJECTS: usize = 1000;

/// The lease that new objects get.
pub struct EventLease {
    ttl: Duration,
    present: Mutex<Present>,
}

struct Present {
    id: LeaseId,
    granted: Instant,
    objects: usize,
}

impl EventLease {
    pub fn new(ttl: Duration) -> EventLease {
        let present = Present { id: NO_LEASE, granted: Instant::now(), objects: 0 };
        EventLease { ttl, present: Mutex::new(present) }
    }

    /// Returns the time that a lease is given to new objects, and that it lives longer than each of them must.
    fn reuse(&self) -> Duration {
        REUSE.min(self.ttl * REUSE_PERCENT / 100)
    }

    /// Returns a lease for one more object.
    pub async fn get(&self, store: &dyn Store) -> Result<LeaseId, Error> {
        let mut present = self.present.lock().await;
        let is_usable =
            present.id != NO_LEASE && present.granted.elapsed() < self.reuse() && present.objects < MAX_OBJECTS;
        if !is_usable {
            let granted = Instant::now();
            let id = store.grant(self.ttl + self.reuse(), 0).await?;
            *present = Present { id, granted, objects: 0 };
        }
        present.objects += 1;
        Ok(present.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn objects_share_a_lease_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let store = corten_store::Embedded::open(corten_store::Config::new(dir.path())).unwrap();
        let lease = EventLease::new(Duration::from_secs(3600));
        let first = lease.get(&*store).await.unwrap();
        for _ in 1..MAX_OBJECTS {
            assert_eq!(lease.get(&*store).await.unwrap(), first);
        }
        let second = lease.get(&*store).await.unwrap();
        assert_ne!(second, first, "a lease has a thousand objects at most");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(lease.get(&*store).await.unwrap(), second);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_ne!(lease.get(&*store).await.unwrap(), second, "a lease is shared for a minute");
        assert_eq!(EventLease::new(Duration::from_secs(100)).reuse(), Duration::from_secs(5));
    }
}
