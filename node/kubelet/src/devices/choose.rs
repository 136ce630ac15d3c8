//! Chooses the devices of a container. Pure: the healthy, the allocated and the reusable devices go in.

use std::collections::{BTreeMap, BTreeSet};

use super::Device;
use crate::error::{Error, Result};
use crate::numa::{self, Hint, Nodes};

/// The devices that a container may get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    pub wanted: usize,
    /// Devices of an earlier init container of the pod, which it gets in any case.
    pub reused: BTreeSet<String>,
    /// Healthy devices that are not allocated.
    pub available: BTreeSet<String>,
}

pub fn candidates(
    resource: &str,
    wanted: usize,
    healthy: &BTreeSet<String>,
    in_use: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
) -> Result<Candidates> {
    if healthy.is_empty() {
        return Err(Error::pod(format!("no healthy devices present; cannot allocate unhealthy devices {resource}")));
    }
    let reused: BTreeSet<String> = reusable.iter().take(wanted).cloned().collect();
    let available: BTreeSet<String> = healthy.difference(in_use).cloned().collect();
    let missing = wanted - reused.len();
    if available.len() < missing {
        return Err(Error::pod(format!(
            "requested number of devices unavailable for {resource}. Requested: {missing}, Available: {}",
            available.len()
        )));
    }
    Ok(Candidates { wanted, reused, available })
}

/// Returns the available devices of these NUMA nodes; all of them without a hint.
pub fn near(
    candidates: &Candidates,
    devices: Option<&BTreeMap<String, Device>>,
    nodes: Option<Nodes>,
) -> BTreeSet<String> {
    let Some((devices, nodes)) = devices.zip(nodes) else { return candidates.available.clone() };
    let is_near = |id: &&String| devices.get(*id).is_some_and(|device| device.nodes() & nodes != 0);
    candidates.available.iter().filter(is_near).cloned().collect()
}

/// Chooses reused devices first, then near ones, then any; within each group first those that the plugin prefers, in
/// the order of their names.
pub fn choose(candidates: &Candidates, near: &BTreeSet<String>, preferred: &BTreeSet<String>) -> BTreeSet<String> {
    let mut others: Vec<&String> = candidates.available.iter().collect();
    others.sort_by_key(|id| (!near.contains(*id), !preferred.contains(*id)));
    let missing = candidates.wanted - candidates.reused.len();
    candidates.reused.iter().chain(others.into_iter().take(missing)).cloned().collect()
}

impl Device {
    fn nodes(&self) -> Nodes {
        numa::nodes(self.numa_nodes.iter().filter_map(|node| u32::try_from(*node).ok()))
    }
}

/// Returns the NUMA nodes that could provide this many devices.
pub fn hints(
    devices: &BTreeMap<String, Device>,
    in_use: &BTreeSet<String>,
    again: &BTreeSet<String>,
    count: usize,
    all: Nodes,
) -> Vec<Hint> {
    let hosting = devices.values().fold(0, |nodes, device| nodes | device.nodes()) & all;
    let near = |nodes: Nodes| devices.iter().filter(move |(_, device)| device.nodes() & nodes != 0);
    let ever = |nodes: Nodes| near(nodes).count() >= count;
    let now = |nodes: Nodes| {
        let placed = again.iter().filter(|id| devices.get(*id).is_some_and(|device| device.nodes() != 0));
        let free = near(nodes).filter(|(id, device)| device.healthy && !in_use.contains(*id)).count();
        let again = placed.clone().count();
        placed.clone().all(|id| devices[id].nodes() & nodes != 0) && again + free >= count
    };
    numa::hints(if hosting == 0 { all } else { hosting }, &ever, &now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn reused_then_preferred_then_any() {
        for (wanted, healthy, in_use, reusable, preferred, expected) in [
            (2, "a b c", "", "", "", "a b"),
            (2, "a b c", "", "", "c", "a c"),
            (2, "a b c", "a", "", "a", "b c"),
            (2, "a b c", "a", "a", "c", "a c"),
            (1, "a b", "a b", "b", "", "b"),
        ] {
            let candidates = candidates("r", wanted, &set(healthy), &set(in_use), &set(reusable)).unwrap();
            assert_eq!(
                choose(&candidates, &candidates.available, &set(preferred)),
                set(expected),
                "{healthy} {in_use} {reusable} {preferred}"
            );
        }
    }

    #[test]
    fn devices_are_taken_from_the_numa_nodes_of_the_hint() {
        let device = |nodes: &[i64]| Device { healthy: true, numa_nodes: nodes.iter().copied().collect() };
        let devices = BTreeMap::from([
            ("a".to_owned(), device(&[0])),
            ("b".to_owned(), device(&[1])),
            ("c".to_owned(), device(&[1])),
            ("d".to_owned(), device(&[])),
        ]);
        let shown = |in_use: &str, again: &str, count| {
            let hints = hints(&devices, &set(in_use), &set(again), count, 0b11);
            hints.into_iter().map(|hint| (hint.nodes.unwrap_or(0), hint.preferred)).collect::<Vec<_>>()
        };
        assert_eq!(shown("", "", 1), [(0b01, true), (0b10, true), (0b11, false)]);
        assert_eq!(shown("", "", 2), [(0b10, true), (0b11, false)]);
        assert_eq!(shown("b", "", 2), [(0b11, false)]);
        assert_eq!(shown("a b", "a", 2), [(0b11, false)], "what is used again must be among them");
        let candidates = candidates("r", 2, &set("a b c d"), &set(""), &set("")).unwrap();
        let near = near(&candidates, Some(&devices), Some(0b10));
        assert_eq!(choose(&candidates, &near, &set("a")), set("b c"));
    }

    #[test]
    fn a_shortage_has_upstreams_message() {
        let error = candidates("e.com/d", 2, &set("a b"), &set("b"), &set("")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "requested number of devices unavailable for e.com/d. Requested: 2, Available: 1"
        );
        let error = candidates("e.com/d", 1, &set(""), &set(""), &set("")).unwrap_err();
        assert_eq!(error.to_string(), "no healthy devices present; cannot allocate unhealthy devices e.com/d");
    }
}
