//! Backups and restores by processes that are killed at random moments: no backup that was acknowledged is lost, and a
//! data directory is always that of one generation, old or new, once its restore was finished or undone.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use corten_backup::archive::Contents;
use corten_backup::rebuild::{self, REVISION_STEP, Rebuild};
use corten_backup::restore::{self, Staging};
use corten_backup::{Header, Manifest, Secret, file};
use corten_store::snapshot::{self, Member};
use corten_store::{Config, Embedded, Entry, Store};

/// The variable that makes a test process the child.
const DIR: &str = "CORTEN_BACKUP_KILLS";
const KILLS: u64 = 120;

fn secret() -> Secret {
    Secret::key_file(vec![3; 32]).unwrap()
}

/// Returns a store that knows its generation, in many keys.
fn store(generation: u64) -> snapshot::Contents {
    let entry = |number: u64| Entry {
        key: format!("/registry/{number:04}").into(),
        value: format!("{generation} {}", "v".repeat(200)).into(),
        create_revision: generation + 1,
        mod_revision: generation + 1,
        version: 1,
        lease: 0,
    };
    let base = (0..500).map(|number| Arc::new(entry(number))).collect();
    let revision = generation + 1;
    snapshot::Contents { revision, compacted: revision, base, history: Vec::new(), leases: Vec::new() }
}

fn backup(dir: &Path, generation: u64) -> Contents {
    let mut file =
        fs::File::options().read(true).write(true).create(true).truncate(true).open(dir.join("s.db")).unwrap();
    let member = Member { id: 1, name: "m".into(), peer_urls: vec![], client_urls: vec![], applied: 1 };
    let snapshot_bytes = snapshot::save(&store(generation), &member, &file).unwrap();
    file.rewind().unwrap();
    Contents {
        header: Header::new(jiff::Timestamp::now(), "1", "c", &secret()).unwrap(),
        manifest: Manifest { node: "n".into(), ..Manifest::default() },
        files: BTreeMap::from([("pki/ca.key".to_owned(), generation.to_string().into_bytes())]),
        snapshot: file,
        snapshot_bytes,
    }
}

fn path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("{generation}.corten"))
}

/// Restores a generation, as the command does.
fn restored(dir: &Path, generation: u64) {
    let data = dir.join("data");
    let staging = Staging::begin(&data).unwrap();
    let opened = file::open(&path(dir, generation), &secret()).unwrap();
    let files = opened.files.clone();
    let contents = file::load_snapshot(&path(dir, generation), opened, &staging.dir()).unwrap();
    let rebuild = Rebuild {
        source: format!("generation {generation}"),
        contents: &contents,
        keeps: &|_| true,
        files: &files,
        retire: &["etcd"],
        aside: format!("replaced-{generation}"),
    };
    rebuild::stage(staging, &rebuild).unwrap();
    restore::finish(&data).unwrap();
}

/// The child: backs up and restores one generation after the other until it is killed.
#[test]
fn child() {
    let Some(dir) = env::var_os(DIR).map(PathBuf::from) else { return };
    let mut generation = fs::read_to_string(dir.join("next")).unwrap().parse().unwrap();
    loop {
        if !path(&dir, generation).exists() {
            file::write(&path(&dir, generation), &mut backup(&dir, generation), &secret()).unwrap();
        }
        println!("backup {generation}");
        restored(&dir, generation);
        println!("restored {generation}");
        generation += 1;
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the generation of a data directory; all of it must be of one.
fn generation(data: &Path) -> u64 {
    let key: u64 = fs::read_to_string(data.join("pki/ca.key")).unwrap().parse().unwrap();
    let store = Embedded::open(Config::new(data.join("store"))).unwrap();
    assert_eq!(store.revision(), key + 1 + REVISION_STEP);
    let contents = store.contents();
    assert_eq!(contents.base.len(), 500);
    let expected = format!("{key} ");
    assert!(contents.base.iter().all(|entry| entry.value.starts_with(expected.as_bytes())), "generation {key}");
    key
}

/// Repeatable random numbers: splitmix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

#[derive(Default)]
struct Acknowledged {
    backup: u64,
    restored: u64,
}

/// Runs a child for a random time.
fn round(dir: &Path, chance: &mut Chance, acknowledged: &mut Acknowledged) {
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
    thread::sleep(Duration::from_micros(chance.below(400_000)));
    drop(child);
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [.., "backup", number] => acknowledged.backup = number.parse().unwrap(),
            [.., "restored", number] => acknowledged.restored = number.parse().unwrap(),
            _ => {}
        }
    }
}

#[test]
fn nothing_is_lost_whenever_a_backup_or_a_restore_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let data = dir.join("data");
    fs::create_dir(&data).unwrap();
    file::write(&path(dir, 1), &mut backup(dir, 1), &secret()).unwrap();
    restored(dir, 1);
    let mut acknowledged = Acknowledged { backup: 1, restored: 1 };
    let mut chance = Chance(7);
    let mut undone = 0;
    let mut finished = 0;
    for _ in 0..KILLS {
        write_next(dir, acknowledged.restored + 1);
        round(dir, &mut chance, &mut acknowledged);
        let before = acknowledged.restored;
        if restore::pending(&data).unwrap().is_some() {
            assert!(restore::refuse_pending(&data).unwrap_err().to_string().contains("--finish"));
            if chance.below(2) == 0 {
                restore::undo(&data).unwrap();
                undone += 1;
                assert_eq!(generation(&data), before);
            } else {
                restore::finish(&data).unwrap();
                finished += 1;
                assert_eq!(generation(&data), before + 1);
            }
        }
        // The last line of a child may be lost with it.
        let found = generation(&data);
        assert!((before..=before + 1).contains(&found), "generation {found} after {before}");
        acknowledged.restored = found;
        let last = file::verify(&path(dir, acknowledged.backup), &secret(), dir).unwrap();
        assert_eq!((last.keys, last.revision), (500, acknowledged.backup + 1));
        // Each generation was set aside by the next.
        for earlier in 2..=found {
            let aside = data.join(format!("replaced-{earlier}"));
            let key = fs::read_to_string(aside.join("pki/ca.key")).unwrap();
            assert_eq!(key, (earlier - 1).to_string());
        }
    }
    for number in 1..=acknowledged.backup {
        file::verify(&path(dir, number), &secret(), dir).unwrap();
    }
    println!("{KILLS} kills, {} restores, {undone} undone, {finished} finished", acknowledged.restored);
    assert!(acknowledged.restored > KILLS / 10, "the children hardly worked: {}", acknowledged.restored);
}

fn write_next(dir: &Path, generation: u64) {
    let mut file = fs::File::create(dir.join("next")).unwrap();
    file.write_all(generation.to_string().as_bytes()).unwrap();
}
