//! The current resource usage of a control group.

use std::fs;

use super::Group;

/// A reading of a group. A figure that the kernel does not report is zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The CPU time since the group's creation.
    pub cpu_nanoseconds: u64,
    pub memory_bytes: u64,
    /// Memory without the file pages that can be dropped at once; eviction decides by it.
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    /// The memory limit; `None` when there is no limit.
    pub memory_limit: Option<u64>,
    pub swap_bytes: u64,
    pub processes: u64,
}

impl Group {
    pub fn usage(&self) -> Usage {
        let mut usage = if self.hierarchy.is_v2() { self.usage_v2() } else { self.usage_v1() };
        usage.processes = self.processes().len() as u64;
        usage
    }

    fn usage_v1(&self) -> Usage {
        let number = |controller, file| self.read_number(controller, file).unwrap_or(0);
        let statistics = self.read("memory", "memory.stat");
        let memory_bytes = number("memory", "memory.usage_in_bytes");
        let both = number("memory", "memory.memsw.usage_in_bytes");
        Usage {
            cpu_nanoseconds: number("cpuacct", "cpuacct.usage"),
            memory_bytes,
            working_set_bytes: memory_bytes.saturating_sub(field(&statistics, "total_inactive_file")),
            rss_bytes: field(&statistics, "total_rss"),
            page_faults: field(&statistics, "total_pgfault"),
            major_page_faults: field(&statistics, "total_pgmajfault"),
            // v1 reports "no limit" as a number near the largest.
            memory_limit: Some(number("memory", "memory.limit_in_bytes")).filter(|limit| *limit < 1 << 62),
            swap_bytes: both.saturating_sub(memory_bytes),
            processes: 0,
        }
    }

    fn usage_v2(&self) -> Usage {
        let number = |file| self.read_number("memory", file).unwrap_or(0);
        let statistics = self.read("memory", "memory.stat");
        let memory_bytes = number("memory.current");
        Usage {
            cpu_nanoseconds: field(&self.read("cpu", "cpu.stat"), "usage_usec") * 1000,
            memory_bytes,
            working_set_bytes: memory_bytes.saturating_sub(field(&statistics, "inactive_file")),
            rss_bytes: field(&statistics, "anon"),
            page_faults: field(&statistics, "pgfault"),
            major_page_faults: field(&statistics, "pgmajfault"),
            memory_limit: self.read_number("memory", "memory.max"),
            swap_bytes: number("memory.swap.current"),
            processes: 0,
        }
    }

    fn read(&self, controller: &str, file: &str) -> String {
        self.folder(controller).and_then(|folder| fs::read_to_string(folder.join(file)).ok()).unwrap_or_default()
    }

    /// Reads a file that holds one number; returns `None` for `max`.
    pub(super) fn read_number(&self, controller: &str, file: &str) -> Option<u64> {
        self.read(controller, file).trim().parse().ok()
    }
}

fn field(statistics: &str, name: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    statistics.lines().find_map(value).unwrap_or(0)
}
