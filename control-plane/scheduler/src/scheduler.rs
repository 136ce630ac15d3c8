//! The state of the scheduler and everything that changes it: cluster events come in, decisions go out.
//!
//! Nothing here waits or calls the API, so that a simulation can drive it. Invariants: a pod that needs a node is
//! queued, assumed, or known to be bound; an assumed pod is not decided about again; no node is over-committed by our
//! decisions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use corten_api::k8s_openapi::api::core::v1::Node;
use jiff::Timestamp;

use crate::config::Config;
use crate::cycle::{self, Rejection, Rotation};
use crate::framework::{ClusterEvent, Effect, Point, Search};
use crate::metrics::{Attempt, Metrics};
use crate::plugins::dynamic_resources::is_ready;
use crate::preemption::{self, Preemption};
use crate::profile::Profile;
use crate::queue::{Entry, Profiles, Queue};
use crate::rows::{PodRow, Snapshot};

/// A pod with its selected node.
#[derive(Clone, Debug)]
pub struct Placed {
    pub entry: Entry,
    /// The pod's row with the node set.
    pub row: Arc<PodRow>,
    /// The writes that must be visible before the pod is bound.
    pub effects: Vec<Effect>,
}

/// A pod without a feasible node.
#[derive(Clone, Debug)]
pub struct Unplaced {
    pub pod: Arc<PodRow>,
    pub message: String,
    pub preemption: Option<Arc<Preemption>>,
    /// Lower-priority pods that lose their nomination to the node.
    pub displaced: Vec<Arc<PodRow>>,
    pub clears_nomination: bool,
    /// Whether the pod could not be decided about.
    pub is_error: bool,
    /// The writes that may make it schedulable.
    pub effects: Vec<Effect>,
}

#[derive(Clone, Debug)]
pub enum Decision {
    Place(Placed),
    Reject(Unplaced),
}

pub struct Scheduler {
    profiles: Arc<Profiles>,
    pub snapshot: Snapshot,
    queue: Queue,
    /// Pods that count as scheduled although the cache does not show it yet.
    assumed: HashMap<Arc<str>, Arc<PodRow>>,
    /// Our nominations that the cache does not show yet.
    unconfirmed: HashMap<Arc<str>, String>,
    rotation: Rotation,
    pub metrics: Arc<Metrics>,
}

impl Scheduler {
    pub fn new(config: &Config) -> Scheduler {
        let metrics = &config.metrics;
        let profiles = config.profiles.iter().map(|spec| Profile::new(spec, metrics));
        let profiles = profiles.map(|profile| (profile.name.clone(), Arc::new(profile)));
        let profiles = Arc::new(profiles.collect::<Profiles>());
        Scheduler {
            queue: Queue::new(profiles.clone(), config.initial_backoff, config.max_backoff, metrics.clone()),
            profiles,
            metrics: metrics.clone(),
            snapshot: Snapshot::default(),
            assumed: HashMap::new(),
            unconfirmed: HashMap::new(),
            rotation: Rotation::new(config.seed),
        }
    }

    pub fn profile(&self, pod: &PodRow) -> Option<Arc<Profile>> {
        self.profiles.get(&pod.demand.scheduler_name).cloned()
    }

    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.queue.next_deadline()
    }

    pub fn is_assumed(&self, uid: &str) -> bool {
        self.assumed.contains_key(uid)
    }

    /// Updates the size metrics.
    pub fn note_sizes(&self, binding: usize) {
        let known = [self.snapshot.len(), self.snapshot.pods(), self.assumed.len()];
        self.metrics.note_sizes(self.queue.lengths(), known, binding);
    }

    /// Returns a queued pod.
    pub fn queued(&self, uid: &str) -> Option<&Arc<PodRow>> {
        self.queue.get(uid)
    }

    /// Returns the numbers of active, backoff, unschedulable and gated pods.
    #[cfg(test)]
    pub fn lengths(&self) -> [usize; 4] {
        self.queue.lengths()
    }

    #[cfg(test)]
    pub fn is_queued(&self, uid: &str) -> bool {
        self.queue.contains(uid)
    }

    /// Handles a change of something other than a pod or node.
    pub fn happened(&mut self, event: &ClusterEvent<'_>, now: Timestamp) {
        self.queue.wake(event, &self.snapshot, now);
    }

    pub fn node_changed(&mut self, name: &str, node: Option<Node>, now: Timestamp) {
        let Some(node) = node else {
            self.snapshot.remove_node(name);
            return self.queue.wake(&ClusterEvent::NodeRemoved, &self.snapshot, now);
        };
        let change = self.snapshot.set_node(node);
        let Some(row) = self.snapshot.find(name).filter(|_| change.any()) else { return };
        let event = if change.added { ClusterEvent::NodeAdded(row) } else { ClusterEvent::NodeUpdated(row, change) };
        self.queue.wake(&event, &self.snapshot, now);
    }

    /// Handles a new or changed pod. Returns it if a scheduling gate holds it, so that its condition can be set.
    pub fn pod_changed(&mut self, mut row: PodRow, now: Timestamp) -> Option<Arc<PodRow>> {
        if row.terminal {
            self.pod_gone(&row.uid, now);
            return None;
        }
        if !row.node_name.is_empty() {
            self.placed(Arc::new(row), now);
            return None;
        }
        if row.terminating || !self.profiles.contains_key(&row.demand.scheduler_name) {
            self.queue.remove(&row.uid);
            self.snapshot.end_nomination(&row.uid);
            return None;
        }
        if self.assumed.contains_key(&row.uid) {
            return None;
        }
        self.keep_nomination(&mut row);
        let row = Arc::new(row);
        self.snapshot.nominate(row.clone());
        self.queue.add(row.clone(), now).map(|_| row).filter(|row| !row.demand.gates.is_empty())
    }

    /// Keeps a nomination of ours until the cache has shown it: anything it shows before is older, also an earlier one
    /// of ours.
    fn keep_nomination(&mut self, row: &mut PodRow) {
        if let Some(ours) = self.unconfirmed.get(&row.uid) {
            match row.nominated == *ours {
                false => row.nominated.clone_from(ours),
                true => drop(self.unconfirmed.remove(&row.uid)),
            }
        }
    }

    /// Handles the echo of a binding, without other changes of the pod.
    pub fn confirmed(&mut self, uid: &str, now: Timestamp) {
        let Some(row) = self.assumed.remove(uid) else { return };
        self.unconfirmed.remove(uid);
        self.queue.wake(&ClusterEvent::PodPlaced(&row), &self.snapshot, now);
    }

    /// Puts a pod back after an error, with a backoff.
    pub fn failed(&mut self, entry: Entry) {
        self.queue.put_back(entry, Vec::new());
    }

    fn placed(&mut self, row: Arc<PodRow>, now: Timestamp) {
        self.assumed.remove(&row.uid);
        self.queue.remove(&row.uid);
        self.snapshot.end_nomination(&row.uid);
        self.unconfirmed.remove(&row.uid);
        let old = self.snapshot.pod(&row.uid).cloned();
        self.snapshot.add_pod(row.clone());
        match old {
            None => self.queue.wake(&ClusterEvent::PodPlaced(&row), &self.snapshot, now),
            Some(old)
                if old.class != row.class
                    || old.demand.requests != row.demand.requests
                    || old.terminating != row.terminating =>
            {
                self.queue.wake(&ClusterEvent::PodUpdated(&old, &row), &self.snapshot, now);
            }
            Some(_) => {}
        }
    }

    /// Handles a pod that terminated or was deleted.
    pub fn pod_gone(&mut self, uid: &str, now: Timestamp) {
        self.assumed.remove(uid);
        self.queue.remove(uid);
        self.snapshot.end_nomination(uid);
        self.unconfirmed.remove(uid);
        if let Some(pod) = self.snapshot.remove_pod(uid) {
            self.queue.wake(&ClusterEvent::PodRemoved(&pod), &self.snapshot, now);
        }
    }

    /// Returns the next pod to decide about.
    pub fn next(&mut self, now: Timestamp) -> Option<Entry> {
        self.queue.pop(now)
    }

    /// Decides about a pod that no extender is interested in.
    pub fn decide(&mut self, entry: Entry) -> Option<Decision> {
        let profile = self.profile(&entry.pod)?;
        match cycle::schedule(&mut self.snapshot, &profile, &entry.pod, &mut self.rotation) {
            Ok(slot) => Some(self.assume(entry, &profile, slot)),
            Err(rejection) => Some(self.reject(entry, *rejection)),
        }
    }

    /// Runs the first half of a decision that involves an extender.
    pub fn search(&mut self, pod: &PodRow, profile: &Profile) -> Search {
        cycle::search(&mut self.snapshot, profile, pod, &mut self.rotation)
    }

    /// Runs the second half: `extra` are the extenders' scores of the feasible nodes, of which there is at least one.
    pub fn conclude(&mut self, entry: Entry, profile: &Profile, feasible: &[usize], extra: &[i64]) -> Option<Decision> {
        let mut scores = cycle::scores(&mut self.snapshot, profile, &entry.pod, feasible, &mut self.rotation);
        scores.iter_mut().zip(extra).for_each(|(score, extra)| *score = score.saturating_add(*extra));
        let slot = cycle::select(feasible, &scores, &mut self.rotation)?;
        Some(self.assume(entry, profile, slot))
    }

    /// Returns, without a feasible node, the reasons and the candidates for preemption.
    pub fn why_not(&mut self, pod: &PodRow, profile: &Profile, search: &Search) -> Rejection {
        match self.snapshot.len() {
            0 => cycle::no_nodes(),
            _ => cycle::post_filter(&mut self.snapshot, profile, pod, search, &mut self.rotation),
        }
    }

    /// Reserve: from here on the pod counts as scheduled, while its binding is written.
    fn assume(&mut self, entry: Entry, profile: &Profile, slot: usize) -> Decision {
        let began = Instant::now();
        let mut effects = Vec::new();
        for plugin in profile.at(Point::Reserve) {
            match plugin.reserve(&entry.pod, slot, &mut self.snapshot) {
                Ok(more) => effects.extend(more),
                Err(verdict) => {
                    profile.series.point(Point::Reserve, verdict.status(), began);
                    profile.at(Point::Reserve).for_each(|other| other.unreserve(&entry.pod, &mut self.snapshot));
                    let message = verdict.reasons().map(|reasons| reasons.text()).unwrap_or_default();
                    let why = format!("running Reserve plugin {:?}: {message}", plugin.name);
                    return self.reject(entry, Rejection::new(why, plugin.name));
                }
            }
        }
        profile.series.point(Point::Reserve, "Success", began);
        let mut row = (*entry.pod).clone();
        row.node_name.clone_from(&self.snapshot.node(slot).name);
        let row = Arc::new(row);
        self.assumed.insert(row.uid.clone(), row.clone());
        self.snapshot.end_nomination(&row.uid);
        self.snapshot.add_pod(row.clone());
        Decision::Place(Placed { entry, row, effects })
    }

    /// Rejects a pod: nominates it if preemption helps, and puts it back into the queue.
    pub fn reject(&mut self, mut entry: Entry, rejection: Rejection) -> Decision {
        let pod = entry.pod.clone();
        let message = rejection.message();
        let Rejection { plugins, candidates, clears_nomination, effects, is_error, .. } = rejection;
        let preemption = preemption::best(candidates);
        let mut displaced = Vec::new();
        if let Some(room) = &preemption {
            let lesser = self.snapshot.nominated.on(&room.node).iter().filter(|other| other.priority < pod.priority);
            displaced = lesser.cloned().collect();
            displaced.iter().for_each(|other| self.lose_nomination(other));
            self.mark_going(room, true);
            self.metrics.preempted(room.victims.len());
            self.nominate(&mut entry, &room.node);
        } else if clears_nomination && !pod.nominated.is_empty() {
            self.nominate(&mut entry, "");
        }
        self.queue.put_back(entry, plugins);
        let clears_nomination = clears_nomination && !pod.nominated.is_empty();
        Decision::Reject(Unplaced { pod, message, preemption, displaced, clears_nomination, is_error, effects })
    }

    fn nominate(&mut self, entry: &mut Entry, node: &str) {
        let mut row = (*entry.pod).clone();
        row.nominated = node.to_owned();
        match node.is_empty() {
            true => drop(self.unconfirmed.remove(&row.uid)),
            false => drop(self.unconfirmed.insert(row.uid.clone(), node.to_owned())),
        }
        entry.pod = Arc::new(row);
        self.snapshot.nominate(entry.pod.clone());
    }

    /// Tries a pod elsewhere at once whose nomination went to a pod of higher priority.
    fn lose_nomination(&mut self, pod: &Arc<PodRow>) {
        self.snapshot.end_nomination(&pod.uid);
        self.unconfirmed.remove(&pod.uid);
        if let Some(mut entry) = self.queue.remove(&pod.uid) {
            let mut row = (*entry.pod).clone();
            row.nominated.clear();
            entry.pod = Arc::new(row);
            self.queue.activate(entry);
        }
    }

    /// Counts victims as terminating from the decision on, not only when the cache shows it: otherwise more would be
    /// chosen.
    fn mark_going(&mut self, room: &Preemption, going: bool) {
        for victim in &room.victims {
            if self.snapshot.pod(&victim.uid).is_none() {
                continue;
            }
            let mut row = (**victim).clone();
            row.preempted |= going;
            row.terminating |= going;
            self.snapshot.add_pod(Arc::new(row));
        }
    }

    /// Tries the pod again because its victims could not be evicted.
    pub fn eviction_failed(&mut self, pod: &PodRow, room: &Preemption) {
        self.mark_going(room, false);
        if let Some(mut entry) = self.queue.remove(&pod.uid) {
            self.nominate(&mut entry, "");
            self.queue.put_back(entry, Vec::new());
        }
    }

    /// Handles a successful binding; the cache will show it.
    pub fn bound(&mut self, placed: &Placed, now: Timestamp) {
        self.release(placed);
        self.metrics.bound(&placed.entry, now);
        self.attempted(&placed.row, Attempt::Scheduled, placed.entry.last_attempt, now);
    }

    /// Counts an attempt to schedule a pod.
    pub fn attempted(&self, pod: &PodRow, result: Attempt, since: Timestamp, now: Timestamp) {
        if let Some(profile) = self.profiles.get(&pod.demand.scheduler_name) {
            profile.series.attempt(result, since, now);
        }
    }

    fn release(&mut self, placed: &Placed) {
        if let Some(profile) = self.profile(&placed.row) {
            profile.at(Point::Reserve).for_each(|plugin| plugin.unreserve(&placed.row, &mut self.snapshot));
        }
    }

    /// Handles a failed binding: releases the resources, and tries the pod again after a backoff.
    pub fn binding_failed(&mut self, placed: Placed, now: Timestamp) {
        self.release(&placed);
        self.attempted(&placed.row, Attempt::Error, placed.entry.last_attempt, now);
        let uid = placed.row.uid.clone();
        if self.assumed.remove(&uid).is_none() {
            return;
        }
        if let Some(row) = self.snapshot.remove_pod(&uid) {
            self.queue.put_back(placed.entry, Vec::new());
            self.queue.wake(&ClusterEvent::PodRemoved(&row), &self.snapshot, now);
        }
    }

    /// Reports whether all writes for the pod have taken effect.
    pub fn ready_to_bind(&self, placed: &Placed) -> Result<bool, String> {
        let storage = &self.snapshot.storage;
        for effect in &placed.effects {
            let key = match effect {
                Effect::BindVolume { claim, .. } | Effect::Provision { claim, .. } => claim,
                // Until the cache shows it, only the assumed allocation keeps the devices from others.
                Effect::AllocateClaim { claim, .. } => match self.snapshot.devices.claim(claim) {
                    None => return Err(format!("resourceclaim {:?} does not exist any more", claim.name)),
                    Some(object) if !is_ready(object)? => return Ok(false),
                    Some(_) => continue,
                },
                Effect::CreateClaim { written, .. } => {
                    let object = written.as_ref().and_then(|written| self.snapshot.devices.claim(written));
                    match object.map(is_ready).transpose()? {
                        Some(true) => continue,
                        Some(false) | None => return Ok(false),
                    }
                }
                Effect::DeallocateClaim { .. } | Effect::DeleteClaim { .. } => continue,
            };
            let claim = storage.claims.get(key).ok_or_else(|| format!("PVC {key} does not exist any more"))?;
            match effect {
                Effect::BindVolume { volume, .. } => {
                    let row = storage.volumes.get(volume).ok_or_else(|| format!("pv {volume:?} is gone"))?;
                    if row.claim.as_ref().is_some_and(|(other, _)| other != key) {
                        return Err(format!("ClaimRef got reset for pv {volume:?}"));
                    }
                }
                Effect::Provision { written, .. } if !claim.is_bound() => {
                    if claim.has_lost_node(&placed.row.node_name, *written) {
                        return Err(format!("provisioning failed for PVC {:?}", claim.key.name));
                    }
                }
                Effect::Provision { .. }
                | Effect::AllocateClaim { .. }
                | Effect::CreateClaim { .. }
                | Effect::DeallocateClaim { .. }
                | Effect::DeleteClaim { .. } => {}
            }
            if !claim.is_bound() {
                return Ok(false);
            }
            let Some(volume) = storage.volumes.get(&claim.volume) else { return Ok(false) };
            let node = self.snapshot.find(&placed.row.node_name);
            let node = node.ok_or_else(|| format!("node {:?} is gone", placed.row.node_name))?;
            if !volume.reachable(&node.labels) {
                let (volume, node) = (&volume.name, &node.name);
                return Err(format!("pv {volume:?} node affinity doesn't match node {node:?}"));
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
#[path = "simulation.rs"]
mod simulation;
