//! Machines whose addresses change under a running cluster.

use testkit::cluster::Cluster;
use testkit::machine;

use crate::machines::{SECOND, TwoMachines, is_skipped, sleeper};

/// Waits until a node is Ready at an address.
fn until_ready_at(cluster: &Cluster, node: &str, address: &str) {
    let rows = ["get", "nodes", "-o", "wide"];
    cluster.kubectl_until(&rows, |text| {
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(node));
        row.is_some_and(|row| row.contains(" Ready ") && row.contains(&format!(" {address} ")))
    });
}

/// Waits until a node renews its Lease, which shows that it reaches the API server.
fn until_renewed(cluster: &Cluster, node: &str) {
    let lease = ["get", "lease", "-n", "kube-node-lease", node, "-o", "jsonpath={.spec.renewTime}"];
    let before = cluster.kubectl_until(&lease, |text| !text.is_empty());
    cluster.kubectl_until(&lease, |text| text != before);
}

#[test]
fn a_cluster_goes_on_when_the_addresses_of_its_machines_change() {
    if is_skipped() {
        return;
    }
    let machines = TwoMachines::up(&[]);
    let first = &machines.first;
    first.apply(&sleeper("first"));
    first.kubectl_wait(&["wait", "--for=condition=Ready", "pod/on-first"]);
    let process = first.server_pid();
    let logs = |node: &str| {
        let answer = first.kubectl_until(&["logs", &format!("pod/on-{node}")], |text| !text.is_empty());
        assert_eq!(answer, "hello\n");
    };

    // The server moves: it is found at its new address by a node that knew only the old one.
    first.machine.renumber(machine::ADDRESS, "10.88.0.22");
    until_ready_at(first, "first", "10.88.0.22");
    let endpoints = ["get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[*].addresses[*].ip}"];
    first.kubectl_until(&endpoints, |text| text == "10.88.0.22");
    until_renewed(first, "second");
    until_ready_at(first, "second", SECOND);
    logs("second");
    assert_eq!(first.server_pid(), process, "it is the same process");

    // An agent moves: the API server reaches its kubelet by a certificate with the new address.
    machines.second.machine.renumber(SECOND, "10.88.0.33");
    until_ready_at(first, "second", "10.88.0.33");
    until_renewed(first, "second");
    logs("second");
    logs("first");
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    assert_eq!(first.kubectl(&["get", "pods", "-o", restarts]), "0 0");
    let command = first.corten(&["token", "create", "--print-join-command"]);
    assert!(command.contains("https://10.88.0.22:6443"), "{command}");
    machines.down();
}
