//! The CPU topology, and the choice of CPUs for a container: full NUMA nodes first, then full sockets, full cores, and
//! single threads last, from where the fewest are free, so that the free CPUs stay in full groups. On request, CPUs
//! that share a cache are taken together. Pure, except for `read`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::distribute;
use super::set::{self, CpuSet};
use crate::numa::{self, Nodes};

/// The position of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuInfo {
    pub numa_node: u32,
    pub socket: u32,
    pub core: u32,
    /// The last level of cache, which cores share.
    pub cache: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Topology(pub BTreeMap<u32, CpuInfo>);

impl Topology {
    /// Reads the online CPUs from the kernel.
    pub fn read() -> Topology {
        let base = Path::new("/sys/devices/system");
        let text = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
        let online = set::parse(&text(base.join("cpu/online"))).unwrap_or_default();
        let mut nodes: BTreeMap<u32, u32> = BTreeMap::new();
        for node in set::parse(&text(base.join("node/online"))).unwrap_or_default() {
            let cpus = set::parse(&text(base.join(format!("node/node{node}/cpulist")))).unwrap_or_default();
            nodes.extend(cpus.into_iter().map(|cpu| (cpu, node)));
        }
        let cpus = online.into_iter().map(|cpu| {
            let number = |file: &str| text(base.join(format!("cpu/cpu{cpu}/{file}"))).trim().parse().unwrap_or(0);
            let cpu_info = CpuInfo {
                numa_node: nodes.get(&cpu).copied().unwrap_or(0),
                socket: number("topology/physical_package_id"),
                core: number("topology/core_id"),
                cache: number("cache/index3/id"),
            };
            (cpu, cpu_info)
        });
        Topology(cpus.collect())
    }

    pub fn all(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// Returns the NUMA node of a CPU, as a set of one.
    pub fn node(&self, cpu: u32) -> Nodes {
        numa::nodes(self.0.get(&cpu).map(|cpu_info| cpu_info.numa_node))
    }

    /// Returns the number of CPUs of a core.
    pub fn per_core(&self) -> usize {
        let cores: BTreeSet<(u32, u32, u32)> = self.0.values().map(core_of).collect();
        self.0.len() / cores.len().max(1)
    }

    /// Returns the CPUs and their siblings on the same cores.
    pub fn with_siblings(&self, cpus: &CpuSet) -> CpuSet {
        let cores: BTreeSet<(u32, u32, u32)> = cpus.iter().filter_map(|cpu| self.0.get(cpu)).map(core_of).collect();
        self.0.iter().filter(|(_, cpu_info)| cores.contains(&core_of(cpu_info))).map(|(cpu, _)| *cpu).collect()
    }

    /// Takes this many free CPUs; `None` if there are not enough. `by_cache` prefers CPUs that share a cache.
    pub fn take(&self, free: &CpuSet, count: usize, by_cache: bool) -> Option<CpuSet> {
        if free.len() < count {
            return None;
        }
        let mut free = free.clone();
        let mut taken = CpuSet::new();
        take_groups(self.free_groups(&free, |cpu_info| (cpu_info.numa_node, 0, 0)), &mut free, &mut taken, count);
        take_groups(self.free_groups(&free, |cpu_info| (0, cpu_info.socket, 0)), &mut free, &mut taken, count);
        if by_cache {
            take_groups(self.by_caches(&free, count - taken.len()), &mut free, &mut taken, count);
        }
        take_groups(self.free_groups(&free, core_of), &mut free, &mut taken, count);
        while taken.len() < count {
            let next = self.with_fewest_free_neighbours(&free)?;
            free.remove(&next);
            taken.insert(next);
        }
        Some(taken)
    }

    /// Takes this many free CPUs, as many from each of the NUMA nodes that are needed; `None` if that is not possible.
    /// With `full_pcpus_only`, the CPUs of a core are taken together.
    pub fn take_distributed(&self, free: &CpuSet, count: usize, full_pcpus_only: bool) -> Option<CpuSet> {
        let mut nodes: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in free {
            nodes.entry(self.0.get(cpu)?.numa_node).or_default().insert(*cpu);
        }
        let sizes = nodes.iter().map(|(node, cpus)| (*node, cpus.len())).collect();
        let shares = distribute::shares(&sizes, count, if full_pcpus_only { self.per_core() } else { 1 })?;
        let parts = shares.into_iter().map(|(node, share)| self.take(&nodes[&node], share, false));
        parts.collect::<Option<Vec<_>>>().map(|parts| parts.into_iter().flatten().collect())
    }

    /// Returns the CPUs to take by cache: full caches while that many are needed, and the rest from one cache that has
    /// it, the fullest first. Nothing is taken of a cache that has too few.
    fn by_caches(&self, free: &CpuSet, count: usize) -> Vec<CpuSet> {
        let of_cache = |cpu_info: &CpuInfo| (cpu_info.numa_node, cpu_info.socket, cpu_info.cache);
        let mut chosen = Vec::new();
        let mut needed = count;
        let mut free = free.clone();
        for group in self.free_groups(&free, of_cache) {
            if group.len() <= needed {
                needed -= group.len();
                free.retain(|cpu| !group.contains(cpu));
                chosen.push(group);
            }
        }
        let mut caches: BTreeMap<(u32, u32, u32), CpuSet> = BTreeMap::new();
        for cpu in &free {
            caches.entry(self.0.get(cpu).map(of_cache).unwrap_or_default()).or_default().insert(*cpu);
        }
        let mut caches: Vec<_> = caches.into_iter().collect();
        caches.sort_unstable_by_key(|((node, _, cache), cpus)| (*node, cpus.len(), *cache));
        let part = caches.iter().find_map(|(_, cpus)| self.part_of_cache(cpus, needed)).filter(|_| needed > 0);
        chosen.extend(part);
        chosen
    }

    /// Takes this many of a cache's free CPUs, core by core; `None` if its first cores do not have exactly that many.
    fn part_of_cache(&self, free: &CpuSet, needed: usize) -> Option<CpuSet> {
        let cores: BTreeSet<_> = free.iter().filter_map(|cpu| self.0.get(cpu)).map(core_of).collect();
        let cores: BTreeSet<_> = cores.into_iter().take(needed.div_ceil(self.per_core().max(1))).collect();
        let of_cores = |cpu: &&u32| self.0.get(cpu).is_some_and(|cpu_info| cores.contains(&core_of(cpu_info)));
        let mut cpus: CpuSet = free.iter().filter(of_cores).copied().collect();
        // With an odd number, one CPU of the last core is left.
        if needed % 2 == 1 && cpus.len() > needed {
            cpus.pop_last();
        }
        (cpus.len() == needed).then_some(cpus)
    }

    /// Returns the groups in which every CPU is free, in order.
    fn free_groups(&self, free: &CpuSet, group: fn(&CpuInfo) -> (u32, u32, u32)) -> Vec<CpuSet> {
        let mut groups: BTreeMap<(u32, u32, u32), CpuSet> = BTreeMap::new();
        for (cpu, cpu_info) in &self.0 {
            groups.entry(group(cpu_info)).or_default().insert(*cpu);
        }
        groups.into_values().filter(|cpus| cpus.is_subset(free)).collect()
    }

    /// Returns the free CPU with the fewest free neighbours.
    fn with_fewest_free_neighbours(&self, free: &CpuSet) -> Option<u32> {
        let neighbours = |cpu: u32| {
            let own = self.0.get(&cpu);
            let near = |same: fn(&CpuInfo, &CpuInfo) -> bool| {
                let others = free.iter().filter_map(|other| self.0.get(other));
                own.map_or(0, |own| others.filter(|other| same(own, other)).count())
            };
            (
                near(|a, b| a.numa_node == b.numa_node),
                near(|a, b| a.socket == b.socket),
                near(|a, b| core_of(a) == core_of(b)),
                cpu,
            )
        };
        free.iter().copied().min_by_key(|cpu| neighbours(*cpu))
    }
}

/// Takes the groups that are not larger than the rest of the request.
fn take_groups(groups: Vec<CpuSet>, free: &mut CpuSet, taken: &mut CpuSet, count: usize) {
    for cpus in groups {
        if taken.len() + cpus.len() <= count {
            free.retain(|cpu| !cpus.contains(cpu));
            taken.extend(cpus);
        }
    }
}

fn core_of(cpu_info: &CpuInfo) -> (u32, u32, u32) {
    (0, cpu_info.socket, cpu_info.core)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a machine of two sockets, a NUMA node each, of two cores with two threads: 0 and 4 are one core, as
    /// kernels number them.
    fn machine() -> Topology {
        let cpu_info = |cpu: u32| CpuInfo { numa_node: cpu % 4 / 2, socket: cpu % 4 / 2, core: cpu % 4 % 2, cache: 0 };
        Topology((0..8).map(|cpu| (cpu, cpu_info(cpu))).collect())
    }

    #[test]
    fn cpus_of_one_core_are_taken_together() {
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
            let taken = machine().take(&set::parse(free).unwrap(), count, false).map(|taken| set::format(&taken));
            let expected = set::format(&set::parse(expected).unwrap());
            assert_eq!(taken, Some(expected), "{count} of {free}");
        }
        assert_eq!(machine().take(&set::parse("0-1").unwrap(), 3, false), None);
    }

    #[test]
    fn cpus_are_distributed_evenly_on_request() {
        for (free, count, full_pcpus_only, expected) in [
            ("0-7", 4, false, Some("0-1,4-5")),
            ("0-7", 6, false, Some("0-4,6")),
            ("0-7", 6, true, Some("0-2,4-6")),
            ("1-7", 6, false, Some("1-6")),
            ("1-7", 5, true, None),
            ("2-3,6", 4, false, None),
        ] {
            let taken = machine().take_distributed(&set::parse(free).unwrap(), count, full_pcpus_only);
            assert_eq!(taken, expected.map(|expected| set::parse(expected).unwrap()), "{count} of {free}");
        }
    }

    #[test]
    fn cpus_that_share_a_cache_are_taken_together_on_request() {
        // One NUMA node of sixteen CPUs, two to a core, four cores to a cache: 0 and 1 are one core.
        let cpu_info = |cpu: u32| CpuInfo { numa_node: 0, socket: 0, core: cpu / 2, cache: cpu / 8 };
        let machine = Topology((0..16).map(|cpu| (cpu, cpu_info(cpu))).collect());
        for (free, count, by_cache, expected) in [
            ("2-15", 8, true, "8-15"),
            ("2-15", 8, false, "2-9"),
            ("2-15", 4, true, "2-5"),
            ("6-15", 4, true, "8-11"),
            ("6-15", 4, false, "6-9"),
            ("6-15", 3, true, "8-10"),
            ("4-7,12-15", 6, true, "4-7,12-13"),
            ("2-15", 10, true, "2-3,8-15"),
        ] {
            let taken = machine.take(&set::parse(free).unwrap(), count, by_cache).map(|taken| set::format(&taken));
            assert_eq!(taken.as_deref(), Some(expected), "{count} of {free}, {by_cache}");
        }
        assert_eq!(machine.per_core(), 2);
        assert_eq!(machine.with_siblings(&set::parse("1,6").unwrap()), set::parse("0-1,6-7").unwrap());
    }

    #[test]
    fn this_machine_has_cpus() {
        assert!(!Topology::read().all().is_empty());
    }
}
