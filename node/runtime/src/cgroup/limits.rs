//! Resource limits, from the CRI's fields to files of either cgroup version.
//!
//! `Limits::files` is pure: it decides which file gets which content. `Group::apply` writes the files.

use std::collections::BTreeMap;
use std::fs;

use super::Group;
use crate::Error;

/// The resource limits of a container. Zero or empty means "not set".
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Limits {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub cpu_period: i64,
    pub memory: i64,
    pub memory_swap: i64,
    pub cpuset_cpus: String,
    pub cpuset_mems: String,
    /// Limits in bytes by page size, e.g. `2MB`.
    pub hugepages: Vec<(String, u64)>,
    /// Content of v2 files by name, written unchanged.
    pub unified: BTreeMap<String, String>,
}

/// A file to write.
#[derive(Debug)]
pub(crate) struct Write {
    controller: &'static str,
    file: String,
    content: String,
}

impl Write {
    fn new(controller: &'static str, file: impl Into<String>, content: impl Into<String>) -> Self {
        Self { controller, file: file.into(), content: content.into() }
    }
}

impl Limits {
    /// Returns the writes that set these limits, in the order the kernel accepts them.
    pub fn files(&self, v2: bool) -> Vec<Write> {
        let mut files = if v2 { self.v2_files() } else { self.v1_files() };
        let non_empty = |value: &String| (!value.is_empty()).then(|| value.clone());
        files.extend(non_empty(&self.cpuset_cpus).map(|value| Write::new("cpuset", "cpuset.cpus", value)));
        files.extend(non_empty(&self.cpuset_mems).map(|value| Write::new("cpuset", "cpuset.mems", value)));
        files
    }

    fn v1_files(&self) -> Vec<Write> {
        let mut files: Vec<Write> = Vec::new();
        if self.cpu_shares > 0 {
            files.push(Write::new("cpu", "cpu.shares", self.cpu_shares.to_string()));
        }
        if self.cpu_period > 0 {
            files.push(Write::new("cpu", "cpu.cfs_period_us", self.cpu_period.to_string()));
        }
        if self.cpu_quota != 0 {
            files.push(Write::new("cpu", "cpu.cfs_quota_us", self.cpu_quota.to_string()));
        }
        if self.memory > 0 {
            files.push(Write::new("memory", "memory.limit_in_bytes", self.memory.to_string()));
            // Without a limit of its own, swap would double the memory that the container may use.
            let swap = if self.memory_swap > 0 { self.memory_swap } else { self.memory };
            files.push(Write::new("memory", "memory.memsw.limit_in_bytes", swap.to_string()));
        }
        files.extend(
            self.hugepages.iter().map(|(size, bytes)| {
                Write::new("hugetlb", format!("hugetlb.{size}.limit_in_bytes"), bytes.to_string())
            }),
        );
        files
    }

    fn v2_files(&self) -> Vec<Write> {
        let mut files: Vec<Write> = Vec::new();
        if self.cpu_shares > 0 {
            files.push(Write::new("cpu", "cpu.weight", weight(self.cpu_shares).to_string()));
        }
        if self.cpu_quota != 0 || self.cpu_period > 0 {
            let quota = if self.cpu_quota > 0 { self.cpu_quota.to_string() } else { "max".into() };
            let period = if self.cpu_period > 0 { self.cpu_period } else { 100_000 };
            files.push(Write::new("cpu", "cpu.max", format!("{quota} {period}")));
        }
        if self.memory > 0 {
            files.push(Write::new("memory", "memory.max", self.memory.to_string()));
            let swap = (self.memory_swap - self.memory).max(0);
            files.push(Write::new("memory", "memory.swap.max", swap.to_string()));
        }
        files.extend(
            self.hugepages
                .iter()
                .map(|(size, bytes)| Write::new("hugetlb", format!("hugetlb.{size}.max"), bytes.to_string())),
        );
        files.extend(self.unified.iter().map(|(file, value)| Write::new("unified", file, value)));
        files
    }

    /// Returns these limits, overwritten by the ones that are set in `update`.
    pub fn updated(&self, update: &Self) -> Self {
        let number = |old: i64, new: i64| if new != 0 { new } else { old };
        let newer = |old: &String, new: &String| if new.is_empty() { old.clone() } else { new.clone() };
        Self {
            cpu_shares: number(self.cpu_shares, update.cpu_shares),
            cpu_quota: number(self.cpu_quota, update.cpu_quota),
            cpu_period: number(self.cpu_period, update.cpu_period),
            memory: number(self.memory, update.memory),
            memory_swap: number(self.memory_swap, update.memory_swap),
            cpuset_cpus: newer(&self.cpuset_cpus, &update.cpuset_cpus),
            cpuset_mems: newer(&self.cpuset_mems, &update.cpuset_mems),
            hugepages: if update.hugepages.is_empty() { self.hugepages.clone() } else { update.hugepages.clone() },
            unified: self.unified.clone().into_iter().chain(update.unified.clone()).collect(),
        }
    }
}

/// Converts v1 shares (2 to 262144) to v2's scale (1 to 10000), by the formula that every runtime uses.
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

impl Group {
    /// Writes limits. Skips a file that this kernel does not have, unless a memory limit depends on it.
    pub fn apply(&self, limits: &Limits) -> Result<(), Error> {
        let v2 = self.hierarchy.is_v2();
        let mut writes = limits.files(v2);
        // The limit of memory with swap must never be below the limit of memory: when the limit grows, swap is written
        // first.
        if !v2 && self.read_number("memory", "memory.limit_in_bytes").is_some_and(|now| limits.memory as u64 > now) {
            writes.reverse();
        }
        for Write { controller, file, content } in writes {
            let controller = if controller == "unified" { "memory" } else { controller };
            let Some(path) = self.folder(controller).map(|folder| folder.join(&file)) else { continue };
            match fs::write(&path, &content) {
                Ok(()) => {}
                Err(_) if !path.exists() && file != "memory.limit_in_bytes" && file != "memory.max" => {}
                Err(source) => return Err(Error::File { action: "write limit to", path, source }),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(limits: &Limits, v2: bool) -> Vec<String> {
        limits.files(v2).into_iter().map(|write| format!("{}={}", write.file, write.content)).collect()
    }

    #[test]
    fn limits_become_files_of_each_version() {
        let limits =
            Limits { cpu_shares: 1024, cpu_quota: 50_000, cpu_period: 100_000, memory: 1 << 20, ..Limits::default() };
        assert_eq!(
            shown(&limits, false),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=50000",
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=1048576"
            ]
        );
        assert_eq!(
            shown(&limits, true),
            ["cpu.weight=39", "cpu.max=50000 100000", "memory.max=1048576", "memory.swap.max=0"]
        );
        assert!(shown(&Limits::default(), true).is_empty());
    }

    #[test]
    fn an_update_keeps_the_limits_that_it_does_not_set() {
        let limits = Limits { cpu_shares: 2, memory: 5, ..Limits::default() };
        let updated = limits.updated(&Limits { memory: 7, ..Limits::default() });
        assert_eq!((updated.cpu_shares, updated.memory), (2, 7));
    }
}
