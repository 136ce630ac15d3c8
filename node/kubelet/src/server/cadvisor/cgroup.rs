//! The metrics in the files of a cgroup, under the same names for both cgroup versions.
//!
//! Pure, except for the names of disks: a function reads the files.

use std::fs;

use super::super::metrics::TICKS;
use super::{Figure, Read, common, number};
use crate::container::cgroups::field;

/// Reads the files of cgroup v1.
pub(super) fn legacy(read: Read<'_>, list: &mut Vec<Figure>) {
    let stat = read("memory", "memory.stat").unwrap_or_default();
    let memory = |name: &str| field(&stat, &format!("total_{name}")).map(|bytes| bytes as f64);
    let usage = number(read("memory", "memory.usage_in_bytes"));
    let quota = number(read("cpu", "cpu.cfs_quota_us")).filter(|quota| *quota > 0.0);
    let throttling = quota.and_then(|_| read("cpu", "cpu.stat")).unwrap_or_default();
    let times = read("cpuacct", "cpuacct.stat").unwrap_or_default();
    let ticks = |name: &str| field(&times, name).map(|ticks| ticks as f64 / TICKS);
    let limit = |file: &str| number(read("memory", file)).map(|bytes| if bytes > 9e18 { 0.0 } else { bytes });
    let ooms = read("memory", "memory.oom_control").and_then(|text| field(&text, "oom_kill"));
    common(
        list,
        &[
            ("container_cpu_cfs_periods_total", field(&throttling, "nr_periods").map(|count| count as f64)),
            ("container_cpu_cfs_throttled_periods_total", field(&throttling, "nr_throttled").map(|count| count as f64)),
            (
                "container_cpu_cfs_throttled_seconds_total",
                field(&throttling, "throttled_time").map(|time| time as f64 / 1e9),
            ),
            ("container_cpu_user_seconds_total", ticks("user")),
            ("container_cpu_system_seconds_total", ticks("system")),
            ("container_memory_cache", memory("cache")),
            ("container_memory_failcnt", number(read("memory", "memory.failcnt"))),
            ("container_memory_kernel_usage", number(read("memory", "memory.kmem.usage_in_bytes"))),
            ("container_memory_mapped_file", memory("mapped_file")),
            ("container_memory_max_usage_bytes", number(read("memory", "memory.max_usage_in_bytes"))),
            ("container_memory_rss", memory("rss")),
            ("container_memory_swap", memory("swap")),
            ("container_memory_total_active_file_bytes", memory("active_file")),
            ("container_memory_total_inactive_file_bytes", memory("inactive_file")),
            ("container_memory_usage_bytes", usage),
            (
                "container_memory_working_set_bytes",
                usage.map(|usage| (usage - memory("inactive_file").unwrap_or(0.0)).max(0.0)),
            ),
            ("container_oom_events_total", ooms.map(|count| count as f64)),
            ("container_spec_cpu_period", number(read("cpu", "cpu.cfs_period_us"))),
            ("container_spec_cpu_quota", quota),
            ("container_spec_cpu_shares", number(read("cpu", "cpu.shares"))),
            ("container_spec_memory_limit_bytes", limit("memory.limit_in_bytes")),
            ("container_spec_memory_reservation_limit_bytes", limit("memory.soft_limit_in_bytes")),
            ("container_spec_memory_swap_limit_bytes", limit("memory.memsw.limit_in_bytes")),
        ],
    );
    let used = number(read("cpuacct", "cpuacct.usage")).map(|time| time / 1e9);
    cpu_total(list, used);
    failures(
        list,
        [
            field(&stat, "pgfault"),
            field(&stat, "pgmajfault"),
            field(&stat, "total_pgfault"),
            field(&stat, "total_pgmajfault"),
        ],
    );
    for (file, names) in [
        (
            "blkio.throttle.io_service_bytes_recursive",
            ["container_fs_reads_bytes_total", "container_fs_writes_bytes_total"],
        ),
        ("blkio.throttle.io_serviced_recursive", ["container_fs_reads_total", "container_fs_writes_total"]),
    ] {
        for line in read("blkio", file).unwrap_or_default().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [device, operation, count] = words.as_slice() else { continue };
            let Ok(count) = count.parse::<f64>() else { continue };
            disk(list, device, operation, names, count);
        }
    }
}

/// Reads the files of cgroup v2.
pub(super) fn unified(read: Read<'_>, list: &mut Vec<Figure>) {
    let stat = read("memory", "memory.stat").unwrap_or_default();
    let memory = |name: &str| field(&stat, name).map(|bytes| bytes as f64);
    let times = read("cpu", "cpu.stat").unwrap_or_default();
    let micro = |name: &str| field(&times, name).map(|time| time as f64 / 1e6);
    let max = read("cpu", "cpu.max").unwrap_or_default();
    let (quota, period) = max.trim().split_once(' ').unwrap_or_default();
    let quota: Option<f64> = quota.parse().ok();
    let limited = |value: Option<f64>| value.filter(|_| quota.is_some());
    let weight = number(read("cpu", "cpu.weight"));
    let usage = number(read("memory", "memory.current"));
    // `max` is no limit, which upstream does not write.
    let limit = |file: &str| read("memory", file).map(|text| text.trim().parse().unwrap_or(0.0));
    let events = read("memory", "memory.events").unwrap_or_default();
    common(
        list,
        &[
            ("container_cpu_cfs_periods_total", limited(field(&times, "nr_periods").map(|count| count as f64))),
            (
                "container_cpu_cfs_throttled_periods_total",
                limited(field(&times, "nr_throttled").map(|count| count as f64)),
            ),
            ("container_cpu_cfs_throttled_seconds_total", limited(micro("throttled_usec"))),
            ("container_cpu_user_seconds_total", micro("user_usec")),
            ("container_cpu_system_seconds_total", micro("system_usec")),
            ("container_memory_cache", memory("file")),
            ("container_memory_failcnt", field(&events, "max").map(|count| count as f64)),
            ("container_memory_kernel_usage", memory("kernel")),
            ("container_memory_mapped_file", memory("file_mapped")),
            ("container_memory_max_usage_bytes", number(read("memory", "memory.peak"))),
            ("container_memory_rss", memory("anon")),
            ("container_memory_swap", number(read("memory", "memory.swap.current"))),
            ("container_memory_total_active_file_bytes", memory("active_file")),
            ("container_memory_total_inactive_file_bytes", memory("inactive_file")),
            ("container_memory_usage_bytes", usage),
            (
                "container_memory_working_set_bytes",
                usage.map(|usage| (usage - memory("inactive_file").unwrap_or(0.0)).max(0.0)),
            ),
            ("container_oom_events_total", field(&events, "oom_kill").map(|count| count as f64)),
            ("container_spec_cpu_period", period.parse().ok()),
            ("container_spec_cpu_quota", quota),
            ("container_spec_cpu_shares", weight.map(|weight| 2.0 + ((weight - 1.0) * 262_142.0 / 9_999.0).floor())),
            ("container_spec_memory_limit_bytes", limit("memory.max")),
            ("container_spec_memory_reservation_limit_bytes", limit("memory.low")),
            ("container_spec_memory_swap_limit_bytes", limit("memory.swap.max")),
        ],
    );
    cpu_total(list, micro("usage_usec"));
    let faults = [field(&stat, "pgfault"), field(&stat, "pgmajfault")];
    failures(list, [faults[0], faults[1], faults[0], faults[1]]);
    for line in read("io", "io.stat").unwrap_or_default().lines() {
        let Some((device, values)) = line.split_once(' ') else { continue };
        let value = |name: &str| values.split(' ').find_map(|pair| pair.strip_prefix(name)?.parse::<f64>().ok());
        let bytes = ["container_fs_reads_bytes_total", "container_fs_writes_bytes_total"];
        let counts = ["container_fs_reads_total", "container_fs_writes_total"];
        for (operation, name, names) in [
            ("Read", "rbytes=", bytes),
            ("Write", "wbytes=", bytes),
            ("Read", "rios=", counts),
            ("Write", "wios=", counts),
        ] {
            disk(list, device, operation, names, value(name).unwrap_or(0.0));
        }
    }
    for (file, waiting, stalled) in [
        (
            "cpu.pressure",
            "container_pressure_cpu_waiting_seconds_total",
            "container_pressure_cpu_stalled_seconds_total",
        ),
        ("io.pressure", "container_pressure_io_waiting_seconds_total", "container_pressure_io_stalled_seconds_total"),
        (
            "memory.pressure",
            "container_pressure_memory_waiting_seconds_total",
            "container_pressure_memory_stalled_seconds_total",
        ),
    ] {
        let text = read("cpu", file).unwrap_or_default();
        for (kind, name) in [("some ", waiting), ("full ", stalled)] {
            let line = text.lines().find_map(|line| line.strip_prefix(kind)?.rsplit_once("total="));
            let total = line.and_then(|(_, total)| total.trim().parse::<f64>().ok());
            list.extend(total.map(|total| (name, Vec::new(), total / 1e6)));
        }
    }
}

fn cpu_total(list: &mut Vec<Figure>, used: Option<f64>) {
    list.extend(used.map(|used| ("container_cpu_usage_seconds_total", vec![("cpu", "total".to_owned())], used)));
}

/// Adds page faults and major page faults: of the cgroup itself, and of its descendants.
fn failures(list: &mut Vec<Figure>, counts: [Option<u64>; 4]) {
    let kinds =
        [("pgfault", "container"), ("pgmajfault", "container"), ("pgfault", "hierarchy"), ("pgmajfault", "hierarchy")];
    for ((kind, scope), count) in kinds.into_iter().zip(counts) {
        let labels = || vec![("failure_type", kind.to_owned()), ("scope", scope.to_owned())];
        list.extend(count.map(|count| ("container_memory_failures_total", labels(), count as f64)));
    }
}

fn disk(list: &mut Vec<Figure>, device: &str, operation: &str, [reads, writes]: [&'static str; 2], count: f64) {
    let (major, minor) = device.split_once(':').unwrap_or((device, ""));
    let name = fs::read_link(format!("/sys/dev/block/{device}")).ok();
    let name = name.and_then(|path| Some(format!("/dev/{}", path.file_name()?.to_str()?))).unwrap_or_default();
    let family = match operation {
        "Read" => Some(reads),
        "Write" => Some(writes),
        _ => None,
    };
    list.extend(family.map(|family| (family, vec![("device", name.clone())], count)));
    if reads.contains("bytes") {
        let labels = vec![
            ("device", name),
            ("major", major.to_owned()),
            ("minor", minor.to_owned()),
            ("operation", operation.to_owned()),
        ];
        list.push(("container_blkio_device_usage_total", labels, count));
    }
}
