//! Decides from observations: the node's pressures, and the thresholds to act on now. Pure: observations and time go
//! in; the state between two observations is a value of its own.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;

use crate::summary::{FsStats, Summary};
use crate::thresholds::{Pressure, Signal, Threshold};

/// The available and the total quantity of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

pub type Observations = BTreeMap<Signal, Observation>;

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns the signals of a summary.
pub fn observe(summary: &Summary) -> Observations {
    let mut all = Observations::new();
    let mut add = |signal, available: Option<u64>, capacity: Option<u64>| {
        if let (Some(available), Some(capacity)) = (available, capacity) {
            all.insert(signal, Observation { available: signed(available), capacity: signed(capacity) });
        }
    };
    let memory = |stats: &crate::summary::MemoryStats| {
        let capacity = Some(stats.available_bytes? + stats.working_set_bytes?);
        Some((stats.available_bytes, capacity))
    };
    if let Some((available, capacity)) = summary.node.memory.as_ref().and_then(memory) {
        add(Signal::MemoryAvailable, available, capacity);
    }
    let pods = summary.node.system_containers.iter().find(|container| container.name == "pods");
    if let Some((available, capacity)) = pods.and_then(|pods| memory(pods.memory.as_ref()?)) {
        add(Signal::AllocatableMemoryAvailable, available, capacity);
    }
    if let Some(fs) = &summary.node.fs {
        add(Signal::NodeFsAvailable, fs.available_bytes, usable(fs));
        add(Signal::NodeFsInodesFree, fs.inodes_free, fs.inodes);
    }
    if let Some(fs) = summary.node.runtime.as_ref().and_then(|runtime| runtime.image_fs.as_ref()) {
        add(Signal::ImageFsAvailable, fs.available_bytes, usable(fs));
        add(Signal::ImageFsInodesFree, fs.inodes_free, fs.inodes);
    }
    if let Some(limit) = &summary.node.rlimit {
        let available = u64::try_from(limit.maxpid - limit.curproc).unwrap_or(0);
        add(Signal::PidAvailable, Some(available), u64::try_from(limit.maxpid).ok());
    }
    all
}

/// Returns the usable size of a file system. Blocks that are reserved for root, or that a quota withholds, do not
/// count: with them, a percentage would report a disk as full that is not.
pub fn usable(fs: &FsStats) -> Option<u64> {
    fs.room_bytes.or(fs.capacity_bytes)
}

/// The state between two observations.
#[derive(Clone, Debug, Default)]
pub struct State {
    first_met: HashMap<Threshold, Timestamp>,
    last_seen: BTreeMap<Pressure, Timestamp>,
    answered: Vec<Threshold>,
}

/// The result of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The pressure conditions of the node.
    pub pressures: BTreeSet<Pressure>,
    /// The thresholds that are met and whose grace period is over, the most urgent first.
    pub met: Vec<Threshold>,
}

impl State {
    /// Decides on observations.
    pub fn decide(
        &mut self,
        thresholds: &[Threshold],
        seen: &Observations,
        transition: Duration,
        now: Timestamp,
    ) -> Decision {
        let mut met = met(thresholds, seen, false);
        // A threshold that was acted on stays met until the minimum is reclaimed.
        for threshold in self::met(&self.answered, seen, true) {
            if !met.contains(&threshold) {
                met.push(threshold);
            }
        }
        self.first_met = met.iter().map(|one| (one.clone(), self.first_met.get(one).copied().unwrap_or(now))).collect();
        for threshold in &met {
            self.last_seen.insert(threshold.signal.pressure(), now);
        }
        let age = |since: &Timestamp| Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        self.last_seen.retain(|_, seen| age(seen) < transition || *seen == now);
        met.retain(|one| self.first_met.get(one).is_some_and(|since| age(since) >= one.grace));
        // Memory first: without memory, the kernel may kill processes in any order.
        met.sort_by_key(|one| one.signal);
        self.answered = met.clone();
        Decision { pressures: self.last_seen.keys().copied().collect(), met }
    }
}

/// Returns the thresholds whose signal is below them, or `with_minimum` below them plus the minimum reclaim.
pub fn met(thresholds: &[Threshold], seen: &Observations, with_minimum: bool) -> Vec<Threshold> {
    let is_met = |threshold: &&Threshold| {
        seen.get(&threshold.signal).is_some_and(|observation| {
            let minimum = threshold.minimum_reclaim.filter(|_| with_minimum);
            let minimum = minimum.map_or(0, |value| value.of(observation.capacity));
            observation.available < threshold.value.of(observation.capacity).saturating_add(minimum)
        })
    };
    thresholds.iter().filter(is_met).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thresholds::ThresholdValue;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn threshold(signal: Signal, value: ThresholdValue, grace: u64) -> Threshold {
        Threshold { signal, value, grace: Duration::from_secs(grace), minimum_reclaim: None }
    }

    fn seen(list: &[(Signal, i64)]) -> Observations {
        list.iter()
            .map(|(signal, available)| (*signal, Observation { available: *available, capacity: 1000 }))
            .collect()
    }

    const TRANSITION: Duration = Duration::from_secs(300);

    #[test]
    fn a_hard_threshold_is_answered_at_once_and_its_pressure_stays_a_while() {
        let thresholds = [threshold(Signal::NodeFsAvailable, ThresholdValue::Percentage(1000), 0)];
        let mut state = State::default();
        let decision = state.decide(&thresholds, &seen(&[(Signal::NodeFsAvailable, 99)]), TRANSITION, at(0));
        assert_eq!(decision.pressures.into_iter().collect::<Vec<_>>(), [Pressure::Disk]);
        assert_eq!(decision.met, thresholds);
        let better = seen(&[(Signal::NodeFsAvailable, 100)]);
        let decision = state.decide(&thresholds, &better, TRANSITION, at(10));
        assert!(decision.met.is_empty() && !decision.pressures.is_empty(), "the condition does not flap");
        assert!(state.decide(&thresholds, &better, TRANSITION, at(300)).pressures.is_empty());
    }

    #[test]
    fn a_soft_threshold_waits_for_its_grace_period() {
        let thresholds = [threshold(Signal::MemoryAvailable, ThresholdValue::Quantity(500), 60)];
        let mut state = State::default();
        let low = seen(&[(Signal::MemoryAvailable, 400)]);
        let decision = state.decide(&thresholds, &low, TRANSITION, at(0));
        assert!(decision.met.is_empty() && decision.pressures.contains(&Pressure::Memory));
        assert!(state.decide(&thresholds, &low, TRANSITION, at(59)).met.is_empty());
        assert_eq!(state.decide(&thresholds, &low, TRANSITION, at(60)).met.len(), 1);
        let high = seen(&[(Signal::MemoryAvailable, 600)]);
        state.decide(&thresholds, &high, TRANSITION, at(61));
        assert!(state.decide(&thresholds, &low, TRANSITION, at(62)).met.is_empty(), "the grace begins anew");
    }

    #[test]
    fn the_minimum_is_reclaimed_before_a_threshold_is_no_longer_met() {
        let mut one = threshold(Signal::MemoryAvailable, ThresholdValue::Quantity(100), 0);
        one.minimum_reclaim = Some(ThresholdValue::Quantity(50));
        let mut state = State::default();
        let look = |state: &mut State, available, second| {
            let seen = seen(&[(Signal::MemoryAvailable, available)]);
            state.decide(std::slice::from_ref(&one), &seen, TRANSITION, at(second)).met.len()
        };
        assert_eq!(look(&mut state, 120, 0), 0, "it was never below");
        assert_eq!(look(&mut state, 90, 1), 1);
        assert_eq!(look(&mut state, 120, 2), 1, "fifty more are wanted");
        assert_eq!(look(&mut state, 150, 3), 0);
    }

    #[test]
    fn memory_comes_first() {
        let thresholds = [
            threshold(Signal::PidAvailable, ThresholdValue::Quantity(10), 0),
            threshold(Signal::NodeFsAvailable, ThresholdValue::Quantity(10), 0),
            threshold(Signal::MemoryAvailable, ThresholdValue::Quantity(10), 0),
        ];
        let all = seen(&[(Signal::PidAvailable, 1), (Signal::NodeFsAvailable, 1), (Signal::MemoryAvailable, 1)]);
        let met = State::default().decide(&thresholds, &all, TRANSITION, at(0)).met;
        assert_eq!(met[0].signal, Signal::MemoryAvailable);
    }
}
