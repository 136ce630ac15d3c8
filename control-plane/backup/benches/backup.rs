//! The time of a backup of 100,000 objects, of the writes beside it, and of a restore: `cargo bench -p corten-backup`.
//!
//! `OBJECTS` chooses another number. The writes go to the store in the same process, one after the other, as those of a
//! quiet cluster do; their latency is mostly that of the disk's sync.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at what it does not expect")]

use std::collections::BTreeMap;
use std::io::Seek;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corten_backup::archive::Contents;
use corten_backup::rebuild::{self, Rebuild};
use corten_backup::restore::{self, Staging};
use corten_backup::{Header, Manifest, Secret, file};
use corten_store::snapshot::{self, Member};
use corten_store::{Config, Embedded, Expect, Op, Store};

const BATCH: u64 = 500;
const BYTES: usize = 1024;
const BASELINE: Duration = Duration::from_secs(5);

fn main() {
    let objects: u64 = std::env::var("OBJECTS").ok().and_then(|text| text.parse().ok()).unwrap_or(100_000);
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(Config::new(folder.path().join("store"))).unwrap();
    runtime.block_on(fill(&store, objects));
    let secret = Secret::key_file(vec![7; 32]).unwrap();

    let alone = Arc::new(AtomicBool::new(false));
    let writer = runtime.spawn(write_until(store.clone(), alone.clone()));
    std::thread::sleep(BASELINE);
    alone.store(true, Ordering::Relaxed);
    let quiet = runtime.block_on(writer).unwrap();

    let ended = Arc::new(AtomicBool::new(false));
    let writer = runtime.spawn(write_until(store.clone(), ended.clone()));
    let begin = Instant::now();
    let path = folder.path().join("cluster.corten");
    let bytes = back_up(&store, folder.path(), &path, &secret);
    let backup = begin.elapsed();
    ended.store(true, Ordering::Relaxed);
    let busy = runtime.block_on(writer).unwrap();
    drop(store);

    let begin = Instant::now();
    restored(&path, &folder.path().join("data"), &secret);
    let restore = begin.elapsed();
    println!("{build}, {objects} objects of {BYTES} bytes, a backup of {:.1} MiB", bytes as f64 / 1_048_576.0);
    println!("backup                     {:.2} s", backup.as_secs_f64());
    println!("p99 of writes, alone       {:.2} ms", p99(quiet).as_secs_f64() * 1000.0);
    println!("p99 of writes, beside it   {:.2} ms", p99(busy).as_secs_f64() * 1000.0);
    println!("restore, to an open store  {:.2} s", restore.as_secs_f64());
}

async fn fill(store: &Embedded, objects: u64) {
    let value = vec![b'v'; BYTES];
    for first in (0..objects).step_by(BATCH as usize) {
        let keys = first..objects.min(first + BATCH);
        let put = |number| Op::put(format!("/registry/objects/{number:07}"), value.clone(), Expect::Any);
        store.commit(keys.map(put).collect()).await.unwrap();
    }
}

/// Writes one object after the other; returns how long each took.
async fn write_until(store: Arc<Embedded>, ended: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let key = format!("/registry/objects/{:07}", times.len() % 1000);
        store.commit(vec![Op::put(key, vec![b'w'; BYTES], Expect::Any)]).await.unwrap();
        times.push(begin.elapsed());
    }
    times
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

fn back_up(store: &Embedded, scratch: &Path, path: &Path, secret: &Secret) -> u64 {
    let mut snapshot = file::scratch_file(scratch).unwrap();
    let member = Member { id: 1, name: "m".into(), peer_urls: vec![], client_urls: vec![], applied: 1 };
    let snapshot_bytes = snapshot::save(&store.contents(), &member, &snapshot).unwrap();
    snapshot.rewind().unwrap();
    let mut contents = Contents {
        header: Header::new(jiff::Timestamp::now(), "bench", "bench", secret).unwrap(),
        manifest: Manifest::default(),
        files: BTreeMap::from([("pki/ca.crt".to_owned(), vec![0; 1000])]),
        snapshot,
        snapshot_bytes,
    };
    file::write(path, &mut contents, secret).unwrap()
}

fn restored(path: &Path, data: &Path, secret: &Secret) {
    let staging = Staging::begin(data).unwrap();
    let opened = file::open(path, secret).unwrap();
    let files = opened.files.clone();
    let contents = file::load_snapshot(path, opened, &staging.dir()).unwrap();
    let source = path.display().to_string();
    let aside = "replaced".to_owned();
    let new = Rebuild { source, contents: &contents, keeps: &|_| true, files: &files, retire: &[], aside };
    rebuild::stage(staging, &new).unwrap();
    restore::finish(data).unwrap();
    assert!(Embedded::open(Config::new(data.join("store"))).unwrap().revision() > rebuild::REVISION_STEP);
}
