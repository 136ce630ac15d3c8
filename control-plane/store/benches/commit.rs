//! Durable writes per second of 1 KiB at 1, 32 and 128 writers, and what one costs the processor.
//!
//! Every writer waits for its write to be durable before the next one. The keys go round, so that
//! the store holds 10,000 entries, and checkpoints and compaction take their share of the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_store::{Config, Embedded, Expect, Op, Store};

const TIME: Duration = Duration::from_secs(3);
const KEYS: u64 = 10_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let begin = Instant::now();
    let store = Embedded::open(Config::new(dir.path())).expect("a store");
    println!("open an empty store: {:?}", begin.elapsed());
    for writers in [1, 32, 128] {
        runtime.block_on(measure(&store, writers));
    }
    drop(store);
    let begin = Instant::now();
    let store = Embedded::open(Config::new(dir.path())).expect("a store");
    println!("open it again at revision {}: {:?}", store.revision(), begin.elapsed());
}

async fn measure(store: &Arc<Embedded>, writers: u64) {
    let (begin, cpu) = (Instant::now(), cpu_time());
    let writers: Vec<_> = (0..writers).map(|writer| tokio::spawn(write(store.clone(), writer, begin))).collect();
    let count = writers.len();
    let mut latencies = Vec::new();
    for writer in writers {
        latencies.extend(writer.await.expect("a writer that does not panic"));
    }
    let (elapsed, cpu) = (begin.elapsed(), cpu_time() - cpu);
    latencies.sort_unstable();
    let writes = latencies.len();
    println!(
        "{count:4} writers: {:7.0} writes/s, p50 {:?}, p99 {:?}, {:.1} µs of processor each",
        writes as f64 / elapsed.as_secs_f64(),
        latencies[writes / 2],
        latencies[writes * 99 / 100],
        cpu.as_secs_f64() * 1e6 / writes as f64,
    );
}

async fn write(store: Arc<Embedded>, writer: u64, begin: Instant) -> Vec<Duration> {
    let value = Bytes::from(vec![b'v'; 1024]);
    let mut latencies = Vec::new();
    let mut number = writer * 7919;
    while begin.elapsed() < TIME {
        number += 1;
        let key = format!("/registry/pods/default/pod-{:05}", number % KEYS);
        let value = Bytes::copy_from_slice(&value);
        let asked = Instant::now();
        store.commit(vec![Op::put(key, value, Expect::Any)]).await.expect("a write");
        latencies.push(asked.elapsed());
    }
    latencies
}

/// What this process has taken of the processor so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
