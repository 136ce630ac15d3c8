//! Eviction signals, thresholds and their notation (`memory.available<100Mi`, `10%`). Pure: the configuration is parsed
//! here once, and an invalid one is refused with a message.

use std::collections::BTreeMap;
use std::time::Duration;

use corten_meta::Quantity;

/// An eviction signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    /// The allocatable memory of the node that pods do not use.
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    PidAvailable,
}

/// A resource that pods exhaust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

impl Resource {
    pub fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
            Resource::Inodes => "inodes",
            Resource::Pids => "pids",
        }
    }
}

/// The condition of the Node that reports a pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    pub fn condition(self) -> &'static str {
        match self {
            Pressure::Memory => "MemoryPressure",
            Pressure::Disk => "DiskPressure",
            Pressure::Pid => "PIDPressure",
        }
    }
}

const SIGNALS: [(&str, Signal); 7] = [
    ("memory.available", Signal::MemoryAvailable),
    ("allocatableMemory.available", Signal::AllocatableMemoryAvailable),
    ("nodefs.available", Signal::NodeFsAvailable),
    ("nodefs.inodesFree", Signal::NodeFsInodesFree),
    ("imagefs.available", Signal::ImageFsAvailable),
    ("imagefs.inodesFree", Signal::ImageFsInodesFree),
    ("pid.available", Signal::PidAvailable),
];

impl Signal {
    pub fn parse(name: &str) -> Result<Signal, String> {
        // Containers write to the file system of the images or to that of the node, so `containerfs` has no threshold
        // of its own.
        let known = SIGNALS.iter().find(|(known, _)| *known == name);
        known.map(|(_, signal)| *signal).ok_or_else(|| format!("unsupported eviction signal {name}"))
    }

    pub fn name(self) -> &'static str {
        SIGNALS.iter().find(|(_, signal)| *signal == self).map_or("", |(name, _)| name)
    }

    pub fn resource(self) -> Resource {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Resource::Memory,
            Signal::NodeFsAvailable | Signal::ImageFsAvailable => Resource::EphemeralStorage,
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree => Resource::Inodes,
            Signal::PidAvailable => Resource::Pids,
        }
    }

    pub fn pressure(self) -> Pressure {
        match self.resource() {
            Resource::Memory => Pressure::Memory,
            Resource::EphemeralStorage | Resource::Inodes => Pressure::Disk,
            Resource::Pids => Pressure::Pid,
        }
    }
}

/// A quantity, or a percentage of the capacity in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThresholdValue {
    Quantity(i64),
    Percentage(i64),
}

impl ThresholdValue {
    fn parse(text: &str) -> Result<ThresholdValue, String> {
        if let Some(number) = text.strip_suffix('%') {
            let percent: f64 = number.trim().parse().map_err(|_| format!("{text:?} is not a percentage"))?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(format!("eviction percentage threshold must be between 0% and 100%: {text}"));
            }
            return Ok(ThresholdValue::Percentage((percent * 100.0).round() as i64));
        }
        let quantity = Quantity::parse(text).map_err(|error| format!("{text:?}: {error}"))?;
        if quantity.sign() < 0 {
            return Err(format!("eviction threshold must be positive: {text}"));
        }
        Ok(ThresholdValue::Quantity(quantity.as_i64()))
    }

    pub fn of(self, capacity: i64) -> i64 {
        match self {
            ThresholdValue::Quantity(quantity) => quantity,
            ThresholdValue::Percentage(part) => {
                i64::try_from(i128::from(capacity) * i128::from(part) / 10_000).unwrap_or(i64::MAX)
            }
        }
    }
}

/// A threshold: pods are evicted when the signal is below the value for the grace period.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Threshold {
    pub signal: Signal,
    pub value: ThresholdValue,
    /// The grace period; zero for a hard threshold.
    pub grace: Duration,
    /// The additional quantity that an eviction reclaims.
    pub minimum_reclaim: Option<ThresholdValue>,
}

impl Threshold {
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

/// The eviction settings of the KubeletConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionConfig {
    /// The hard threshold of each signal. Default upstream's.
    pub hard: BTreeMap<String, String>,
    /// The soft threshold of each signal; each needs a grace period.
    pub soft: BTreeMap<String, String>,
    pub soft_grace_period: BTreeMap<String, Duration>,
    pub minimum_reclaim: BTreeMap<String, String>,
    /// The time for which a pressure condition stays after it was last observed. Default 5 min.
    pub pressure_transition_period: Duration,
    /// The longest grace period, in seconds, of a pod that a soft threshold evicts. Default 0.
    pub max_pod_grace_period: i64,
}

impl Default for EvictionConfig {
    fn default() -> EvictionConfig {
        EvictionConfig {
            hard: default_hard(),
            soft: BTreeMap::new(),
            soft_grace_period: BTreeMap::new(),
            minimum_reclaim: BTreeMap::new(),
            pressure_transition_period: Duration::from_secs(300),
            max_pod_grace_period: 0,
        }
    }
}

/// Returns the hard thresholds of a kubelet without eviction settings.
pub fn default_hard() -> BTreeMap<String, String> {
    [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ]
    .map(|(signal, value)| (signal.to_owned(), value.to_owned()))
    .into()
}

impl EvictionConfig {
    /// Returns the thresholds, or the first error in them.
    pub fn thresholds(&self) -> Result<Vec<Threshold>, String> {
        let reclaim = parse_all(&self.minimum_reclaim)?;
        let mut thresholds = Vec::new();
        let mut add = |signal: Signal, value: ThresholdValue, grace: Duration| {
            thresholds.push(Threshold { signal, value, grace, minimum_reclaim: reclaim.get(&signal).copied() });
        };
        for (signal, value) in parse_all(&self.hard)? {
            if !is_off(value) {
                add(signal, value, Duration::ZERO);
            }
        }
        for (signal, value) in parse_all(&self.soft)? {
            let grace = self.soft_grace_period.get(signal.name()).copied().filter(|grace| !grace.is_zero());
            let name = signal.name();
            let missing = || format!("grace period must be specified for the soft eviction threshold {name}");
            add(signal, value, grace.ok_or_else(missing)?);
        }
        // The same quantity of memory is kept free within the node's allocatable memory.
        let memory = thresholds.iter().find(|one| one.signal == Signal::MemoryAvailable && one.is_hard()).cloned();
        thresholds.extend(memory.map(|one| Threshold { signal: Signal::AllocatableMemoryAvailable, ..one }));
        Ok(thresholds)
    }

    /// Returns the part of a capacity that the hard thresholds reserve: it is not allocatable.
    pub fn reserved(&self, signal: Signal, capacity: i64) -> i64 {
        let hard = parse_all(&self.hard).unwrap_or_default();
        hard.get(&signal).map_or(0, |value| value.of(capacity))
    }
}

fn parse_all(statements: &BTreeMap<String, String>) -> Result<BTreeMap<Signal, ThresholdValue>, String> {
    statements.iter().map(|(signal, value)| Ok((Signal::parse(signal)?, ThresholdValue::parse(value)?))).collect()
}

/// Reports whether a threshold is switched off: `0%` and `100%` do so, as upstream reads them.
fn is_off(value: ThresholdValue) -> bool {
    matches!(value, ThresholdValue::Percentage(0 | 10_000))
}

/// Parses the value of a flag: `memory.available<100Mi,nodefs.available<10%`.
pub fn parse_flag(text: &str, operator: char) -> Result<BTreeMap<String, String>, String> {
    let statements = text.split(',').map(str::trim).filter(|statement| !statement.is_empty());
    let each = statements.map(|statement| {
        let (signal, value) = statement
            .split_once(operator)
            .ok_or_else(|| format!("{statement:?} is not of the form name{operator}value"))?;
        Ok((signal.trim().to_owned(), value.trim().to_owned()))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_defaults_are_upstreams_and_count_memory_twice() {
        let config = EvictionConfig::default();
        let thresholds = config.thresholds().unwrap();
        assert_eq!(thresholds.len(), 6);
        assert!(thresholds.iter().all(Threshold::is_hard));
        assert!(thresholds.iter().any(|one| one.signal == Signal::AllocatableMemoryAvailable));
        assert_eq!(config.reserved(Signal::MemoryAvailable, 0), 100 << 20);
        assert_eq!(config.reserved(Signal::NodeFsAvailable, 1000), 100);
        assert_eq!(config.reserved(Signal::PidAvailable, 1000), 0);
    }

    #[test]
    fn a_soft_threshold_needs_a_grace_period() {
        let mut config = EvictionConfig { soft: map(&[("nodefs.available", "20%")]), ..EvictionConfig::default() };
        let error = config.thresholds().unwrap_err();
        assert_eq!(error, "grace period must be specified for the soft eviction threshold nodefs.available");
        config.soft_grace_period = [("nodefs.available".to_owned(), Duration::from_secs(90))].into();
        config.minimum_reclaim = map(&[("nodefs.available", "1Gi")]);
        let thresholds = config.thresholds().unwrap();
        let soft = thresholds.iter().find(|one| !one.is_hard()).unwrap();
        assert_eq!(
            (soft.value, soft.minimum_reclaim),
            (ThresholdValue::Percentage(2000), Some(ThresholdValue::Quantity(1 << 30)))
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (signal, value, expected) in [
            ("disk.available", "1Gi", "unsupported eviction signal disk.available"),
            ("memory.available", "101%", "eviction percentage threshold must be between 0% and 100%: 101%"),
            ("memory.available", "-1Gi", "eviction threshold must be positive: -1Gi"),
        ] {
            let config = EvictionConfig { hard: map(&[(signal, value)]), ..EvictionConfig::default() };
            assert_eq!(config.thresholds().unwrap_err(), expected);
        }
        let off = EvictionConfig { hard: map(&[("memory.available", "0%")]), ..EvictionConfig::default() };
        assert!(off.thresholds().unwrap().is_empty());
    }

    #[test]
    fn flags_are_lists_of_statements() {
        let parsed = parse_flag("memory.available<1Gi, nodefs.available<10%", '<').unwrap();
        assert_eq!(parsed, map(&[("memory.available", "1Gi"), ("nodefs.available", "10%")]));
        assert!(parse_flag("memory.available=1Gi", '<').is_err());
        assert_eq!(parse_flag("memory.available=1m", '=').unwrap()["memory.available"], "1m");
    }
}
