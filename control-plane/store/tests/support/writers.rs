//! Writers in a process of their own, which report each acknowledged write on a pipe, and the check that a store has
//! what they reported.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;

use corten_store::{Config, Embedded, Expect, Op, Range, Retain, Store};

use super::commit;

const DIR: &str = "CORTEN_STORE_CRASH_DIR";
const WRITERS: u64 = 4;
/// The number of keys that each writer repeats.
const KEYS: u64 = 40;

pub fn config(dir: &Path) -> Config {
    let retain = Retain { revisions: 200, ..Retain::default() };
    Config { segment_bytes: 32 << 10, checkpoint_bytes: 96 << 10, retain, ..Config::new(dir) }
}

/// Writes for ever if this process is a child; else does nothing.
pub fn run_as_child() {
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
#[derive(Clone, Debug, Default)]
pub struct Acknowledged {
    /// The revision of every acknowledged number of a writer.
    numbers: HashMap<u64, BTreeMap<u64, u64>>,
    heads: HashMap<u64, u64>,
    revision: u64,
    pub writes: u64,
}

impl Acknowledged {
    fn report(&mut self, line: &str) {
        let Some((_, report)) = line.split_once("ack ") else { return };
        let numbers: Vec<u64> = report.split(' ').map(|number| number.parse().unwrap()).collect();
        let [writer, number, revision] = numbers[..] else { panic!("{line}") };
        self.heads.insert(writer, number);
        self.numbers.entry(writer).or_default().insert(number, revision);
        self.revision = self.revision.max(revision);
        self.writes += 1;
    }

    fn head(&self, writer: u64) -> u64 {
        self.heads.get(&writer).copied().unwrap_or(0)
    }

    /// Checks that a store opens and has everything. `latest` is all that was acknowledged before the process died, if it
    /// did: one more write of each writer may have been in flight. What the store has is durable now, and stays.
    pub async fn check(&mut self, dir: &Path, latest: Option<&Acknowledged>) {
        let store = Embedded::open(config(dir)).unwrap();
        assert!(store.revision() >= self.revision, "revision {} of {}", store.revision(), self.revision);
        for writer in 0..WRITERS {
            let head = head(&store, writer).await;
            let most = latest.map_or(u64::MAX, |latest| latest.head(writer) + 1);
            let possible = self.head(writer)..=most;
            assert!(possible.contains(&head), "head {head}, acknowledged {possible:?}");
            let keys = store.range(Range::prefix(format!("/key/{writer}/").as_bytes())).await.unwrap();
            let mut numbers: Vec<u64> = keys.entries.iter().map(|entry| number(&entry.value)).collect();
            numbers.sort_unstable();
            let expected: Vec<u64> = (head.saturating_sub(KEYS) + 1..=head).collect();
            assert_eq!(numbers, expected, "the last turn of writer {writer}, whole");
            let known = self.numbers.entry(writer).or_default();
            for entry in &keys.entries {
                let revision = known.get(&number(&entry.value));
                assert!(revision.is_none_or(|revision| *revision == entry.mod_revision), "{entry:?}: {revision:?}");
            }
            known.retain(|number, _| *number + KEYS > head);
            self.heads.insert(writer, head);
        }
        self.revision = store.revision();
    }
}

/// A child that does not outlive the test.
pub struct Child {
    process: process::Child,
    lines: mpsc::Receiver<String>,
}

impl Child {
    /// Starts the test `child` of this program on a directory.
    pub fn start(dir: &Path) -> Child {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        let mut reports = BufReader::new(stdout).lines().map_while(Result::ok);
        thread::spawn(move || reports.try_for_each(|line| sender.send(line)));
        Child { process, lines }
    }

    /// Waits until a write is acknowledged, and reports all until then.
    pub fn wait_for_a_write(&self, acknowledged: &mut Acknowledged) {
        let first = self.lines.iter().find(|line| line.contains("ack "));
        acknowledged.report(&first.expect("the child writes until it is killed"));
    }

    /// Reports what was acknowledged until now.
    pub fn report(&self, acknowledged: &mut Acknowledged) {
        self.lines.try_iter().for_each(|line| acknowledged.report(&line));
    }

    /// Kills the child, and reports what it had acknowledged.
    pub fn kill(mut self, acknowledged: &mut Acknowledged) {
        self.end();
        self.lines.iter().for_each(|line| acknowledged.report(&line));
    }

    fn end(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}
