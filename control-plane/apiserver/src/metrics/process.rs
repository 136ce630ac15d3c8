//! The resource use of the process, as every Prometheus client library reports it.

use corten_meta::metrics::{Exposition, families};

families! {
    CPU = Counter "process_cpu_seconds_total" [], "User and system CPU time in seconds.";
    MAX_FDS = Gauge "process_max_fds" [], "The maximum number of open file descriptors.";
    RECEIVED = Counter "process_network_receive_bytes_total" [], "Bytes received over the network.";
    SENT = Counter "process_network_transmit_bytes_total" [], "Bytes sent over the network.";
    OPEN_FDS = Gauge "process_open_fds" [], "The number of open file descriptors.";
    RESIDENT = Gauge "process_resident_memory_bytes" [], "Resident memory in bytes.";
    STARTED = Gauge "process_start_time_seconds" [], "The start time of the process, in Unix seconds.";
    VIRTUAL_MEMORY = Gauge "process_virtual_memory_bytes" [], "Virtual memory in bytes.";
    MAX_VIRTUAL_MEMORY = Gauge "process_virtual_memory_max_bytes" [],
        "The maximum virtual memory in bytes; -1 is unlimited.";
}

/// Writes the families of this process.
pub fn render(out: &mut Exposition) {
    let usage = Usage::read();
    for (family, value) in [
        (&CPU, usage.cpu_seconds),
        (&MAX_FDS, usage.max_fds),
        (&RECEIVED, usage.received),
        (&SENT, usage.sent),
        (&OPEN_FDS, usage.open_fds),
        (&RESIDENT, usage.resident),
        (&STARTED, usage.started),
        (&VIRTUAL_MEMORY, usage.virtual_memory),
        (&MAX_VIRTUAL_MEMORY, usage.max_virtual_memory),
    ] {
        if let Some(value) = value {
            out.single(family, value);
        }
    }
}

/// Returns the start time of the process, in Unix seconds.
pub fn started() -> Option<f64> {
    Usage::read().started
}

struct Usage {
    cpu_seconds: Option<f64>,
    max_fds: Option<f64>,
    open_fds: Option<f64>,
    resident: Option<f64>,
    started: Option<f64>,
    virtual_memory: Option<f64>,
    max_virtual_memory: Option<f64>,
    received: Option<f64>,
    sent: Option<f64>,
}

/// The kernel's clock ticks a second in /proc, on every architecture that Linux has a stable interface for.
const TICKS: f64 = 100.0;

impl Usage {
    fn read() -> Usage {
        let text = |file: &str| std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
        let stat = text("self/stat");
        let status = text("self/status");
        let limits = text("self/limits");
        let system = text("stat");
        // The name of the process, in parentheses, may have any characters.
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let field = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
        };
        let booted = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        let memory = limits.lines().find_map(|line| line.strip_prefix("Max address space"));
        let memory = memory.and_then(|line| line.split_whitespace().next());
        let [received, sent] = ["InOctets", "OutOctets"].map(|name| octets(&text("self/net/netstat"), name));
        let most = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        Usage {
            cpu_seconds: field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS),
            max_fds: most.and_then(|line| line.split_whitespace().next()?.parse().ok()),
            open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64),
            resident: kib("VmRSS:"),
            started: field(19).zip(booted).map(|(ticks, booted)| booted + ticks / TICKS),
            virtual_memory: kib("VmSize:"),
            max_virtual_memory: memory.map(|most| most.parse().unwrap_or(-1.0)),
            received,
            sent,
        }
    }
}

/// Returns a counter of the kernel's IP table: a line of names, and below it a line of numbers.
fn octets(table: &str, name: &str) -> Option<f64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let at = lines.next()?.split_whitespace().position(|one| one == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_found_by_name() {
        let table = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InOctets X OutOctets\nIpExt: 3 4 5\n";
        assert_eq!((octets(table, "InOctets"), octets(table, "OutOctets")), (Some(3.0), Some(5.0)));
        assert_eq!(octets("", "InOctets"), None);
    }
}
