//! `corten recover` that is killed at random moments: it is repeated, and the servers come together again.
//!
//! The test needs root and an etcd (`ETCD_BINARY`, or in the search path), and says so where either is missing.
//! `KILLED_SEED` chooses the moments, `KILLED_ROUNDS` how often the command is killed.

use std::path::Path;
use std::process::Command;

use testkit::interruption::{kill, measured, number};
use testkit::random::Random;

use crate::hash;
use crate::machines::{TwoServers, etcd, members};

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

#[test]
fn recoveries_that_are_killed_at_any_moment_are_repeated() {
    let Some(etcd) = etcd() else { return };
    let (seed, rounds) = (number("KILLED_SEED", 1), number("KILLED_ROUNDS", 3));
    println!("seed {seed}, {rounds} rounds");
    let mut random = Random::new(seed);
    let TwoServers { one, two } = TwoServers::up(etcd.to_str().unwrap());
    members(&one, &["one", "two"]);
    one.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    one.kill_hard();
    two.kill_hard();

    // The survivor, each time with the data of a member that lost the others.
    let etcd = one.data_dir().join("etcd");
    let lost = one.scratch().join("lost");
    copy(&etcd, &lost);
    let time = measured(one.corten_command(&["recover"]));
    for _ in 0..rounds {
        std::fs::remove_dir_all(&etcd).unwrap();
        copy(&lost, &etcd);
        kill(one.corten_command(&["recover"]), time, &mut random);
        one.corten(&["recover"]);
        let left = one.machine.processes().join("\n");
        assert!(!left.contains("--listen-peer-urls"), "an etcd is left: {left}");
    }
    one.start(&["--node-name", "one"]);
    let join = ["recover", "--join", "10.88.0.2"];
    let time = measured(two.corten_command(&join));
    for _ in 0..rounds {
        kill(two.corten_command(&join), time, &mut random);
        two.corten(&join);
    }
    two.start(&["--node-name", "two"]);
    members(&one, &["one", "two"]);
    assert_eq!(two.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    one.kubectl(&["create", "configmap", "after", "--from-literal=of=recovery"]);
    let revision = one.kubectl(&["get", "configmap", "after", "-o", "jsonpath={.metadata.resourceVersion}"]);
    let revision = revision.parse().unwrap();
    assert_eq!(hash(&one, "10.88.0.2", revision), hash(&two, "10.88.0.3", revision));
}
