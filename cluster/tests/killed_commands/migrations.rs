//! The move of the store into an etcd that runs, and back, killed at random moments: the store is unchanged, a server starts
//! on no half copy, and the same command completes the move.
//!
//! The tests need root and an etcd (`ETCD_BINARY`, or in the search path), and say so where either is missing.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use testkit::cluster::Cluster;
use testkit::interruption::{Interruption, Running, measured, number};
use testkit::random::Random;
use testkit::{tools, wait};

use crate::{CORTEN, place, start, whole};

const URL: &str = "http://127.0.0.1:23790";
const PEER_URL: &str = "http://127.0.0.1:23800";
const THERE: [&str; 6] = ["store", "migrate", "--to", "etcd", "--etcd-servers", URL];
const BACK: [&str; 6] = ["store", "migrate", "--to", "embedded", "--etcd-servers", URL];

/// Returns the etcd to test with; none where there is none, or not as root.
fn etcd() -> Option<PathBuf> {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return None;
    }
    let named = std::env::var_os("ETCD_BINARY").map(PathBuf::from);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(corten_members::Binary::find(named.as_deref(), std::env::var_os("PATH").as_deref()));
    found.map(|binary| binary.path).map_err(|error| eprintln!("skipped: {error}")).ok()
}

/// Starts an empty etcd on the machine.
fn empty_etcd(cluster: &Cluster, binary: &Path, number: u64) -> Running {
    let mut command = cluster.machine.command(binary);
    command.arg("--data-dir").arg(cluster.scratch().join(format!("etcd-{number}")));
    command.args(["--listen-client-urls", URL, "--advertise-client-urls", URL, "--listen-peer-urls", PEER_URL]);
    let running = Running::start(command);
    wait::until("an etcd", wait::BOUND, || {
        let mut check = cluster.machine.command(CORTEN.as_ref());
        let output = check.args(["etcd", "check", URL]).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    });
    running
}

#[test]
fn moves_into_an_etcd_and_back_that_are_killed_are_completed_by_the_same_command() {
    let Some(etcd) = etcd() else { return };
    let (seed, rounds) = (number("KILLED_SEED", 1), number("KILLED_ROUNDS", 3));
    println!("seed {seed}, {rounds} rounds");
    let cluster = Cluster::machine(CORTEN);
    let mut killing = Interruption { cluster: &cluster, rounds, random: Random::new(seed), disk: None };
    start(&cluster);
    cluster.corten(&["down"]);
    let running = empty_etcd(&cluster, &etcd, 0);
    let there = measured(cluster.corten_command(&THERE));
    let store = place(&cluster, "store");
    std::fs::rename(&store, format!("{store}-moved")).unwrap();
    let back = measured(cluster.corten_command(&BACK));
    drop(running);
    for round in 1..=rounds {
        let running = empty_etcd(&cluster, &etcd, round);
        killing.interrupt(&THERE, there);
        again(&cluster);
        std::fs::rename(&store, format!("{store}-moved-{round}")).unwrap();
        killing.interrupt(&BACK, back);
        if !Path::new(&store).exists() {
            cluster.corten(&BACK);
        }
        drop(running);
        assert!(cluster.corten(&["store", "verify"]).contains("is intact"));
    }
    cluster.start(&["--node-name", "one"]);
    whole(&cluster);
}

/// Repeats a move that was killed, unless it was complete.
fn again(cluster: &Cluster) {
    let output = cluster.corten_command(&THERE).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() || said.contains("a store is only moved to where there are none"), "{said}");
}

#[test]
fn a_move_of_a_running_cluster_that_is_killed_is_begun_anew_until_its_server_has_stopped() {
    let Some(etcd) = etcd() else { return };
    let (seed, rounds) = (number("KILLED_SEED", 1), number("KILLED_ROUNDS", 3));
    println!("seed {seed}, {rounds} rounds");
    let cluster = Cluster::machine(CORTEN);
    let mut killing = Interruption { cluster: &cluster, rounds, random: Random::new(seed), disk: None };
    start(&cluster);
    let _running = empty_etcd(&cluster, &etcd, 0);
    let began = Instant::now();
    drop(copied(&cluster));
    // Twice the time: it is killed as well when all is copied, and the cluster takes writes again.
    let within = began.elapsed() * 2;
    for _ in 0..rounds {
        killing.interrupt(&THERE, within);
    }
    // Until the server has stopped it may get objects that etcd has not: a copy that is complete is made anew.
    drop(copied(&cluster));
    let mut moving = copied(&cluster);
    cluster.corten(&["down"]);
    let ended = moving.0.wait().unwrap();
    assert!(ended.success(), "{ended}");
    std::fs::rename(place(&cluster, "store"), place(&cluster, "store-moved")).unwrap();
    cluster.start(&["--node-name", "one", "--etcd-servers", URL]);
    whole(&cluster);
}

/// Moves the store of a running server, and returns when all is copied.
fn copied(cluster: &Cluster) -> Running {
    let mut command = cluster.corten_command(&THERE);
    let mut moving = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let said = BufReader::new(moving.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The pipe stays open: the command goes on to print.
    let mut lines = Box::new(said);
    assert!(lines.any(|line| line.starts_with("copied ")), "the store is copied");
    std::thread::spawn(move || lines.for_each(drop));
    moving
}
