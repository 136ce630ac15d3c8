//! Cgroups of version 2 alone: the limits of containers and pods are in force, out of memory is reported, resources change
//! in place, and usage is read.

use serde_json::Value;
use testkit::cluster::{Cluster, IMAGE};
use testkit::wait;

use crate::clusters::{Clusters, FIRST, POD_PIDS_LIMIT, create, read};

const ROOT: &str = "/sys/fs/cgroup";

/// A Guaranteed pod, one that uses all CPU, one that needs more memory and one that needs more processes than it may have.
fn pods() -> String {
    let pod = |name: &str, script: &str, resources: &str| {
        format!(
            r#"
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, '{script}']
    resources: {{{resources}}}
"#
        )
    };
    let guaranteed = "limits: {cpu: 300m, memory: 64Mi}";
    let processes = "i=0; while [ $i -lt 200 ]; do sleep 3600 & i=$((i+1)); done; echo all";
    [
        pod("guaranteed", "exec sleep 3600", guaranteed),
        pod("busy", "while :; do :; done", "limits: {cpu: 100m}, requests: {cpu: 50m, memory: 16Mi}"),
        pod("hungry", "exec tail /dev/zero", "limits: {memory: 32Mi}"),
        pod("many", processes, ""),
    ]
    .concat()
}

pub fn missing() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let kinds: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let is_alone = kinds.contains(&"cgroup2") && !kinds.contains(&"cgroup");
    (!is_alone).then(|| "this machine has cgroups of version 1, or of both versions".to_owned())
}

pub fn limits_are_in_force(clusters: &Clusters) {
    let cluster = clusters.one_node();
    create(cluster, &pods());
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/guaranteed", "pod/busy"]);
    containers_have_their_limits(cluster);
    more_memory_is_refused(cluster);
    more_processes_are_refused(cluster);
    more_cpu_is_refused(cluster);
    resources_change_in_place(cluster);
    usage_is_read(cluster);
    groups_are_removed(cluster);
}

/// Returns the directory of a pod's cgroup.
fn group(cluster: &Cluster, pod: &str, class: &str) -> String {
    let uid = cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"]);
    let roots = std::fs::read_dir(ROOT).expect("cgroups are mounted").flatten().map(|entry| entry.path());
    let groups = roots.map(|root| root.join("kubepods").join(class).join(format!("pod{uid}")));
    let found: Vec<String> = groups.filter(|group| group.is_dir()).map(|group| group.display().to_string()).collect();
    assert_eq!(found.len(), 1, "the cgroup of {pod}: {found:?}");
    found[0].clone()
}

fn containers_have_their_limits(cluster: &Cluster) {
    // The container's own group is the root of what it sees.
    let script = "cd /sys/fs/cgroup; cat memory.max cpu.max /proc/1/oom_score_adj /proc/self/cgroup";
    let seen = cluster.kubectl(&["exec", "guaranteed", "--", "sh", "-c", script]);
    assert_eq!(seen, "67108864\n30000 100000\n-997\n0::/\n");
    let pod = group(cluster, "guaranteed", "");
    assert_eq!(read(cluster, format!("{pod}/memory.max")), "67108864\n");
    assert_eq!(read(cluster, format!("{pod}/cpu.max")), "30000 100000\n");
    assert_eq!(read(cluster, format!("{pod}/pids.max")), format!("{POD_PIDS_LIMIT}\n"));
    let burstable = group(cluster, "busy", "burstable");
    assert_eq!(read(cluster, format!("{burstable}/cpu.max")), "10000 100000\n");
    assert_eq!(read(cluster, format!("{burstable}/memory.max")), "max\n");
}

fn more_memory_is_refused(cluster: &Cluster) {
    let state = "jsonpath={.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}";
    cluster.kubectl_until(&["get", "pod", "hungry", "-o", state], |state| state == "OOMKilled 137");
}

fn more_processes_are_refused(cluster: &Cluster) {
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Failed", "pod/many"]);
    let log = cluster.kubectl(&["logs", "many"]);
    assert!(log.contains("fork") && !log.contains("all"), "{log}");
}

fn more_cpu_is_refused(cluster: &Cluster) {
    let stat = format!("{}/cpu.stat", group(cluster, "busy", "burstable"));
    wait::until("the pod is throttled", wait::BOUND, || {
        let text = read(cluster, &stat);
        let throttled = text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok());
        if throttled.is_some_and(|periods| periods > 0) { Ok(()) } else { Err(text) }
    });
}

fn resources_change_in_place(cluster: &Cluster) {
    let both = r#"{"cpu":"400m","memory":"96Mi"}"#;
    let container = format!(r#"{{"name":"main","resources":{{"limits":{both},"requests":{both}}}}}"#);
    let patch = format!(r#"{{"spec":{{"containers":[{container}]}}}}"#);
    cluster.kubectl(&["patch", "pod", "guaranteed", "--subresource", "resize", "-p", &patch]);
    let status =
        "jsonpath={.status.containerStatuses[0].resources.limits.memory} {.status.containerStatuses[0].restartCount}";
    cluster.kubectl_until(&["get", "pod", "guaranteed", "-o", status], |status| status == "96Mi 0");
    let script = "cd /sys/fs/cgroup; cat memory.max cpu.max /proc/1/oom_score_adj";
    let seen = cluster.kubectl(&["exec", "guaranteed", "--", "sh", "-c", script]);
    assert_eq!(seen, "100663296\n40000 100000\n-997\n");
    let pod = group(cluster, "guaranteed", "");
    assert_eq!(read(cluster, format!("{pod}/memory.max")), "100663296\n");
}

/// Checks the figures that evictions and `kubectl top` are decided by.
fn usage_is_read(cluster: &Cluster) {
    let path = format!("/api/v1/nodes/{FIRST}/proxy/stats/summary");
    wait::until("the pod's usage", wait::BOUND, || {
        let text = cluster.kubectl(&["get", "--raw", &path]);
        let summary: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let busy = pods.iter().find(|pod| pod["podRef"]["name"] == "busy").cloned().unwrap_or_default();
        let figures = [
            &summary["node"]["memory"]["availableBytes"],
            &summary["node"]["memory"]["workingSetBytes"],
            &summary["node"]["cpu"]["usageCoreNanoSeconds"],
            &summary["node"]["rlimit"]["curproc"],
            &busy["memory"]["workingSetBytes"],
            &busy["cpu"]["usageCoreNanoSeconds"],
            &busy["process_stats"]["process_count"],
        ];
        let is_read = figures.iter().all(|figure| figure.as_u64().is_some_and(|figure| figure > 0));
        if is_read { Ok(()) } else { Err(format!("{figures:?}")) }
    });
}

fn groups_are_removed(cluster: &Cluster) {
    let pods = [group(cluster, "guaranteed", ""), group(cluster, "busy", "burstable")];
    cluster.kubectl(&["delete", "pod", "guaranteed", "busy", "hungry", "many", "--now"]);
    wait::until("the cgroups are removed", wait::BOUND, || {
        let left: Vec<&String> = pods.iter().filter(|pod| std::fs::exists(pod).unwrap_or(true)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}
