//! The metrics that only the processes of a cgroup have: their network and their open files.

use std::fs;

use super::{Figure, Read, Row, common, number};

/// Adds the samples of a cgroup's processes: the network of a pod, everything else of a container.
pub(super) fn figures(read: Read<'_>, row: &Row, list: &mut Vec<Figure>) {
    let threads = number(read("pids", "pids.current"));
    let most = read("pids", "pids.max").map(|text| text.trim().parse().unwrap_or(0.0));
    common(list, &[("container_threads", threads), ("container_threads_max", most)]);
    if row.network
        && let Some(pid) = first_below(read)
    {
        interfaces(&fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default(), list);
    }
    let own = read("memory", "cgroup.procs").unwrap_or_default();
    let pids: Vec<&str> = own.lines().collect();
    let Some(first) = pids.first().filter(|_| !row.name.is_empty()) else { return };
    let mut open = 0.0;
    let mut sockets = 0.0;
    for pid in &pids {
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            open += 1.0;
            let target = fs::read_link(entry.path()).unwrap_or_default();
            sockets += f64::from(u8::from(target.to_string_lossy().starts_with("socket:")));
        }
    }
    common(
        list,
        &[
            ("container_processes", Some(pids.len() as f64)),
            ("container_file_descriptors", Some(open)),
            ("container_sockets", Some(sockets)),
        ],
    );
    let limits = fs::read_to_string(format!("/proc/{first}/limits")).unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let most = most.map(|most| most.parse().unwrap_or(-1.0));
    let labels = || vec![("ulimit", "max_open_files".to_owned())];
    list.extend(most.map(|most| ("container_ulimits_soft", labels(), most)));
}

/// Returns a process of a cgroup below this one.
fn first_below(read: Read<'_>) -> Option<String> {
    read("memory", "*/cgroup.procs")?.lines().next().map(str::to_owned)
}

/// Parses `/proc/<pid>/net/dev`, which shows the network of the process.
pub(super) fn interfaces(text: &str, list: &mut Vec<Figure>) {
    const COLUMNS: [(&str, usize); 8] = [
        ("container_network_receive_bytes_total", 0),
        ("container_network_receive_packets_total", 1),
        ("container_network_receive_errors_total", 2),
        ("container_network_receive_packets_dropped_total", 3),
        ("container_network_transmit_bytes_total", 8),
        ("container_network_transmit_packets_total", 9),
        ("container_network_transmit_errors_total", 10),
        ("container_network_transmit_packets_dropped_total", 11),
    ];
    for (interface, counts) in text.lines().filter_map(|line| line.split_once(':')) {
        let interface = interface.trim();
        if interface == "lo" {
            continue;
        }
        let counts: Vec<f64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        for (name, column) in COLUMNS {
            let labels = vec![("interface", interface.to_owned())];
            list.extend(counts.get(column).map(|count| (name, labels, *count)));
        }
    }
}
