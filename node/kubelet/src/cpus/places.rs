//! Which processors lie together, and which to take for a container: whole NUMA nodes first, then whole sockets, whole
//! cores, and single threads last, from where the least is left, so that what stays free stays whole. Pure but for `read`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::set::{self, CpuSet};
use crate::topology::{self, Nodes};

/// Where a processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub numa_node: u32,
    pub socket: u32,
    pub core: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Topology(pub BTreeMap<u32, Place>);

impl Topology {
    /// The processors that are online, as the kernel shows them.
    pub fn read() -> Topology {
        let base = Path::new("/sys/devices/system");
        let text = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
        let online = set::parse(&text(base.join("cpu/online"))).unwrap_or_default();
        let mut nodes: BTreeMap<u32, u32> = BTreeMap::new();
        for node in set::parse(&text(base.join("node/online"))).unwrap_or_default() {
            let cpus = set::parse(&text(base.join(format!("node/node{node}/cpulist")))).unwrap_or_default();
            nodes.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        }
        let places = online.into_iter().map(|cpu| {
            let number =
                |file: &str| text(base.join(format!("cpu/cpu{cpu}/topology/{file}"))).trim().parse().unwrap_or(0);
            let numa_node = nodes.get(&cpu).copied().unwrap_or(0);
            (cpu, Place { numa_node, socket: number("physical_package_id"), core: number("core_id") })
        });
        Topology(places.collect())
    }

    pub fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// The NUMA node of a processor, as a set of one.
    pub fn node(&self, cpu: u32) -> Nodes {
        topology::nodes(self.0.get(&cpu).map(|place| place.numa_node))
    }

    /// So many of the free processors, or none if there are not enough.
    pub fn take(&self, free: &CpuSet, count: usize) -> Option<CpuSet> {
        if free.len() < count {
            return None;
        }
        let mut free = free.clone();
        let mut taken = CpuSet::new();
        for group in [|place: &Place| (place.numa_node, 0, 0), |place: &Place| (0, place.socket, 0), whole_core] {
            for cpus in self.whole_groups(&free, group) {
                if taken.len() + cpus.len() <= count {
                    free.retain(|cpu| !cpus.contains(cpu));
                    taken.extend(cpus);
                }
            }
        }
        while taken.len() < count {
            let next = self.loneliest(&free)?;
            free.remove(&next);
            taken.insert(next);
        }
        Some(taken)
    }

    /// The groups of which every processor is free, in order.
    fn whole_groups(&self, free: &CpuSet, group: fn(&Place) -> (u32, u32, u32)) -> Vec<CpuSet> {
        let mut groups: BTreeMap<(u32, u32, u32), CpuSet> = BTreeMap::new();
        for (cpu, place) in &self.0 {
            groups.entry(group(place)).or_default().insert(*cpu);
        }
        groups.into_values().filter(|cpus| cpus.is_subset(free)).collect()
    }

    /// The free processor with the fewest free neighbours.
    fn loneliest(&self, free: &CpuSet) -> Option<u32> {
        let neighbours = |cpu: u32| {
            let own = self.0.get(&cpu);
            let near = |same: fn(&Place, &Place) -> bool| {
                let others = free.iter().filter_map(|other| self.0.get(other));
                own.map_or(0, |own| others.filter(|other| same(own, other)).count())
            };
            (
                near(|a, b| a.numa_node == b.numa_node),
                near(|a, b| a.socket == b.socket),
                near(|a, b| whole_core(a) == whole_core(b)),
                cpu,
            )
        };
        free.iter().copied().min_by_key(|cpu| neighbours(*cpu))
    }
}

fn whole_core(place: &Place) -> (u32, u32, u32) {
    (0, place.socket, place.core)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets, a NUMA node each, of two cores with two threads: 0 and 4 are one core, as kernels number them.
    fn machine() -> Topology {
        let place = |cpu: u32| Place { numa_node: cpu % 4 / 2, socket: cpu % 4 / 2, core: cpu % 4 % 2 };
        Topology((0..8).map(|cpu| (cpu, place(cpu))).collect())
    }

    #[test]
    fn what_lies_together_is_taken_together() {
        for (free, count, expected) in [
            ("0-7", 4, "0-1,4-5"),
            ("0-7", 2, "0,4"),
            ("0-7", 1, "0"),
            ("1-7", 2, "1,5"),
            ("1-7", 1, "4"),
            ("1-7", 4, "2-3,6-7"),
            ("1-3,5-7", 3, "1,2,5"),
            ("0-7", 8, "0-7"),
        ] {
            let taken = machine().take(&set::parse(free).unwrap(), count).map(|taken| set::format(&taken));
            let expected = set::format(&set::parse(expected).unwrap());
            assert_eq!(taken, Some(expected), "{count} of {free}");
        }
        assert_eq!(machine().take(&set::parse("0-1").unwrap(), 3), None);
    }

    #[test]
    fn this_machine_has_processors() {
        assert!(!Topology::read().all().is_empty());
    }
}
