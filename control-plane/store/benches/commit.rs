//! Measures durable writes per second of 1 KiB at 1, 32 and 128 writers, and the processor time of one write.
//!
//! Every writer waits for its write to be durable before the next one. The keys repeat, so that the store has 10,000
//! entries, and checkpoints and compaction take their share of the time. Prints one `figure<TAB>value<TAB>unit` line
//! each, for the history.

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
    figure("store, open empty", begin.elapsed().as_secs_f64() * 1e3, "ms");
    for writers in [1, 32, 128] {
        runtime.block_on(measure(&store, writers));
    }
    drop(store);
    let begin = Instant::now();
    let store = Embedded::open(Config::new(dir.path())).expect("a store");
    figure("store, open again per 100k revisions", begin.elapsed().as_secs_f64() * 1e8 / store.revision() as f64, "ms");
}

async fn measure(store: &Arc<Embedded>, writers: u64) {
    let begin = Instant::now();
    let cpu = cpu_time();
    let writers: Vec<_> = (0..writers).map(|writer| tokio::spawn(write(store.clone(), writer, begin))).collect();
    let count = writers.len();
    let mut latencies = Vec::new();
    for writer in writers {
        latencies.extend(writer.await.expect("a writer that does not panic"));
    }
    let elapsed = begin.elapsed();
    let cpu = cpu_time() - cpu;
    latencies.sort_unstable();
    let writes = latencies.len();
    let of = |what: &str| format!("store, {count} writers, {what}");
    figure(&of("writes"), writes as f64 / elapsed.as_secs_f64(), "1/s");
    figure(&of("p99"), latencies[writes * 99 / 100].as_secs_f64() * 1e3, "ms");
    figure(&of("CPU per write"), cpu.as_secs_f64() * 1e6 / writes as f64, "µs");
}

/// Prints one line of the history: figure, value, unit.
fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

async fn write(store: Arc<Embedded>, writer: u64, begin: Instant) -> Vec<Duration> {
    let value = Bytes::from(vec![b'v'; 1024]);
    let mut latencies = Vec::new();
    let mut number = writer * 7919;
    while begin.elapsed() < TIME {
        number += 1;
        let key = format!("/registry/pods/default/pod-{:05}", number % KEYS);
        let value = Bytes::copy_from_slice(&value);
        let begun = Instant::now();
        store.commit(vec![Op::put(key, value, Expect::Any)]).await.expect("a write");
        latencies.push(begun.elapsed());
    }
    latencies
}

/// Returns the processor time of this process so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
