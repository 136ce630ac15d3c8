//! The leases: their deadlines and their keys. Pure data; the committer acts on it.
//!
//! Keeping a lease alive only moves its deadline. The schedule is a heap of deadlines that may be too early, never too
//! late: a lease that comes up before its deadline is put back.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use bytes::Bytes;

use crate::{Error, Event, EventKind, Lease, LeaseId, NO_LEASE};

#[derive(Debug, Default)]
pub struct Leases {
    table: HashMap<LeaseId, Granted>,
    schedule: BinaryHeap<Reverse<(Duration, LeaseId)>>,
}

#[derive(Debug)]
struct Granted {
    ttl: Duration,
    deadline: Duration,
    keys: BTreeSet<Bytes>,
    /// Whether its revocation is being written: from here on it can be neither kept alive nor used.
    ending: bool,
}

impl Leases {
    pub fn grant(&mut self, id: LeaseId, ttl: Duration, now: Duration) {
        let deadline = now.saturating_add(ttl);
        self.table.insert(id, Granted { ttl, deadline, keys: BTreeSet::new(), ending: false });
        self.schedule.push(Reverse((deadline, id)));
    }

    /// Reports whether the lease exists and is not being revoked.
    pub fn is_alive(&self, id: LeaseId) -> bool {
        self.alive(id).is_ok()
    }

    pub fn contains(&self, id: LeaseId) -> bool {
        self.table.contains_key(&id)
    }

    /// Returns the leases and their times to live, for a checkpoint.
    pub fn granted(&self) -> impl Iterator<Item = (LeaseId, Duration)> {
        self.table.iter().map(|(id, lease)| (*id, lease.ttl))
    }

    pub fn keep_alive(&mut self, id: LeaseId, now: Duration) -> Result<Duration, Error> {
        self.alive(id)?;
        let lease = self.table.get_mut(&id).ok_or(Error::LeaseNotFound(id))?;
        lease.deadline = now.saturating_add(lease.ttl);
        Ok(lease.ttl)
    }

    pub fn describe(&self, id: LeaseId, now: Duration) -> Result<Lease, Error> {
        let lease = self.alive(id)?;
        let remaining = lease.deadline.saturating_sub(now);
        Ok(Lease { id, ttl: lease.ttl, remaining, keys: lease.keys.iter().cloned().collect() })
    }

    fn alive(&self, id: LeaseId) -> Result<&Granted, Error> {
        self.table.get(&id).filter(|lease| !lease.ending).ok_or(Error::LeaseNotFound(id))
    }

    /// Marks a lease as ending and returns its keys; `None` if there is no such lease.
    pub fn begin_end(&mut self, id: LeaseId) -> Option<Vec<Bytes>> {
        let lease = self.table.get_mut(&id).filter(|lease| !lease.ending)?;
        lease.ending = true;
        Some(lease.keys.iter().cloned().collect())
    }

    /// Resumes a lease whose end could not be written; it ends at `retry` if it was due.
    pub fn abort_end(&mut self, id: LeaseId, retry: Duration) {
        if let Some(lease) = self.table.get_mut(&id) {
            lease.ending = false;
            self.schedule.push(Reverse((lease.deadline.max(retry), id)));
        }
    }

    /// Removes a lease whose end is durable.
    pub fn end(&mut self, id: LeaseId) {
        self.table.remove(&id);
    }

    /// Returns the time to check for due leases again; it may be early.
    pub fn next(&self) -> Option<Duration> {
        self.schedule.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the due leases in the order of their deadlines. Each is returned once; [`Leases::abort_end`] schedules
    /// it again.
    pub fn due(&mut self, now: Duration) -> Vec<LeaseId> {
        let mut due = Vec::new();
        while let Some(Reverse((at, id))) = self.schedule.peek().copied() {
            if at > now {
                break;
            }
            self.schedule.pop();
            match self.table.get(&id) {
                None => {}
                Some(lease) if lease.deadline > now => self.schedule.push(Reverse((lease.deadline, id))),
                Some(lease) => due.push((lease.deadline, id)),
            }
        }
        // The entry of a lease that was kept alive since is earlier than its deadline.
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// Updates the keys of leases for a change of a key.
    pub fn observe(&mut self, event: &Event) {
        let before = event.previous.as_ref().map_or(NO_LEASE, |entry| entry.lease);
        let after = if event.kind == EventKind::Put { event.entry.lease } else { NO_LEASE };
        if before == after {
            return;
        }
        if let Some(lease) = self.table.get_mut(&before) {
            lease.keys.remove(&event.entry.key);
        }
        self.attach(after, &event.entry.key);
    }

    pub fn attach(&mut self, id: LeaseId, key: &Bytes) {
        if let Some(lease) = self.table.get_mut(&id) {
            lease.keys.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_due_once_and_not_before_its_time() {
        let mut leases = Leases::default();
        leases.grant(1, at(10), at(0));
        leases.grant(2, at(20), at(0));
        assert_eq!(leases.next(), Some(at(10)));
        assert!(leases.due(at(9)).is_empty());
        assert_eq!(leases.due(at(10)), [1]);
        assert!(leases.due(at(11)).is_empty());
        assert_eq!(leases.due(at(30)), [2]);
    }

    #[test]
    fn a_lease_kept_alive_is_due_later() {
        let mut leases = Leases::default();
        leases.grant(1, at(10), at(0));
        assert_eq!(leases.keep_alive(1, at(8)).unwrap(), at(10));
        assert!(leases.due(at(10)).is_empty());
        assert_eq!(leases.next(), Some(at(18)));
        assert_eq!(leases.due(at(18)), [1]);
    }

    #[test]
    fn an_ending_lease_cannot_be_kept_alive_unless_its_end_fails() {
        let mut leases = Leases::default();
        leases.grant(1, at(10), at(0));
        assert_eq!(leases.due(at(10)), [1]);
        assert_eq!(leases.begin_end(1), Some(vec![]));
        assert_eq!(leases.begin_end(1), None);
        assert!(matches!(leases.keep_alive(1, at(10)), Err(Error::LeaseNotFound(1))));
        leases.abort_end(1, at(11));
        assert!(leases.due(at(10)).is_empty());
        assert_eq!(leases.due(at(11)), [1]);
        leases.end(1);
        assert!(!leases.contains(1));
    }
}
