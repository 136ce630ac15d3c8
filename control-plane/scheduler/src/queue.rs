//! Pods that wait to be placed: active ones in order, rejected ones until something changes, failed ones for a while.
//!
//! Time is an argument, so that a test can replay it. A pod is in exactly one of the places at a time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::framework::{ClusterEvent, Verdict};
use crate::plugins::{PLUGINS, by_name};
use crate::rows::PodRow;

const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// A rejected pod is tried again after this long even when nothing seems to have changed.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct Entry {
    pub pod: Arc<PodRow>,
    pub queued_at: Timestamp,
    pub attempts: u32,
    pub last_attempt: Timestamp,
    /// The plugins whose change of mind could help; empty after an error, which only time heals.
    pub rejected_by: Vec<&'static str>,
}

impl Entry {
    fn backoff_ends(&self) -> Timestamp {
        let doublings = self.attempts.saturating_sub(1).min(10);
        let backoff = (INITIAL_BACKOFF * 2u32.pow(doublings)).min(MAX_BACKOFF);
        self.last_attempt.checked_add(backoff).unwrap_or(Timestamp::MAX)
    }
}

#[derive(Default)]
pub struct Queue {
    active: VecDeque<Entry>,
    backoff: BTreeMap<(Timestamp, String), Entry>,
    unschedulable: HashMap<String, Entry>,
    gated: HashMap<String, Entry>,
}

impl Queue {
    /// A new pod, or a newer version of one that waits. A version that changed what matters is tried at once.
    pub fn add(&mut self, pod: Arc<PodRow>, now: Timestamp) -> Option<Verdict> {
        let known = self.remove(&pod.uid);
        let mut entry = known.map_or_else(|| new_entry(pod.clone(), now), |(entry, _)| entry);
        entry.pod = pod;
        self.enqueue(entry)
    }

    /// A newer version that changes nothing for scheduling stays where it is.
    pub fn refresh(&mut self, pod: &Arc<PodRow>) -> bool {
        for entry in self
            .active
            .iter_mut()
            .chain(self.backoff.values_mut())
            .chain(self.unschedulable.values_mut())
            .chain(self.gated.values_mut())
        {
            if entry.pod.uid == pod.uid {
                let same = same_demand(&entry.pod, pod);
                if same {
                    entry.pod = pod.clone();
                }
                return same;
            }
        }
        false
    }

    fn enqueue(&mut self, entry: Entry) -> Option<Verdict> {
        let gate =
            PLUGINS.iter().map(|(plugin, _)| plugin.pre_enqueue(&entry.pod)).find(|verdict| *verdict != Verdict::Fits);
        if let Some(verdict) = gate {
            self.gated.insert(entry.pod.uid.clone(), entry);
            return Some(verdict);
        }
        let at = self.active.partition_point(|other| order(other, &entry) != Ordering::Greater);
        self.active.insert(at, entry);
        None
    }

    /// Takes a pod out of wherever it waits; says whether it was active.
    pub fn remove(&mut self, uid: &str) -> Option<(Entry, bool)> {
        if let Some(at) = self.active.iter().position(|entry| entry.pod.uid == uid) {
            return self.active.remove(at).map(|entry| (entry, true));
        }
        if let Some(entry) = self.unschedulable.remove(uid).or_else(|| self.gated.remove(uid)) {
            return Some((entry, false));
        }
        let key = self.backoff.iter().find(|(_, entry)| entry.pod.uid == uid).map(|(key, _)| key.clone())?;
        self.backoff.remove(&key).map(|entry| (entry, false))
    }

    /// The next pod to try. With nothing active, a rejected pod that something woke need not sit out its backoff.
    pub fn pop(&mut self, now: Timestamp) -> Option<Entry> {
        self.release(now);
        let mut entry = match self.active.pop_front() {
            Some(entry) => entry,
            None => {
                let key =
                    self.backoff.iter().find(|(_, entry)| !entry.rejected_by.is_empty()).map(|(key, _)| key.clone())?;
                self.backoff.remove(&key)?
            }
        };
        entry.attempts += 1;
        entry.last_attempt = now;
        entry.rejected_by.clear();
        Some(entry)
    }

    /// Makes active what has waited long enough.
    fn release(&mut self, now: Timestamp) {
        while let Some(first) = self.backoff.first_entry() {
            if first.key().0 > now {
                break;
            }
            let entry = first.remove();
            self.enqueue(entry);
        }
        let overdue = |entry: &Entry| now.duration_since(entry.last_attempt).unsigned_abs() >= MAX_UNSCHEDULABLE;
        let stale: Vec<String> =
            self.unschedulable.iter().filter(|(_, entry)| overdue(entry)).map(|(uid, _)| uid.clone()).collect();
        for entry in stale.iter().filter_map(|uid| self.unschedulable.remove(uid)).collect::<Vec<_>>() {
            self.enqueue(entry);
        }
    }

    /// A pod that found no node, or whose placement failed (`rejected_by` is empty).
    pub fn put_back(&mut self, mut entry: Entry, rejected_by: Vec<&'static str>) {
        entry.rejected_by = rejected_by;
        match entry.rejected_by.is_empty() {
            true => self.back_off(entry),
            false => {
                self.unschedulable.insert(entry.pod.uid.clone(), entry);
            }
        }
    }

    fn back_off(&mut self, entry: Entry) {
        self.backoff.insert((entry.backoff_ends(), entry.pod.uid.clone()), entry);
    }

    /// Wakes every rejected pod that the event may help.
    pub fn wake(&mut self, event: ClusterEvent, now: Timestamp) {
        if self.unschedulable.is_empty() {
            return;
        }
        let helped =
            |entry: &Entry| entry.rejected_by.iter().any(|name| by_name(name).is_none_or(|plugin| plugin.wakes(event)));
        let woken: Vec<String> =
            self.unschedulable.iter().filter(|(_, entry)| helped(entry)).map(|(uid, _)| uid.clone()).collect();
        for entry in woken.iter().filter_map(|uid| self.unschedulable.remove(uid)).collect::<Vec<_>>() {
            match entry.backoff_ends() <= now {
                true => drop(self.enqueue(entry)),
                false => self.back_off(entry),
            }
        }
    }

    /// When there is something to do although nothing happens.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.unschedulable.values().map(|entry| entry.last_attempt).min();
        let stale = stale.and_then(|at| at.checked_add(MAX_UNSCHEDULABLE).ok());
        backoff.into_iter().chain(stale).min()
    }

    #[cfg(test)]
    fn places(&self) -> (usize, usize, usize, usize) {
        (self.active.len(), self.backoff.len(), self.unschedulable.len(), self.gated.len())
    }
}

fn new_entry(pod: Arc<PodRow>, now: Timestamp) -> Entry {
    Entry { pod, queued_at: now, attempts: 0, last_attempt: now, rejected_by: Vec::new() }
}

fn order(a: &Entry, b: &Entry) -> Ordering {
    PLUGINS.iter().find_map(|(plugin, _)| plugin.order(a, b)).unwrap_or(Ordering::Equal)
}

/// Whether two versions of a pod ask for the same: a status update must not count as news.
fn same_demand(a: &PodRow, b: &PodRow) -> bool {
    a.labels == b.labels
        && a.gates == b.gates
        && a.requests == b.requests
        && a.tolerations == b.tolerations
        && a.node_selector == b.node_selector
        && a.affinity == b.affinity
        && a.priority == b.priority
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::pod;
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn row(name: &str, priority: i32) -> Arc<PodRow> {
        Arc::new(pod(name, json!({"priority": priority, "containers": []})))
    }

    #[test]
    fn important_pods_go_first_and_equals_in_order() {
        let mut queue = Queue::default();
        for (second, (name, priority)) in [("a", 0), ("b", 0), ("c", 10)].into_iter().enumerate() {
            queue.add(row(name, priority), at(second as i64));
        }
        let order: Vec<String> = std::iter::from_fn(|| queue.pop(at(9))).map(|entry| entry.pod.uid.clone()).collect();
        assert_eq!(order, ["c", "a", "b"]);
    }

    #[test]
    fn a_rejected_pod_waits_for_an_event_that_helps() {
        let mut queue = Queue::default();
        queue.add(row("a", 0), at(0));
        let entry = queue.pop(at(0)).unwrap();
        queue.put_back(entry, vec!["NodeResourcesFit"]);
        assert!(queue.pop(at(100)).is_none());
        queue.wake(ClusterEvent::PodPlaced, at(100));
        assert!(queue.pop(at(100)).is_none());
        queue.wake(ClusterEvent::NodeAdded, at(100));
        assert!(queue.pop(at(100)).is_some());
    }

    #[test]
    fn a_woken_pod_in_backoff_is_tried_when_nothing_else_is() {
        let mut queue = Queue::default();
        queue.add(row("a", 0), at(0));
        let entry = queue.pop(at(0)).unwrap();
        queue.put_back(entry, vec!["NodeResourcesFit"]);
        queue.wake(ClusterEvent::NodeAdded, at(0));
        assert_eq!(queue.places(), (0, 1, 0, 0));
        assert!(queue.pop(at(0)).is_some());
    }

    #[test]
    fn an_error_backs_off_and_doubles() {
        let mut queue = Queue::default();
        queue.add(row("a", 0), at(0));
        let entry = queue.pop(at(0)).unwrap();
        queue.put_back(entry, vec![]);
        assert!(queue.pop(at(0)).is_none());
        assert_eq!(queue.next_deadline(), Some(at(1)));
        let entry = queue.pop(at(1)).unwrap();
        queue.put_back(entry, vec![]);
        assert_eq!(queue.next_deadline(), Some(at(3)));
    }

    #[test]
    fn a_gated_pod_waits_for_its_gates_to_go() {
        let mut queue = Queue::default();
        let gated = Arc::new(pod("a", json!({"schedulingGates": [{"name": "g"}], "containers": []})));
        assert!(queue.add(gated, at(0)).is_some());
        assert!(queue.pop(at(1000)).is_none());
        queue.add(row("a", 0), at(0));
        assert!(queue.pop(at(1000)).is_some());
    }

    #[test]
    fn a_forgotten_pod_is_tried_after_five_minutes() {
        let mut queue = Queue::default();
        queue.add(row("a", 0), at(0));
        let entry = queue.pop(at(0)).unwrap();
        queue.put_back(entry, vec!["NodeName"]);
        assert_eq!(queue.next_deadline(), Some(at(300)));
        assert!(queue.pop(at(300)).is_some());
    }
}
