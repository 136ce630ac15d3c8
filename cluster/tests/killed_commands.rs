//! Commands that are killed at random moments: whatever they had done, the cluster is whole, and the command can be
//! repeated, finished or undone.
//!
//! `KILLED_SEED` chooses the moments, `KILLED_ROUNDS` how often each command is killed.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::cluster::Cluster;
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// A generator of numbers that look random and follow from their seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a command to its end, and returns the time that it took.
fn measured(mut command: Command) -> Duration {
    let began = Instant::now();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    began.elapsed()
}

/// Starts a command and kills it, with the program on the machine, at a random moment within a time.
fn kill(mut command: Command, within: Duration, random: &mut Random) {
    let mut running = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_micros(random.below(within.as_micros() as u64)));
    let id = running.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    for child in children.split_whitespace() {
        let _ = Command::new(tools::busybox()).args(["kill", "-9", child]).status();
    }
    let _ = running.kill();
    let _ = running.wait();
}

/// Checks that the objects of the cluster can be read.
fn whole(cluster: &Cluster) {
    assert_eq!(cluster.kubectl(&["get", "secret", "kept", "-o", "jsonpath={.data.a}"]), "Yg==");
    assert_eq!(cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]), "b");
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
    let mut random = Random(seed);
    let cluster = Cluster::machine(CORTEN);
    cluster.start(&["--node-name", "one"]);
    cluster.kubectl(&["create", "secret", "generic", "kept", "--from-literal=a=b"]);
    cluster.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]);
    rotations(&cluster, rounds, &mut random);
    let sealed = backups(&cluster, rounds, &mut random);
    cluster.corten(&["down"]);
    snapshots(&cluster, rounds, &mut random);
    restores(&cluster, &sealed, rounds, &mut random);
    cluster.start(&["--node-name", "one"]);
    whole(&cluster);
}

/// Kills rotations, and ends each by the same command.
fn rotations(cluster: &Cluster, rounds: u64, random: &mut Random) {
    let encryption = ["encryption-key", "rotate"];
    let authorities = ["ca", "rotate"];
    let finish = ["ca", "rotate", "--finish", "--force"];
    for words in [&encryption[..], &authorities, &finish] {
        let time = measured(cluster.corten_command(words));
        for _ in 0..rounds {
            if words == finish {
                cluster.corten(&authorities);
            }
            kill(cluster.corten_command(words), time, random);
            whole(cluster);
            let again = cluster.corten_command(words).output().unwrap();
            let said = String::from_utf8_lossy(&again.stderr).into_owned();
            assert!(again.status.success() || said.contains("no rotation of the authorities is under way"), "{said}");
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

/// Kills backups: a file of the final name is complete. Returns a backup.
fn backups(cluster: &Cluster, rounds: u64, random: &mut Random) -> Vec<String> {
    let path = |name: &str| cluster.scratch().join(name).to_str().unwrap().to_owned();
    let key = path("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let sealed = path("cluster.corten");
    let time = measured(cluster.corten_command(&["backup", &sealed, "--key-file", &key]));
    for number in 0..rounds {
        let killed = path(&format!("killed-{number}.corten"));
        kill(cluster.corten_command(&["backup", &killed, "--key-file", &key]), time, random);
        if !std::path::Path::new(&killed).exists() {
            cluster.corten(&["backup", &killed, "--key-file", &key]);
        }
        let mut verify = cluster.machine.command(CORTEN.as_ref());
        measured({
            verify.args(["backup", "verify", &killed, "--key-file", &key]);
            verify
        });
    }
    vec![sealed, "--key-file".to_owned(), key]
}

/// Kills the move of the store to a snapshot and back: the store that a server starts with is always whole.
fn snapshots(cluster: &Cluster, rounds: u64, random: &mut Random) {
    let snapshot = cluster.scratch().join("snapshot.db").to_str().unwrap().to_owned();
    let words = ["store", "migrate", "--to", "etcd", "--snapshot", &snapshot];
    let time = measured(cluster.corten_command(&words));
    for _ in 0..rounds {
        std::fs::remove_file(&snapshot).unwrap();
        kill(cluster.corten_command(&words), time, random);
        if !std::path::Path::new(&snapshot).exists() {
            cluster.corten(&words);
        }
    }
    // A snapshot of etcd becomes the store, with the keys that are there.
    let words = ["restore", "--etcd-snapshot", &snapshot, "--set-aside"];
    let time = measured(cluster.corten_command(&words));
    for _ in 0..rounds {
        kill(cluster.corten_command(&words), time, random);
        settle(cluster, &words, random);
        assert!(cluster.corten(&["store", "verify"]).contains("is intact"));
    }
    cluster.start(&["--node-name", "one"]);
    whole(cluster);
    cluster.corten(&["down"]);
}

/// Kills restores: each is finished, undone, or had not begun.
fn restores(cluster: &Cluster, sealed: &[String], rounds: u64, random: &mut Random) {
    let mut words = vec!["restore"];
    words.extend(sealed.iter().map(String::as_str));
    words.push("--set-aside");
    let time = measured(cluster.corten_command(&words));
    for _ in 0..rounds {
        kill(cluster.corten_command(&words), time, random);
        settle(cluster, &words, random);
        assert!(cluster.corten(&["store", "verify"]).contains("is intact"));
    }
}

/// Finishes or undoes a restore that was killed; one that had not begun is repeated.
fn settle(cluster: &Cluster, words: &[&str], random: &mut Random) {
    let way = if random.below(2) == 0 { "--finish" } else { "--undo" };
    let output = cluster.corten_command(&["restore", way]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || said.contains("no restore"), "{way}: {said}");
    if !output.status.success() {
        cluster.corten(words);
    }
}
