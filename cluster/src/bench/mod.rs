//! `corten bench api`: a load generator for API servers, the same for every Kubernetes.
//!
//! A run creates a namespace, measures one scenario after the other (one file each), and removes what it created, also
//! when a scenario fails or the user interrupts it. Requests are sent in a closed loop: each connection has one request
//! in flight, and the next is sent when the answer has been read.

mod create;
mod get;
mod list;
pub mod measure;
mod objects;
mod target;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http::Method;
use tokio_util::task::AbortOnDropHandle;

use crate::bench_cli::{BenchApi, BenchOutput, Scenario};
use measure::{Cost, Latencies, Processes, Report, Span};
use objects::Namespace;
use target::{Connection, Target};

/// One run: its target, its extent, and its results.
struct Run<'t> {
    target: &'t Arc<Target>,
    namespace: &'t Namespace<'t>,
    flags: &'t BenchApi,
    processes: Processes,
}

/// Runs the scenarios and prints their figures.
pub async fn run(flags: &BenchApi) -> Result<()> {
    let processes = Processes::new(&flags.server_pid)?;
    let target = Arc::new(Target::new(flags).await?);
    let namespace = Namespace::create(&target).await?;
    let run = Run { target: &target, namespace: &namespace, flags, processes };
    let mut report = Report::default();
    let measured = tokio::select! {
        measured = run.scenarios(&mut report) => measured,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    print(&report, flags.output);
    let cleaned = namespace.delete().await;
    measured.and(cleaned)
}

impl Run<'_> {
    async fn scenarios(&self, report: &mut Report) -> Result<()> {
        let wanted = |scenario| self.flags.scenario == scenario || self.flags.scenario == Scenario::All;
        report.memory("before", &self.processes);
        if wanted(Scenario::Create) {
            create::measure(self, report).await?;
        }
        if wanted(Scenario::Get) {
            get::measure(self, report).await?;
        }
        if wanted(Scenario::List) {
            list::measure(self, report).await?;
        }
        if wanted(Scenario::Watch) {
            watch::measure(self, report).await?;
        }
        report.memory("after", &self.processes);
        Ok(())
    }

    /// Returns the encoded bytes of all objects, by the server's own estimate.
    async fn stored(&self) -> Result<f64> {
        let text = self.target.connect().await?.text("/metrics").await?;
        let sizes = text.lines().filter(|line| line.starts_with("apiserver_resource_size_estimate_bytes{"));
        Ok(sizes.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).filter(|size| *size > 0.0).sum())
    }

    /// Repeats a request on `connections` until the time or the number of requests is over; `call` returns the request
    /// of a number.
    async fn load(&self, connections: usize, call: impl Fn(u64) -> Call + Send + Sync + 'static) -> Result<Load> {
        let connections = self.target.connections(connections).await?;
        let most = self.flags.requests.unwrap_or(u64::MAX);
        let next = AtomicU64::new(0);
        let span = Span::begin(&self.processes);
        let until = Instant::now() + Duration::from_secs(self.flags.duration.into());
        let numbers = Arc::new(move || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < most));
        let call = Arc::new(call);
        // Each is a task of its own, so that its answers are read where they arrive.
        let workers = connections.into_iter().map(|connection| {
            let numbers = Arc::clone(&numbers);
            let call = Arc::clone(&call);
            AbortOnDropHandle::new(tokio::spawn(async move {
                repeat(connection, until, numbers.as_ref(), call.as_ref()).await
            }))
        });
        let workers: Vec<_> = workers.collect();
        let mut all = Worked::default();
        for worker in workers {
            let worked = worker.await??;
            all.latencies.extend(worked.latencies);
            all.bytes = all.bytes.max(worked.bytes);
        }
        Ok(Load { latencies: all.latencies, bytes: all.bytes, cost: span.end(&self.processes) })
    }
}

/// A request.
type Call = (Method, String, Bytes);

/// The results of one connection.
#[derive(Default)]
struct Worked {
    latencies: Latencies,
    /// The size of the largest answer.
    bytes: usize,
}

/// Sends one request after the other.
async fn repeat(
    mut connection: Connection,
    until: Instant,
    numbers: &(dyn Fn() -> Option<u64> + Send + Sync),
    call: &(dyn Fn(u64) -> Call + Send + Sync),
) -> Result<Worked> {
    let mut worked = Worked::default();
    loop {
        let began = Instant::now();
        let Some(number) = numbers().filter(|_| began < until) else { return Ok(worked) };
        let (method, path, body) = call(number);
        let read = connection.call(method, &path, body).await?;
        worked.latencies.add(began.elapsed());
        worked.bytes = worked.bytes.max(read);
    }
}

/// The results of a closed loop of requests.
struct Load {
    latencies: Latencies,
    /// The size of the largest answer.
    bytes: usize,
    cost: Cost,
}

fn print(report: &Report, output: BenchOutput) {
    let width = report.figures().iter().map(|figure| figure.name.len()).max().unwrap_or_default();
    for figure in report.figures() {
        match output {
            BenchOutput::Table => println!("{:<width$}   {:>12.3} {}", figure.name, figure.value, figure.unit),
            BenchOutput::Tsv => println!("{}\t{:.3}\t{}", figure.name, figure.value, figure.unit),
        }
    }
}
