//! Tests that killing the process at any moment loses no acknowledged write.
//!
//! The test starts itself again as a child, which writes under load and reports each acknowledged write on a pipe. The
//! parent kills it at a random moment, opens the directory, and checks for every reported write. The same directory is
//! used again and again, with small segments and checkpoints, so the kills also hit the changes of files and the
//! recovery itself.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use corten_store::{Config, Embedded, Expect, Op, Range, Retain, Store};

use support::{Chance, block_on, commit};

const DIR: &str = "CORTEN_STORE_CRASH_DIR";
const WRITERS: u64 = 4;
/// The number of keys that each writer repeats.
const KEYS: u64 = 40;
const KILLS: u64 = 1000;
/// The directories that are tested in parallel.
const LANES: u64 = 4;

fn config(dir: &Path) -> Config {
    let retain = Retain { revisions: 200, ..Retain::default() };
    Config { segment_bytes: 32 << 10, checkpoint_bytes: 96 << 10, retain, ..Config::new(dir) }
}

/// Runs the child; does nothing unless the parent started it.
#[test]
fn child() {
    let Some(dir) = env::var_os(DIR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Embedded::open(config(Path::new(&dir))).unwrap();
        let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

/// Counts up for ever. Writes every number to a key of its own and to the writer's head at once.
async fn write(store: Arc<Embedded>, writer: u64) {
    let mut number = head(&store, writer).await;
    loop {
        number += 1;
        let padding = "x".repeat((number % 300) as usize);
        let key = format!("/key/{writer}/{}", number % KEYS);
        let ops = vec![
            Op::put(key, format!("{number} {padding}"), Expect::Any),
            Op::put(format!("/head/{writer}"), format!("{number}"), Expect::Any),
        ];
        let revision = commit(&*store, ops).await;
        // Each is one write to the pipe: the kernel does not tear it.
        let line = format!("ack {writer} {number} {revision}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
}

async fn head(store: &Embedded, writer: u64) -> u64 {
    let (_, entry) = store.get(format!("/head/{writer}").as_bytes()).await.unwrap();
    entry.map_or(0, |entry| number(&entry.value))
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// The reports of the children so far.
#[derive(Default)]
struct Acknowledged {
    heads: HashMap<u64, u64>,
    revision: u64,
    writes: u64,
}

impl Acknowledged {
    fn report(&mut self, line: &str) {
        let Some((_, report)) = line.split_once("ack ") else { return };
        let numbers: Vec<u64> = report.split(' ').map(|number| number.parse().unwrap()).collect();
        let [writer, number, revision] = numbers[..] else { panic!("{line}") };
        self.heads.insert(writer, number);
        self.revision = self.revision.max(revision);
        self.writes += 1;
    }

    async fn check(&mut self, dir: &Path) {
        let store = Embedded::open(config(dir)).unwrap();
        assert!(store.revision() >= self.revision, "revision {} of {}", store.revision(), self.revision);
        for writer in 0..WRITERS {
            let acknowledged = self.heads.get(&writer).copied().unwrap_or(0);
            let head = head(&store, writer).await;
            // One write may have been in flight when the process died.
            assert!((acknowledged..=acknowledged + 1).contains(&head), "head {head}, acknowledged {acknowledged}");
            let keys = store.range(Range::prefix(format!("/key/{writer}/").as_bytes())).await.unwrap();
            let mut numbers: Vec<u64> = keys.entries.iter().map(|entry| number(&entry.value)).collect();
            numbers.sort_unstable();
            let expected: Vec<u64> = (head.saturating_sub(KEYS) + 1..=head).collect();
            assert_eq!(numbers, expected, "the last turn of writer {writer}, whole");
            // A write that was in flight is durable now, and stays.
            self.heads.insert(writer, head);
        }
        self.revision = store.revision();
    }
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a child and kills it: at any moment of its life, or only after its first write, which it would rarely reach
/// on a slow machine.
fn round(dir: &Path, once_it_writes: bool, chance: &mut Chance, acknowledged: &mut Acknowledged) {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let stdout = child.0.stdout.take().unwrap();
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    if once_it_writes {
        let first = lines.iter().find(|line| line.contains("ack "));
        acknowledged.report(&first.expect("the child writes until it is killed"));
    }
    thread::sleep(Duration::from_micros(chance.below(90_000)));
    drop(child);
    lines.iter().for_each(|line| acknowledged.report(&line));
}

#[test]
fn acknowledged_writes_survive_a_thousand_kills() {
    let begin = Instant::now();
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            thread::spawn(move || {
                let dir = tempfile::tempdir().unwrap();
                let mut chance = Chance(lane);
                let mut acknowledged = Acknowledged::default();
                for number in 0..KILLS / LANES {
                    round(dir.path(), number % 4 == 0, &mut chance, &mut acknowledged);
                    block_on(acknowledged.check(dir.path()));
                }
                acknowledged.writes
            })
        })
        .collect();
    let writes: u64 = lanes.into_iter().map(|lane| lane.join().unwrap()).sum();
    println!("{KILLS} kills, {writes} acknowledged writes, {:?}", begin.elapsed());
    assert!(writes >= KILLS / 4, "the children hardly wrote: {writes}");
}
