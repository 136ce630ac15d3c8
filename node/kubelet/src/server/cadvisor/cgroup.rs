//! The metrics in the files of a cgroup, under the same names for both cgroup versions.
//!
//! Pure, except for the names of disks: a function reads the files.

use std::fs;

use corten_meta::metrics::Family;

use super::super::metrics::TICKS;
use super::{Figure, Read, common, number};
use crate::container::cgroups::field;
use crate::metrics::cadvisor::*;

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
            (&CONTAINER_CPU_CFS_PERIODS_TOTAL, field(&throttling, "nr_periods").map(|count| count as f64)),
            (&CONTAINER_CPU_CFS_THROTTLED_PERIODS_TOTAL, field(&throttling, "nr_throttled").map(|count| count as f64)),
            (
                &CONTAINER_CPU_CFS_THROTTLED_SECONDS_TOTAL,
                field(&throttling, "throttled_time").map(|time| time as f64 / 1e9),
            ),
            (&CONTAINER_CPU_USER_SECONDS_TOTAL, ticks("user")),
            (&CONTAINER_CPU_SYSTEM_SECONDS_TOTAL, ticks("system")),
            (&CONTAINER_MEMORY_CACHE, memory("cache")),
            (&CONTAINER_MEMORY_FAILCNT, number(read("memory", "memory.failcnt"))),
            (&CONTAINER_MEMORY_KERNEL_USAGE, number(read("memory", "memory.kmem.usage_in_bytes"))),
            (&CONTAINER_MEMORY_MAPPED_FILE, memory("mapped_file")),
            (&CONTAINER_MEMORY_MAX_USAGE_BYTES, number(read("memory", "memory.max_usage_in_bytes"))),
            (&CONTAINER_MEMORY_RSS, memory("rss")),
            (&CONTAINER_MEMORY_SWAP, memory("swap")),
            (&CONTAINER_MEMORY_TOTAL_ACTIVE_FILE_BYTES, memory("active_file")),
            (&CONTAINER_MEMORY_TOTAL_INACTIVE_FILE_BYTES, memory("inactive_file")),
            (&CONTAINER_MEMORY_USAGE_BYTES, usage),
            (
                &CONTAINER_MEMORY_WORKING_SET_BYTES,
                usage.map(|usage| (usage - memory("inactive_file").unwrap_or(0.0)).max(0.0)),
            ),
            (&CONTAINER_OOM_EVENTS_TOTAL, ooms.map(|count| count as f64)),
            (&CONTAINER_SPEC_CPU_PERIOD, number(read("cpu", "cpu.cfs_period_us"))),
            (&CONTAINER_SPEC_CPU_QUOTA, quota),
            (&CONTAINER_SPEC_CPU_SHARES, number(read("cpu", "cpu.shares"))),
            (&CONTAINER_SPEC_MEMORY_LIMIT_BYTES, limit("memory.limit_in_bytes")),
            (&CONTAINER_SPEC_MEMORY_RESERVATION_LIMIT_BYTES, limit("memory.soft_limit_in_bytes")),
            (&CONTAINER_SPEC_MEMORY_SWAP_LIMIT_BYTES, limit("memory.memsw.limit_in_bytes")),
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
            [&CONTAINER_FS_READS_BYTES_TOTAL, &CONTAINER_FS_WRITES_BYTES_TOTAL],
        ),
        ("blkio.throttle.io_serviced_recursive", [&CONTAINER_FS_READS_TOTAL, &CONTAINER_FS_WRITES_TOTAL]),
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
            (&CONTAINER_CPU_CFS_PERIODS_TOTAL, limited(field(&times, "nr_periods").map(|count| count as f64))),
            (
                &CONTAINER_CPU_CFS_THROTTLED_PERIODS_TOTAL,
                limited(field(&times, "nr_throttled").map(|count| count as f64)),
            ),
            (&CONTAINER_CPU_CFS_THROTTLED_SECONDS_TOTAL, limited(micro("throttled_usec"))),
            (&CONTAINER_CPU_USER_SECONDS_TOTAL, micro("user_usec")),
            (&CONTAINER_CPU_SYSTEM_SECONDS_TOTAL, micro("system_usec")),
            (&CONTAINER_MEMORY_CACHE, memory("file")),
            (&CONTAINER_MEMORY_FAILCNT, field(&events, "max").map(|count| count as f64)),
            (&CONTAINER_MEMORY_KERNEL_USAGE, memory("kernel")),
            (&CONTAINER_MEMORY_MAPPED_FILE, memory("file_mapped")),
            (&CONTAINER_MEMORY_MAX_USAGE_BYTES, number(read("memory", "memory.peak"))),
            (&CONTAINER_MEMORY_RSS, memory("anon")),
            (&CONTAINER_MEMORY_SWAP, number(read("memory", "memory.swap.current"))),
            (&CONTAINER_MEMORY_TOTAL_ACTIVE_FILE_BYTES, memory("active_file")),
            (&CONTAINER_MEMORY_TOTAL_INACTIVE_FILE_BYTES, memory("inactive_file")),
            (&CONTAINER_MEMORY_USAGE_BYTES, usage),
            (
                &CONTAINER_MEMORY_WORKING_SET_BYTES,
                usage.map(|usage| (usage - memory("inactive_file").unwrap_or(0.0)).max(0.0)),
            ),
            (&CONTAINER_OOM_EVENTS_TOTAL, field(&events, "oom_kill").map(|count| count as f64)),
            (&CONTAINER_SPEC_CPU_PERIOD, period.parse().ok()),
            (&CONTAINER_SPEC_CPU_QUOTA, quota),
            (&CONTAINER_SPEC_CPU_SHARES, weight.map(|weight| 2.0 + ((weight - 1.0) * 262_142.0 / 9_999.0).floor())),
            (&CONTAINER_SPEC_MEMORY_LIMIT_BYTES, limit("memory.max")),
            (&CONTAINER_SPEC_MEMORY_RESERVATION_LIMIT_BYTES, limit("memory.low")),
            (&CONTAINER_SPEC_MEMORY_SWAP_LIMIT_BYTES, limit("memory.swap.max")),
        ],
    );
    cpu_total(list, micro("usage_usec"));
    let faults = [field(&stat, "pgfault"), field(&stat, "pgmajfault")];
    failures(list, [faults[0], faults[1], faults[0], faults[1]]);
    for line in read("io", "io.stat").unwrap_or_default().lines() {
        let Some((device, values)) = line.split_once(' ') else { continue };
        let value = |name: &str| values.split(' ').find_map(|pair| pair.strip_prefix(name)?.parse::<f64>().ok());
        let bytes = [&CONTAINER_FS_READS_BYTES_TOTAL, &CONTAINER_FS_WRITES_BYTES_TOTAL];
        let counts = [&CONTAINER_FS_READS_TOTAL, &CONTAINER_FS_WRITES_TOTAL];
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
        ("cpu.pressure", &CONTAINER_PRESSURE_CPU_WAITING_SECONDS_TOTAL, &CONTAINER_PRESSURE_CPU_STALLED_SECONDS_TOTAL),
        ("io.pressure", &CONTAINER_PRESSURE_IO_WAITING_SECONDS_TOTAL, &CONTAINER_PRESSURE_IO_STALLED_SECONDS_TOTAL),
        (
            "memory.pressure",
            &CONTAINER_PRESSURE_MEMORY_WAITING_SECONDS_TOTAL,
            &CONTAINER_PRESSURE_MEMORY_STALLED_SECONDS_TOTAL,
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
    list.extend(used.map(|used| (&CONTAINER_CPU_USAGE_SECONDS_TOTAL, vec![("cpu", "total".to_owned())], used)));
}

/// Adds page faults and major page faults: of the cgroup itself, and of its descendants.
fn failures(list: &mut Vec<Figure>, counts: [Option<u64>; 4]) {
    let kinds =
        [("pgfault", "container"), ("pgmajfault", "container"), ("pgfault", "hierarchy"), ("pgmajfault", "hierarchy")];
    for ((kind, scope), count) in kinds.into_iter().zip(counts) {
        let labels = || vec![("failure_type", kind.to_owned()), ("scope", scope.to_owned())];
        list.extend(count.map(|count| (&CONTAINER_MEMORY_FAILURES_TOTAL, labels(), count as f64)));
    }
}

fn disk(list: &mut Vec<Figure>, device: &str, operation: &str, [reads, writes]: [&'static Family; 2], count: f64) {
    let (major, minor) = device.split_once(':').unwrap_or((device, ""));
    let name = fs::read_link(format!("/sys/dev/block/{device}")).ok();
    let name = name.and_then(|path| Some(format!("/dev/{}", path.file_name()?.to_str()?))).unwrap_or_default();
    let family = match operation {
        "Read" => Some(reads),
        "Write" => Some(writes),
        _ => None,
    };
    list.extend(family.map(|family| (family, vec![("device", name.clone())], count)));
    if reads.name.contains("bytes") {
        let labels = vec![
            ("device", name),
            ("major", major.to_owned()),
            ("minor", minor.to_owned()),
            ("operation", operation.to_owned()),
        ];
        list.push((&CONTAINER_BLKIO_DEVICE_USAGE_TOTAL, labels, count));
    }
}
