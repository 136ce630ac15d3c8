//! Several servers of which the majority is lost: the survivor goes on alone, and the others come back by a plain start.
//! A backup of them becomes the first of several servers on a bare machine.
//!
//! The test needs root and an etcd (`ETCD_BINARY`, or in the search path), and says so where either is missing.

#![allow(clippy::unwrap_used)]

use testkit::cluster::Cluster;
use testkit::{machine, wait};

use crate::hash;
use crate::machines::{CORTEN, TwoServers, etcd, join, members, refusal};

/// Waits until a server has recorded all members, by which it finds the survivor.
fn knows_all(server: &Cluster) {
    let path = server.data_dir().join("etcd/member.json");
    wait::until("the record of all members", wait::BOUND, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.matches(":2379").count() == 3 { Ok(()) } else { Err(text) }
    });
}

#[test]
fn servers_that_all_moved_come_together_again() {
    let Some(etcd) = etcd() else { return };
    let etcd = etcd.to_str().unwrap();
    let TwoServers { one, two } = TwoServers::up(etcd);
    members(&one, &["one", "two"]);
    one.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    one.kill_hard();
    two.kill_hard();
    one.machine.renumber(machine::ADDRESS, "10.88.0.22");
    two.machine.renumber("10.88.0.3", "10.88.0.33");

    let refused = refusal(&two, &["recover", "--join", "10.88.0.22"]);
    assert!(refused.contains("no server of this cluster answers at 10.88.0.22"), "{refused}");
    let said = one.corten(&["recover"]);
    assert!(said.contains("corten recover --join 10.88.0.22"), "{said}");
    one.start(&["--node-name", "one"]);
    two.corten(&["recover", "--join", "10.88.0.22"]);
    two.start(&["--node-name", "two"]);
    members(&one, &["one", "two"]);
    assert_eq!(two.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    let rows = ["get", "nodes", "-o", "wide"];
    let ready_at = |text: &str, address: &str| {
        text.lines().any(|line| line.contains(" Ready ") && line.contains(&format!(" {address} ")))
    };
    two.kubectl_until(&rows, |text| ready_at(text, "10.88.0.22") && ready_at(text, "10.88.0.33"));
    // The last write before the kill is there, and both members have the same objects.
    let uid = ["get", "configmap", "memory", "-o", "jsonpath={.metadata.uid} {.metadata.resourceVersion}"];
    assert_eq!(one.kubectl(&uid), two.kubectl(&uid));
    one.kubectl(&["create", "configmap", "after", "--from-literal=of=recovery"]);
    let revision = one.kubectl(&["get", "configmap", "after", "-o", "jsonpath={.metadata.resourceVersion}"]);
    let revision = revision.parse().unwrap();
    assert_eq!(hash(&one, "10.88.0.22", revision), hash(&two, "10.88.0.33", revision));
    // A member that the others count on is not taken away from them.
    two.kill_hard();
    let refused = refusal(&two, &["recover", "--join", "10.88.0.22"]);
    assert!(refused.contains("10.88.0.22"), "{refused}");
}

#[test]
fn a_survivor_goes_on_alone_and_the_others_come_back() {
    let Some(etcd) = etcd() else { return };
    let etcd = etcd.to_str().unwrap();
    let TwoServers { one, two } = TwoServers::up(etcd);
    let three = Cluster::machine(CORTEN);
    two.machine.connect(&three.machine, "10.88.0.4");
    join(&three, &two, "three", etcd, &[]);
    members(&one, &["one", "three", "two"]);
    for server in [&one, &two, &three] {
        knows_all(server);
    }
    one.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    let key = one.scratch().join("key");
    let sealed = one.scratch().join("cluster.corten");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = key.to_str().unwrap();
    let sealed = sealed.to_str().unwrap();
    two.corten(&["backup", sealed, "--key-file", key]);

    // While the others have a quorum, nothing is recovered.
    three.kill_hard();
    let output = three.corten_command(&["recover"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("still have a quorum"), "{said}");
    one.kill_hard();
    two.kill_hard();
    let said = three.corten(&["recover"]);
    assert!(said.contains("the only one of its cluster"), "{said}");
    three.start(&["--node-name", "three"]);
    members(&three, &["three"]);
    assert_eq!(three.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    three.kubectl(&["create", "configmap", "after", "--from-literal=of=recovery"]);

    // The others are started as before.
    one.start(&["--node-name", "one"]);
    two.start(&["--node-name", "two"]);
    members(&three, &["one", "three", "two"]);
    assert_eq!(two.kubectl(&["get", "configmap", "after", "-o", "jsonpath={.data.of}"]), "recovery");
    let revision = two.kubectl(&["get", "configmap", "after", "-o", "jsonpath={.metadata.resourceVersion}"]);
    let revision = revision.parse().unwrap();
    let of_survivor = hash(&three, "10.88.0.4", revision);
    for address in [machine::ADDRESS, "10.88.0.3"] {
        assert_eq!(hash(&three, address, revision), of_survivor, "{address} has the survivor's objects");
    }
    assert!(one.data_dir().join("etcd/data.removed-1").exists());

    // Elsewhere, the backup becomes the first of several servers.
    let bare = Cluster::machine(CORTEN);
    bare.corten(&["restore", sealed, "--key-file", key]);
    bare.start(&["--cluster-init", "--etcd-binary", etcd]);
    members(&bare, &["two"]);
    assert_eq!(bare.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    assert!(bare.kubectl_fails(&["get", "configmap", "after"]).contains("not found"));
}
