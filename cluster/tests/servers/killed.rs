//! `corten recover` that is interrupted at random moments, by a kill or by a power cut: it is repeated, and the servers come
//! together again.
//!
//! The tests need root and an etcd (`ETCD_BINARY`, or in the search path), and say so where either is missing.
//! `KILLED_SEED` chooses the moments, `KILLED_ROUNDS` and `POWER_CUTS` how often the command is killed, and cut off.

use std::path::Path;
use std::process::Command;

use testkit::cluster::Cluster;
use testkit::interruption::{Interruption, cut_power, measured, number};
use testkit::power::{Disk, FileSystem};
use testkit::random::Random;

use crate::hash;
use crate::machines::{TwoServers, etcd, members};

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Syncs all files of the file system of a path.
fn sync(path: &Path) {
    assert!(Command::new("sync").arg("-f").arg(path).status().unwrap().success());
}

/// Makes a disk of the data directory.
fn attach(cluster: &Cluster, kind: FileSystem) -> Result<Disk<'_>, String> {
    Disk::attach(&cluster.machine, kind, &cluster.data_dir())
}

#[test]
fn recoveries_that_are_killed_at_any_moment_are_repeated() {
    let Some(etcd) = etcd() else { return };
    let (seed, rounds) = (number("KILLED_SEED", 1), number("KILLED_ROUNDS", 3));
    println!("seed {seed}, {rounds} rounds");
    let servers = TwoServers::machines();
    let killing = |cluster| Interruption { cluster, rounds, random: Random::new(seed), disk: None };
    interrupt(&servers, etcd.to_str().unwrap(), [killing(&servers.one), killing(&servers.two)]);
}

#[test]
fn recoveries_whose_power_is_cut_at_any_moment_are_repeated() {
    let Some(etcd) = etcd() else { return };
    let (seed, rounds) = (number("KILLED_SEED", 1), number("POWER_CUTS", 1));
    let kind = FileSystem::of(seed - 1);
    println!("seed {seed}, {rounds} rounds, {kind:?}");
    let servers = TwoServers::machines();
    let (one, two) = match (attach(&servers.one, kind), attach(&servers.two, kind)) {
        (Ok(one), Ok(two)) => (one, two),
        (Err(reason), _) | (_, Err(reason)) => {
            eprintln!("skipped: {reason}");
            return;
        }
    };
    let cutting = |cluster, disk| Interruption { cluster, rounds, random: Random::new(seed), disk: Some(disk) };
    interrupt(&servers, etcd.to_str().unwrap(), [cutting(&servers.one, one), cutting(&servers.two, two)]);
}

/// Starts two servers, loses both, and interrupts the recovery of each.
fn interrupt(servers: &TwoServers, etcd: &str, [mut of_one, mut of_two]: [Interruption<'_>; 2]) {
    let TwoServers { one, two } = servers;
    servers.start(etcd);
    members(one, &["one", "two"]);
    one.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    one.kill_hard();
    two.kill_hard();

    // The survivor, each time with the data of a member that lost the others.
    let data = one.machine.path(one.data_dir().join("etcd").to_str().unwrap());
    let lost = one.scratch().join("lost");
    copy(&data, &lost);
    let time = measured(one.corten_command(&["recover"]));
    for _ in 0..of_one.rounds {
        std::fs::remove_dir_all(&data).unwrap();
        copy(&lost, &data);
        sync(&data);
        of_one.interrupt(&["recover"], time);
        one.corten(&["recover"]);
        let left = one.machine.processes().join("\n");
        assert!(!left.contains("--listen-peer-urls"), "an etcd is left: {left}");
    }
    // A command that succeeded has done its work, also if the power goes at once.
    of_one.disk.iter().for_each(|disk| cut_power(one, disk));
    one.start(&["--node-name", "one"]);
    let join = ["recover", "--join", "10.88.0.2"];
    let time = measured(two.corten_command(&join));
    for _ in 0..of_two.rounds {
        of_two.interrupt(&join, time);
        two.corten(&join);
    }
    of_two.disk.iter().for_each(|disk| cut_power(two, disk));
    two.start(&["--node-name", "two"]);
    members(one, &["one", "two"]);
    assert_eq!(two.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    one.kubectl(&["create", "configmap", "after", "--from-literal=of=recovery"]);
    let revision = one.kubectl(&["get", "configmap", "after", "-o", "jsonpath={.metadata.resourceVersion}"]);
    let revision = revision.parse().unwrap();
    assert_eq!(hash(one, "10.88.0.2", revision), hash(two, "10.88.0.3", revision));
}
