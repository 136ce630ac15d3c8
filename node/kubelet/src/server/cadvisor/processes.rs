//! The metrics that only the processes of a cgroup have: their network and their open files.

use std::fs;

use corten_meta::metrics::Family;

use super::{Figure, Read, Row, common, number};
use crate::metrics::cadvisor::*;

/// Adds the samples of a cgroup's processes: the network of a pod, everything else of a container.
pub(super) fn figures(read: Read<'_>, row: &Row, list: &mut Vec<Figure>) {
    let threads = number(read("pids", "pids.current"));
    let most = read("pids", "pids.max").map(|text| text.trim().parse().unwrap_or(0.0));
    common(list, &[(&CONTAINER_THREADS, threads), (&CONTAINER_THREADS_MAX, most)]);
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
            (&CONTAINER_PROCESSES, Some(pids.len() as f64)),
            (&CONTAINER_FILE_DESCRIPTORS, Some(open)),
            (&CONTAINER_SOCKETS, Some(sockets)),
        ],
    );
    let limits = fs::read_to_string(format!("/proc/{first}/limits")).unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let most = most.map(|most| most.parse().unwrap_or(-1.0));
    let labels = || vec![("ulimit", "max_open_files".to_owned())];
    list.extend(most.map(|most| (&CONTAINER_ULIMITS_SOFT, labels(), most)));
}

/// Returns a process of a cgroup below this one.
fn first_below(read: Read<'_>) -> Option<String> {
    read("memory", "*/cgroup.procs")?.lines().next().map(str::to_owned)
}

/// Parses `/proc/<pid>/net/dev`, which shows the network of the process.
pub(super) fn interfaces(text: &str, list: &mut Vec<Figure>) {
    const COLUMNS: [(&Family, usize); 8] = [
        (&CONTAINER_NETWORK_RECEIVE_BYTES_TOTAL, 0),
        (&CONTAINER_NETWORK_RECEIVE_PACKETS_TOTAL, 1),
        (&CONTAINER_NETWORK_RECEIVE_ERRORS_TOTAL, 2),
        (&CONTAINER_NETWORK_RECEIVE_PACKETS_DROPPED_TOTAL, 3),
        (&CONTAINER_NETWORK_TRANSMIT_BYTES_TOTAL, 8),
        (&CONTAINER_NETWORK_TRANSMIT_PACKETS_TOTAL, 9),
        (&CONTAINER_NETWORK_TRANSMIT_ERRORS_TOTAL, 10),
        (&CONTAINER_NETWORK_TRANSMIT_PACKETS_DROPPED_TOTAL, 11),
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
