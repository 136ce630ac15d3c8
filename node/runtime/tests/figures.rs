//! The cost of a container: the time until it runs, which is printed, and the memory of its shim, which is bounded
//! loosely, for builds without optimisation.

mod support;

use std::time::Instant;

use corten_cri::v1;
use support::{Node, cannot_run, print, shell};

const CONTAINERS: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn every_container_has_a_small_shim() {
    if cannot_run() {
        return;
    }
    let mut node = Node::start().await;
    let mut times = Vec::new();
    let mut sandbox_times = Vec::new();
    for number in 0..CONTAINERS {
        let before = Instant::now();
        let sandbox = node.run_sandbox(&node.sandbox_config(&format!("pod-{number}"))).await;
        sandbox_times.push(before.elapsed());
        let before = Instant::now();
        let config = shell(&format!("main-{number}"), "while true; do sleep 3600; done");
        node.run(&sandbox, &config).await;
        times.push(before.elapsed());
    }
    times.sort();
    sandbox_times.sort();
    let memory: Vec<u64> = shims(&node).into_iter().map(proportional_kibibytes).collect();
    assert_eq!(memory.len(), CONTAINERS, "one shim per container");
    let average = memory.iter().sum::<u64>() / CONTAINERS as u64;
    print(&format!(
        "sandbox: median {:?}; create and start: median {:?}, slowest {:?}; shim: {average} KiB",
        sandbox_times[CONTAINERS / 2],
        times[CONTAINERS / 2],
        times[CONTAINERS - 1],
    ));
    let stats = node.runtime.list_container_stats(v1::ListContainerStatsRequest::default()).await.expect("stats");
    assert_eq!(stats.into_inner().stats.len(), CONTAINERS);
    assert!(average < 1536, "a shim takes {average} KiB");
}

/// Returns the shims of this test's node, by their name and the command line of their parent.
fn shims(node: &Node) -> Vec<u32> {
    let folder = node.path().display().to_string();
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number: &u32| {
            let command = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).into_owned();
            let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            name == "corten-shim\n" && command.contains(&folder)
        })
        .collect()
}

fn proportional_kibibytes(process: u32) -> u64 {
    let content = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("memory of a shim");
    let line = content.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a figure");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
