//! The scheduling queue: active pods in order, unschedulable pods until an event helps, failed pods during their
//! backoff.
//!
//! Time is an argument, so that a test can replay it. Invariant: a pod is in at most one queue at a time. Unschedulable
//! pods with the same demand are handled as one: a queueing hint is called once for all replicas.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::framework::{ClusterEvent, Point, Verdict};
use crate::metrics::{self, Metrics};
use crate::profile::Profile;
pub use crate::queue_entry::Entry;
use crate::rows::{PodRow, Snapshot};

/// The time after which an unschedulable pod is tried again even without an event.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);

/// The event that moves an updated pod.
const UPDATED: &str = "UnschedulablePodUpdate";

pub type Profiles = HashMap<String, Arc<Profile>>;

/// The queue that a pod is in.
enum QueuedIn {
    Active(Rank),
    Backoff(Timestamp),
    Unschedulable(Alike),
    Gated,
}

/// The order of the active queue; arrival decides ties.
type Rank = ((i64, i128), u64);

/// The properties by which rejected pods are equal for every event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Alike {
    demand: usize,
    nodes: usize,
    class: usize,
    priority: i32,
    nominated: String,
    rejected_by: Vec<&'static str>,
}

impl Alike {
    fn of(entry: &Entry) -> Alike {
        Alike {
            demand: Arc::as_ptr(&entry.pod.demand) as usize,
            nodes: Arc::as_ptr(&entry.pod.nodes) as usize,
            class: entry.pod.class.id,
            priority: entry.pod.priority,
            nominated: entry.pod.nominated.clone(),
            rejected_by: entry.rejected_by.clone(),
        }
    }
}

pub struct Queue {
    profiles: Arc<Profiles>,
    initial_backoff: Duration,
    max_backoff: Duration,
    queued_in: HashMap<Arc<str>, QueuedIn>,
    active: BTreeMap<Rank, Entry>,
    backoff: BTreeMap<(Timestamp, Arc<str>), Entry>,
    unschedulable: HashMap<Alike, HashMap<Arc<str>, Entry>>,
    /// Unschedulable pods that wait for room on a node, by its name.
    waiting_for_node: HashMap<String, BTreeSet<Arc<str>>>,
    /// Unschedulable pods by the time of their last attempt.
    stale: BTreeSet<(Timestamp, Arc<str>)>,
    gated: HashMap<Arc<str>, Entry>,
    arrivals: u64,
    metrics: Arc<Metrics>,
}

impl Queue {
    pub fn new(
        profiles: Arc<Profiles>,
        initial_backoff: Duration,
        max_backoff: Duration,
        metrics: Arc<Metrics>,
    ) -> Queue {
        Queue {
            profiles,
            metrics,
            initial_backoff,
            max_backoff,
            queued_in: HashMap::new(),
            active: BTreeMap::new(),
            backoff: BTreeMap::new(),
            unschedulable: HashMap::new(),
            waiting_for_node: HashMap::new(),
            stale: BTreeSet::new(),
            gated: HashMap::new(),
            arrivals: 0,
        }
    }

    #[cfg(test)]
    pub fn contains(&self, uid: &str) -> bool {
        self.queued_in.contains_key(uid)
    }

    /// Returns a pod in any of the queues.
    pub fn get(&self, uid: &str) -> Option<&Arc<PodRow>> {
        let (uid, queue) = self.queued_in.get_key_value(uid)?;
        let entry = match queue {
            QueuedIn::Active(rank) => self.active.get(rank),
            QueuedIn::Backoff(until) => self.backoff.get(&(*until, uid.clone())),
            QueuedIn::Gated => self.gated.get(uid),
            QueuedIn::Unschedulable(alike) => self.unschedulable.get(alike)?.get(uid),
        };
        entry.map(|entry| &entry.pod)
    }

    fn profile(&self, pod: &PodRow) -> Option<&Profile> {
        self.profiles.get(&pod.demand.scheduler_name).map(|profile| &**profile)
    }

    fn backoff_ends(&self, entry: &Entry) -> Timestamp {
        let doublings = entry.attempts.saturating_sub(1).min(20);
        let backoff = self.initial_backoff.saturating_mul(1 << doublings).min(self.max_backoff);
        entry.last_attempt.checked_add(backoff).unwrap_or(Timestamp::MAX)
    }

    /// Adds a new pod, or updates one. If its demand changed it is tried at once; otherwise it stays in its queue.
    /// Returns the verdict of a gate that the pod did not have before.
    pub fn add(&mut self, pod: Arc<PodRow>, now: Timestamp) -> Option<Verdict> {
        let asleep = matches!(self.queued_in.get(&pod.uid), Some(QueuedIn::Unschedulable(_)));
        let backing_off = matches!(self.queued_in.get(&pod.uid), Some(QueuedIn::Backoff(_)));
        let Some(mut entry) = self.remove(&pod.uid) else {
            return self.enqueue(Entry::new(pod, now), metrics::ADDED);
        };
        let news = !same_demand(&entry.pod, &pod);
        entry.pod = pod;
        // A pod that an event woke stays active, whatever is written into its status.
        match (asleep, backing_off) {
            (true, _) if !news => self.shelve(entry, UPDATED),
            (_, true) if !news => self.back_off(entry, UPDATED),
            _ => return self.enqueue(entry, UPDATED),
        }
        None
    }

    fn enqueue(&mut self, mut entry: Entry, event: &'static str) -> Option<Verdict> {
        let profile = self.profile(&entry.pod);
        let gates = profile.into_iter().flat_map(|profile| profile.at(Point::PreEnqueue));
        let mut verdicts = gates.map(|plugin| (plugin.name, plugin.pre_enqueue(&entry.pod)));
        let closed = verdicts.find(|(_, verdict)| !verdict.fits());
        drop(verdicts);
        let sorter = profile.and_then(|profile| profile.at(Point::QueueSort).next());
        let rank = (sorter.map(|plugin| plugin.rank(&entry)).unwrap_or_default(), self.arrivals);
        if let Some((gate, verdict)) = closed {
            entry.rejected_by = vec![gate];
            self.metrics.incoming("unschedulable", event);
            self.metrics.rejected(&entry.pod.demand.scheduler_name, &entry.rejected_by, true);
            self.queued_in.insert(entry.pod.uid.clone(), QueuedIn::Gated);
            self.gated.insert(entry.pod.uid.clone(), entry);
            return Some(verdict);
        }
        self.arrivals += 1;
        self.metrics.incoming("active", event);
        self.queued_in.insert(entry.pod.uid.clone(), QueuedIn::Active(rank));
        self.active.insert(rank, entry);
        None
    }

    /// Removes a pod from its queue.
    pub fn remove(&mut self, uid: &str) -> Option<Entry> {
        let (uid, queue) = self.queued_in.remove_entry(uid)?;
        match queue {
            QueuedIn::Active(rank) => self.active.remove(&rank),
            QueuedIn::Backoff(until) => self.backoff.remove(&(until, uid)),
            QueuedIn::Gated => self.gated.remove(&uid).map(|mut entry| {
                self.metrics.rejected(&entry.pod.demand.scheduler_name, &entry.rejected_by, false);
                entry.rejected_by.clear();
                entry
            }),
            QueuedIn::Unschedulable(alike) => self.unshelve(&alike, &uid),
        }
    }

    fn shelve(&mut self, entry: Entry, event: &'static str) {
        self.metrics.incoming("unschedulable", event);
        self.metrics.rejected(&entry.pod.demand.scheduler_name, &entry.rejected_by, true);
        let (uid, alike) = (entry.pod.uid.clone(), Alike::of(&entry));
        self.stale.insert((entry.last_attempt, uid.clone()));
        if !entry.pod.nominated.is_empty() {
            self.waiting_for_node.entry(entry.pod.nominated.clone()).or_default().insert(uid.clone());
        }
        self.queued_in.insert(uid.clone(), QueuedIn::Unschedulable(alike.clone()));
        self.unschedulable.entry(alike).or_default().insert(uid, entry);
    }

    fn unshelve(&mut self, alike: &Alike, uid: &Arc<str>) -> Option<Entry> {
        let pods = self.unschedulable.get_mut(alike)?;
        let entry = pods.remove(uid)?;
        if pods.is_empty() {
            self.unschedulable.remove(alike);
        }
        self.stale.remove(&(entry.last_attempt, uid.clone()));
        self.metrics.rejected(&entry.pod.demand.scheduler_name, &entry.rejected_by, false);
        if let Some(waiting) = self.waiting_for_node.get_mut(&alike.nominated) {
            waiting.remove(uid);
            if waiting.is_empty() {
                self.waiting_for_node.remove(&alike.nominated);
            }
        }
        Some(entry)
    }

    /// Returns the next pod to try. If no pod is active, a woken pod need not wait for its backoff.
    pub fn pop(&mut self, now: Timestamp) -> Option<Entry> {
        self.release(now);
        let mut entry = match self.active.pop_first() {
            Some((_, entry)) => entry,
            None => {
                let woken = self.backoff.iter().find(|(_, entry)| !entry.rejected_by.is_empty());
                let key = woken.map(|(key, _)| key.clone())?;
                self.metrics.incoming("active", "PopFromBackoffQ");
                self.backoff.remove(&key)?
            }
        };
        self.queued_in.remove(&entry.pod.uid);
        entry.attempts += 1;
        entry.first_attempt.get_or_insert(now);
        entry.last_attempt = now;
        entry.rejected_by.clear();
        Some(entry)
    }

    /// Moves pods whose waiting time is over to the active queue.
    fn release(&mut self, now: Timestamp) {
        while let Some(first) = self.backoff.first_entry() {
            if first.key().0 > now {
                break;
            }
            let entry = first.remove();
            self.enqueue(entry, "BackoffComplete");
        }
        while let Some((at, uid)) = self.stale.first().cloned() {
            if now.duration_since(at).unsigned_abs() < MAX_UNSCHEDULABLE || now < at {
                break;
            }
            match self.remove(&uid) {
                Some(entry) => drop(self.enqueue(Entry { flushed: true, ..entry }, "UnschedulableTimeout")),
                None => drop(self.stale.pop_first()),
            }
        }
    }

    /// Adds a pod that is unschedulable, or whose binding failed (`rejected_by` is empty).
    pub fn put_back(&mut self, mut entry: Entry, rejected_by: Vec<&'static str>) {
        entry.rejected_by = rejected_by;
        match entry.rejected_by.is_empty() {
            true => self.back_off(entry, "ScheduleAttemptFailure"),
            false => self.shelve(entry, "ScheduleAttemptFailure"),
        }
    }

    /// Makes a pod active that was removed, whatever it waited for.
    pub fn activate(&mut self, entry: Entry) {
        self.enqueue(entry, "ForceActivate");
    }

    fn back_off(&mut self, entry: Entry, event: &'static str) {
        self.metrics.incoming("backoff", event);
        let until = self.backoff_ends(&entry);
        self.queued_in.insert(entry.pod.uid.clone(), QueuedIn::Backoff(until));
        self.backoff.insert((until, entry.pod.uid.clone()), entry);
    }

    /// Wakes every unschedulable pod that the event may help.
    pub fn wake(&mut self, event: &ClusterEvent<'_>, snapshot: &Snapshot, now: Timestamp) {
        if self.unschedulable.is_empty() {
            return;
        }
        let mut woken: Vec<Arc<str>> = Vec::new();
        match event {
            // A pod with a nominated node is not affected by pods on other nodes.
            ClusterEvent::PodPlaced(pod) | ClusterEvent::PodRemoved(pod) | ClusterEvent::PodUpdated(_, pod) => {
                let there = self.waiting_for_node.get(&pod.node_name).into_iter().flatten();
                let queued_in = there.filter_map(|uid| self.queued_in.get(uid).map(|queue| (uid, queue)));
                for (uid, queue) in queued_in {
                    let QueuedIn::Unschedulable(alike) = queue else { continue };
                    if self
                        .unschedulable
                        .get(alike)
                        .and_then(|pods| pods.get(uid))
                        .is_some_and(|entry| self.helps(event, entry, snapshot))
                    {
                        woken.push(uid.clone());
                    }
                }
                let free = self.unschedulable.iter().filter(|(alike, _)| alike.nominated.is_empty());
                woken.extend(self.helped(free, event, snapshot));
            }
            _ => woken.extend(self.helped(self.unschedulable.iter(), event, snapshot)),
        }
        // Groups are found by addresses, whose order differs from process to process.
        woken.sort_unstable();
        for uid in woken {
            let Some(entry) = self.remove(&uid) else { continue };
            let entry = Entry { flushed: false, ..entry };
            match self.backoff_ends(&entry) <= now {
                true => drop(self.enqueue(entry, event.label())),
                false => self.back_off(entry, event.label()),
            }
        }
    }

    /// Returns the pods that the event may help; one of each group of equal pods is checked.
    fn helped<'a>(
        &self,
        kinds: impl Iterator<Item = (&'a Alike, &'a HashMap<Arc<str>, Entry>)>,
        event: &ClusterEvent<'_>,
        snapshot: &Snapshot,
    ) -> Vec<Arc<str>> {
        let helped = |pods: &HashMap<Arc<str>, Entry>| {
            pods.values().next().is_some_and(|entry| self.helps(event, entry, snapshot))
        };
        kinds.filter(|(_, pods)| helped(pods)).flat_map(|(_, pods)| pods.keys().cloned()).collect()
    }

    fn helps(&self, event: &ClusterEvent<'_>, entry: &Entry, snapshot: &Snapshot) -> bool {
        let Some(profile) = self.profile(&entry.pod) else { return false };
        let wakes =
            |name: &&'static str| profile.plugin(name).is_none_or(|plugin| plugin.wakes(&entry.pod, event, snapshot));
        entry.rejected_by.iter().any(wakes)
    }

    /// Returns when the queue has work although no event happens.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.stale.first().and_then(|(at, _)| at.checked_add(MAX_UNSCHEDULABLE).ok());
        backoff.into_iter().chain(stale).min()
    }

    /// Returns the numbers of active, backoff, unschedulable and gated pods.
    pub fn lengths(&self) -> [usize; 4] {
        [self.active.len(), self.backoff.len(), self.stale.len(), self.gated.len()]
    }
}

/// Reports whether two versions of a pod have the same demand: a status update must not wake it.
fn same_demand(a: &PodRow, b: &PodRow) -> bool {
    let same_nodes = Arc::ptr_eq(&a.nodes, &b.nodes) || a.nodes == b.nodes;
    let same_demand = Arc::ptr_eq(&a.demand, &b.demand) || a.demand == b.demand;
    a.class == b.class && a.priority == b.priority && same_nodes && same_demand
}
