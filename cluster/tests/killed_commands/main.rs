//! Commands that are interrupted at random moments, by a kill or by a power cut: whatever they had done, the cluster is
//! whole, and the command can be repeated, finished or undone.
//!
//! A power cut ends every process of the machine, and the disk of the data directory loses what was not synced.
//! `KILLED_SEED` chooses the moments, `KILLED_ROUNDS` and `POWER_CUTS` how often each command is killed, and cut off.

#![allow(clippy::unwrap_used)]

mod migrations;

use testkit::cluster::Cluster;
use testkit::interruption::{Interruption, measured, number};
use testkit::power::{Disk, FileSystem};
use testkit::random::Random;
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// Checks that the objects of the cluster can be read.
fn whole(cluster: &Cluster) {
    assert_eq!(cluster.kubectl(&["get", "secret", "kept", "-o", "jsonpath={.data.a}"]), "Yg==");
    assert_eq!(cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]), "b");
}

/// Starts a cluster with the objects of [`whole`].
fn start(cluster: &Cluster) {
    cluster.start(&["--node-name", "one"]);
    cluster.kubectl(&["create", "secret", "generic", "kept", "--from-literal=a=b"]);
    cluster.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]);
}

#[test]
fn commands_that_are_killed_at_any_moment_lose_nothing() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let seed = number("KILLED_SEED", 1);
    let rounds = number("KILLED_ROUNDS", 3);
    println!("seed {seed}, {rounds} rounds");
    let cluster = Cluster::machine(CORTEN);
    interrupt_all(Interruption { cluster: &cluster, rounds, random: Random::new(seed), disk: None });
}

#[test]
fn commands_whose_power_is_cut_at_any_moment_lose_nothing() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let seed = number("KILLED_SEED", 1);
    let rounds = number("POWER_CUTS", 1);
    let cluster = Cluster::machine(CORTEN);
    let kind = FileSystem::of(seed - 1);
    println!("seed {seed}, {rounds} rounds, {kind:?}");
    match Disk::attach(&cluster.machine, kind, &cluster.data_dir()) {
        Ok(disk) => {
            let random = Random::new(seed);
            interrupt_all(Interruption { cluster: &cluster, rounds, random, disk: Some(disk) });
        }
        Err(reason) => eprintln!("skipped: {reason}"),
    }
}

fn interrupt_all(mut interruption: Interruption<'_>) {
    let cluster = interruption.cluster;
    start(cluster);
    rotations(&mut interruption);
    let sealed = backups(&mut interruption);
    cluster.corten(&["down"]);
    snapshots(&mut interruption);
    restores(&mut interruption, &sealed);
    cluster.start(&["--node-name", "one"]);
    whole(cluster);
}

/// Interrupts rotations, and ends each by the same command. What was acknowledged a moment before is there.
fn rotations(interruption: &mut Interruption<'_>) {
    let cluster = interruption.cluster;
    let encryption = ["encryption-key", "rotate"];
    let authorities = ["ca", "rotate"];
    let finish = ["ca", "rotate", "--finish", "--force"];
    for words in [&encryption[..], &authorities, &finish] {
        let time = measured(cluster.corten_command(words));
        for round in 0..interruption.rounds {
            if words == finish {
                cluster.corten(&authorities);
            }
            let written = format!("{}-{}-{round}", words[0], words.len());
            cluster.kubectl(&["create", "secret", "generic", &written, "--from-literal=a=b"]);
            interruption.interrupt(words, time);
            whole(cluster);
            assert_eq!(cluster.kubectl(&["get", "secret", &written, "-o", "jsonpath={.data.a}"]), "Yg==");
            let again = cluster.corten_command(words).output().unwrap();
            let said = String::from_utf8_lossy(&again.stderr).into_owned();
            assert!(again.status.success(), "{said}");
            whole(cluster);
            if words == authorities {
                cluster.corten(&finish);
            }
        }
        if words == authorities {
            cluster.corten(&authorities);
        }
    }
}

/// Returns the path of a file beside those of the cluster, and whether it exists.
fn place(cluster: &Cluster, name: &str) -> String {
    cluster.data_dir().join(name).to_str().unwrap().to_owned()
}

fn exists(cluster: &Cluster, path: &str) -> bool {
    cluster.machine.path(path).exists()
}

/// Interrupts backups: a file of the final name is complete. Returns a backup.
fn backups(interruption: &mut Interruption<'_>) -> Vec<String> {
    let cluster = interruption.cluster;
    let key = place(cluster, "key");
    let written = std::fs::File::create(cluster.machine.path(&key)).unwrap();
    std::io::Write::write_all(&mut &written, &[7; 32]).unwrap();
    written.sync_all().unwrap();
    let sealed = place(cluster, "cluster.corten");
    let time = measured(cluster.corten_command(&["backup", &sealed, "--key-file", &key]));
    for number in 0..interruption.rounds {
        let name = place(cluster, &format!("interrupted-{number}.corten"));
        let words = ["backup", &name, "--key-file", &key];
        interruption.interrupt(&words, time);
        if !exists(cluster, &name) {
            cluster.corten(&words);
        }
        for backup in [&name, &sealed] {
            let mut verify = cluster.machine.command(CORTEN.as_ref());
            verify.args(["backup", "verify", backup, "--key-file", &key]);
            measured(verify);
        }
    }
    vec![sealed, "--key-file".to_owned(), key]
}

/// Interrupts the move of the store to a snapshot and back: the store that a server starts with is always whole.
fn snapshots(interruption: &mut Interruption<'_>) {
    let cluster = interruption.cluster;
    let snapshot = place(cluster, "snapshot.db");
    let words = ["store", "migrate", "--to", "etcd", "--snapshot", &snapshot];
    let time = measured(cluster.corten_command(&words));
    for _ in 0..interruption.rounds {
        std::fs::remove_file(cluster.machine.path(&snapshot)).unwrap();
        interruption.interrupt(&words, time);
        // The power came back with a snapshot whose removal was not synced, or none.
        if !exists(cluster, &snapshot) {
            cluster.corten(&words);
        }
    }
    // A snapshot of etcd becomes the store, with the keys that are there.
    let words = ["restore", "--etcd-snapshot", &snapshot, "--set-aside"];
    let time = measured(cluster.corten_command(&words));
    for _ in 0..interruption.rounds {
        interruption.interrupt(&words, time);
        settle(interruption, &words);
        assert!(cluster.corten(&["store", "verify"]).contains("is intact"));
    }
    cluster.start(&["--node-name", "one"]);
    whole(cluster);
    cluster.corten(&["down"]);
}

/// Interrupts restores: each is finished, undone, or had not begun.
fn restores(interruption: &mut Interruption<'_>, sealed: &[String]) {
    let cluster = interruption.cluster;
    let mut words = vec!["restore"];
    words.extend(sealed.iter().map(String::as_str));
    words.push("--set-aside");
    let time = measured(cluster.corten_command(&words));
    for _ in 0..interruption.rounds {
        interruption.interrupt(&words, time);
        settle(interruption, &words);
        assert!(cluster.corten(&["store", "verify"]).contains("is intact"));
    }
}

/// Finishes or undoes a restore that was interrupted; one that had not begun is repeated.
fn settle(interruption: &mut Interruption<'_>, words: &[&str]) {
    let cluster = interruption.cluster;
    let way = if interruption.random.below(2) == 0 { "--finish" } else { "--undo" };
    let output = cluster.corten_command(&["restore", way]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || said.contains("no restore"), "{way}: {said}");
    if !output.status.success() {
        cluster.corten(words);
    }
}
