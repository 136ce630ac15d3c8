//! The resource usage of the machine, from the kernel's tables. Reading is separate from parsing: a pure function
//! parses every table.

use std::fs;

use jiff::Timestamp;

use crate::summary::{InterfaceStats, MemoryStats, NetworkStats, RlimitStats, SwapStats, Time};

/// Returns the machine's CPU time so far, in nanoseconds, and its boot time.
pub fn cpu() -> Option<(u64, Timestamp)> {
    parse_cpu(&fs::read_to_string("/proc/stat").ok()?)
}

/// Parses the CPU time. The kernel counts in hundredths of a second; idle and iowait time is no usage.
pub(crate) fn parse_cpu(text: &str) -> Option<(u64, Timestamp)> {
    const TICK_NANOSECONDS: u64 = 10_000_000;
    let total = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = total.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let busy =
        [0, 1, 2, 5, 6, 7].iter().filter_map(|at| ticks.get(*at)).fold(0, |sum: u64, tick| sum.saturating_add(*tick));
    let boot = text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some((busy.saturating_mul(TICK_NANOSECONDS), Timestamp::from_second(boot).ok()?))
}

pub fn memory(time: Time) -> Option<(MemoryStats, SwapStats)> {
    let faults = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    parse_memory(&fs::read_to_string("/proc/meminfo").ok()?, &faults, time)
}

/// Parses memory usage. The working set is the used memory less the inactive file pages.
pub(crate) fn parse_memory(table: &str, faults: &str, time: Time) -> Option<(MemoryStats, SwapStats)> {
    let bytes = |name: &str| -> Option<u64> {
        let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kibibytes| kibibytes.saturating_mul(1024))
    };
    let fault = |name: &str| {
        faults.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    let total = bytes("MemTotal")?;
    let used = total.saturating_sub(bytes("MemFree")?);
    let working_set = used.saturating_sub(bytes("Inactive(file)").unwrap_or(0));
    let swap = (bytes("SwapTotal").unwrap_or(0), bytes("SwapFree").unwrap_or(0));
    let memory = MemoryStats {
        time,
        available_bytes: Some(total.saturating_sub(working_set)),
        usage_bytes: Some(used),
        working_set_bytes: Some(working_set),
        rss_bytes: bytes("AnonPages"),
        page_faults: fault("pgfault"),
        major_page_faults: fault("pgmajfault"),
    };
    let swap =
        SwapStats { time, swap_available_bytes: Some(swap.1), swap_usage_bytes: Some(swap.0 - swap.1.min(swap.0)) };
    Some((memory, swap))
}

/// Returns the limit and the number of processes and threads.
pub fn processes(time: Time) -> Option<RlimitStats> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let limits = [number("/proc/sys/kernel/pid_max"), number("/proc/sys/kernel/threads-max")];
    let maxpid = limits.into_iter().flatten().min()?;
    let curproc = parse_load(&fs::read_to_string("/proc/loadavg").ok()?)?;
    Some(RlimitStats { time, maxpid, curproc })
}

/// Parses `0.1 0.2 0.3 1/234 5678`: the second number of the fraction is the number of processes and threads.
pub(crate) fn parse_load(text: &str) -> Option<i64> {
    text.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

pub fn network(time: Time) -> Option<NetworkStats> {
    let route = default_interface(&fs::read_to_string("/proc/net/route").unwrap_or_default());
    let interfaces = parse_interfaces(&fs::read_to_string("/proc/net/dev").ok()?);
    let default = interfaces.iter().find(|found| Some(&found.name) == route.as_ref()).or(interfaces.first())?;
    Some(NetworkStats { time, default: default.clone(), interfaces })
}

/// Returns the interface of the default route.
pub(crate) fn default_interface(routes: &str) -> Option<String> {
    let mut lines = routes.lines().skip(1).map(|line| line.split_whitespace());
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        let destination = fields.next()?;
        (destination == "00000000").then(|| name.to_owned())
    })
}

/// Parses all interfaces but the loopback and the links of pods.
pub(crate) fn parse_interfaces(table: &str) -> Vec<InterfaceStats> {
    let line = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<u64> = counters.split_whitespace().filter_map(|counter| counter.parse().ok()).collect();
        Some(InterfaceStats {
            name: name.trim().to_owned(),
            rx_bytes: *counters.first()?,
            rx_errors: *counters.get(2)?,
            tx_bytes: *counters.get(8)?,
            tx_errors: *counters.get(10)?,
        })
    };
    table.lines().filter_map(line).filter(|found| found.name != "lo" && !found.name.starts_with("veth")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Time = Time(Timestamp::UNIX_EPOCH);

    #[test]
    fn idle_time_is_no_use() {
        let (busy, boot) = parse_cpu("cpu  100 10 50 9000 800 5 5 30 0 0\ncpu0 1 1\nbtime 1700000000\n").unwrap();
        assert_eq!((busy, boot.as_second()), (200 * 10_000_000, 1_700_000_000));
    }

    #[test]
    fn the_working_set_leaves_out_idle_file_pages() {
        let table = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 1 kB\nInactive(file): 200 kB\nAnonPages: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n";
        let (memory, swap) = parse_memory(table, "pgfault 7\npgmajfault 2\n", TIME).unwrap();
        let kibibytes = |bytes: Option<u64>| bytes.map(|bytes| bytes / 1024);
        assert_eq!(kibibytes(memory.usage_bytes), Some(700));
        assert_eq!(kibibytes(memory.working_set_bytes), Some(500));
        assert_eq!(kibibytes(memory.available_bytes), Some(500));
        assert_eq!((memory.page_faults, memory.major_page_faults), (Some(7), Some(2)));
        assert_eq!(kibibytes(swap.swap_usage_bytes), Some(30));
    }

    #[test]
    fn the_kernels_tables_are_parsed() {
        assert_eq!(parse_load("0.1 0.2 0.3 3/456 99\n"), Some(456));
        let routes = "Iface Destination Gateway\nbr0 0000F40A 0\neth0 00000000 01\n";
        assert_eq!(default_interface(routes).as_deref(), Some("eth0"));
        let table = "Inter-| x\n face |y\n  lo: 1 1 0 0 0 0 0 0 1 1 0 0\neth0: 10 1 2 0 0 0 0 0 20 1 3 0 0 0 0 0\n";
        let found = parse_interfaces(table);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rx_bytes, found[0].rx_errors, found[0].tx_bytes, found[0].tx_errors), (10, 2, 20, 3));
    }
}
