//! `corten bench api`: a load generator for API servers, the same for every Kubernetes.
//!
//! A run makes a namespace, measures one scenario after the other (one file each), and removes what it made, also
//! when a scenario fails or the user interrupts it. Requests are sent in a closed loop: each connection has one
//! request under way, and the next goes out when the answer has been read.

mod create;
mod get;
mod list;
mod measure;
mod objects;
mod target;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cli::{BenchApi, BenchOutput, Scenario};
use measure::{Cost, Latencies, Processes, Report, Span};
use objects::Namespace;
use target::{Connection, Target};

/// One run: where to, how much, and what it found.
struct Run<'t> {
    target: &'t Target,
    namespace: &'t Namespace<'t>,
    flags: &'t BenchApi,
    processes: Processes,
}

/// Runs the scenarios and prints their figures.
pub async fn run(flags: &BenchApi) -> Result<()> {
    let processes = Processes::new(&flags.server_pid)?;
    let target = Target::new(flags).await?;
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

    /// The encoded bytes of all objects, as the server itself estimates them.
    async fn stored(&self) -> Result<f64> {
        let text = self.target.connect().await?.text("/metrics").await?;
        let sizes = text.lines().filter(|line| line.starts_with("apiserver_resource_size_estimate_bytes{"));
        Ok(sizes.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).filter(|size| *size > 0.0).sum())
    }

    /// Repeats a request on `connections` until the time or the number of requests is over; `request` gets the
    /// number of the request.
    async fn load(
        &self,
        connections: usize,
        request: impl AsyncFn(&mut Connection<'_>, u64) -> Result<()>,
    ) -> Result<Load> {
        let connections = self.target.connections(connections).await?;
        let most = self.flags.requests.unwrap_or(u64::MAX);
        let next = AtomicU64::new(0);
        let span = Span::begin(&self.processes);
        let until = Instant::now() + Duration::from_secs(self.flags.duration.into());
        let workers = connections.into_iter().map(async |mut connection| {
            let mut latencies = Latencies::default();
            loop {
                let began = Instant::now();
                if began >= until {
                    return Ok::<_, anyhow::Error>(latencies);
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= most {
                    return Ok(latencies);
                }
                request(&mut connection, number).await?;
                latencies.add(began.elapsed());
            }
        });
        let all = futures::future::try_join_all(workers).await?;
        let cost = span.end(&self.processes);
        let mut latencies = Latencies::default();
        all.into_iter().for_each(|one| latencies.extend(one));
        Ok(Load { latencies, cost })
    }
}

/// What a closed loop of requests took.
struct Load {
    latencies: Latencies,
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
