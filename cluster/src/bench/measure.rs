//! The measurements of a run: the time of each request, and the CPU time and memory of the server's processes.
//!
//! CPU time is the figure to compare on a machine that does other things at the same time; rates and latencies need a
//! quiet one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The times of requests.
#[derive(Debug, Default)]
pub struct Latencies(Vec<u32>);

impl Latencies {
    pub fn add(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    pub fn extend(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the time in milliseconds that this part of the requests did not exceed; `part` is between 0 and 1.
    pub fn percentile(&mut self, part: f64) -> f64 {
        if self.0.is_empty() {
            return 0.0;
        }
        let last = self.0.len() - 1;
        let rank = ((self.0.len() as f64 * part).ceil() as usize).saturating_sub(1).min(last);
        let (_, at, _) = self.0.select_nth_unstable(rank);
        f64::from(*at) / 1000.0
    }
}

/// The processes of the server.
#[derive(Debug, Clone)]
pub struct Processes(Vec<u32>);

impl Processes {
    pub fn new(pids: &[u32]) -> Result<Processes> {
        let processes = Processes(pids.to_vec());
        for pid in pids {
            cpu_time(*pid).with_context(|| format!("--server-pid {pid}: there is no such process here"))?;
        }
        Ok(processes)
    }

    pub fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the CPU time of the processes so far.
    pub fn cpu_time(&self) -> Duration {
        self.0.iter().filter_map(|pid| cpu_time(*pid)).sum()
    }

    /// Returns their resident memory in MiB.
    pub fn resident(&self) -> f64 {
        self.0.iter().filter_map(|pid| resident_kib(*pid)).sum::<f64>() / 1024.0
    }
}

/// Returns the user and system time of a process and of its ended threads.
fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks: u64 = after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    // SAFETY: sysconf only reads a constant of the system.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(Duration::from_secs_f64(ticks as f64 / u64::try_from(per_second).unwrap_or(100).max(1) as f64))
}

fn resident_kib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok())
}

/// A span of wall-clock and of CPU time.
pub struct Span {
    began: Instant,
    server: Duration,
    own: Duration,
}

/// The cost of a span.
pub struct Cost {
    pub wall: Duration,
    /// CPU time of the server.
    pub server: Duration,
    /// CPU time of this program.
    pub own: Duration,
}

impl Span {
    pub fn begin(processes: &Processes) -> Span {
        Span { began: Instant::now(), server: processes.cpu_time(), own: own_cpu_time() }
    }

    pub fn end(&self, processes: &Processes) -> Cost {
        Cost {
            wall: self.began.elapsed(),
            server: processes.cpu_time().saturating_sub(self.server),
            own: own_cpu_time().saturating_sub(self.own),
        }
    }
}

fn own_cpu_time() -> Duration {
    cpu_time(std::process::id()).unwrap_or_default()
}

/// The memory of a server without objects, in MiB.
const EMPTY_SERVER: f64 = 40.0;

/// One line of the result.
#[derive(Debug, Clone)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
}

/// All lines of the result.
#[derive(Debug, Default)]
pub struct Report(Vec<Figure>);

impl Report {
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.0.push(Figure { name: name.into(), value, unit });
    }

    /// Adds the lines of a scenario of requests: rate, latencies, and the CPU time of each.
    pub fn requests(&mut self, name: &str, mut latencies: Latencies, cost: &Cost, processes: &Processes) {
        let count = latencies.count().max(1) as f64;
        self.add(format!("{name}, rate"), count / cost.wall.as_secs_f64(), "/s");
        self.add(format!("{name}, p50"), latencies.percentile(0.5), "ms");
        self.add(format!("{name}, p99"), latencies.percentile(0.99), "ms");
        if processes.are_known() {
            self.add(format!("{name}, server CPU each"), cost.server.as_secs_f64() * 1000.0 / count, "ms");
        }
        self.add(format!("{name}, client CPU each"), cost.own.as_secs_f64() * 1000.0 / count, "ms");
    }

    pub fn memory(&mut self, name: &str, processes: &Processes) {
        if processes.are_known() {
            self.add(format!("{name}, server resident"), processes.resident(), "MiB");
        }
    }

    /// Adds the size of the stored objects, and its ratio to the server's memory beyond that of an empty server.
    pub fn stored(&mut self, name: &str, bytes: f64, processes: &Processes) {
        let stored = bytes / f64::from(1 << 20);
        self.add(format!("{name}, encoded"), stored, "MiB");
        if processes.are_known() && stored > 0.0 {
            let ratio = (processes.resident() - EMPTY_SERVER).max(0.0) / stored;
            self.add(format!("{name}, resident less 40 MiB to encoded"), ratio, "times");
        }
    }

    pub fn figures(&self) -> &[Figure] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut latencies = Latencies::default();
        for milliseconds in (1..=200).rev() {
            latencies.add(Duration::from_millis(milliseconds));
        }
        assert_eq!(latencies.percentile(0.5), 100.0);
        assert_eq!(latencies.percentile(0.99), 198.0);
        assert_eq!(latencies.percentile(1.0), 200.0);
        assert_eq!(Latencies::default().percentile(0.99), 0.0);
    }

    #[test]
    fn memory_is_compared_with_the_stored_bytes() {
        let mut report = Report::default();
        let none = Processes(Vec::new());
        report.stored("x", f64::from(3 << 20), &none);
        let names: Vec<(&str, f64)> = report.figures().iter().map(|f| (f.name.as_str(), f.value)).collect();
        assert_eq!(names, [("x, encoded", 3.0)]);
        let own = Processes(vec![std::process::id()]);
        report.stored("y", 1.0, &own);
        assert_eq!(report.figures().last().map(|f| f.unit), Some("times"));
    }

    #[test]
    fn the_own_process_can_be_measured() {
        let own = Processes::new(&[std::process::id()]).expect("there is a process of this number");
        assert!(own.resident() > 0.0);
        assert!(Processes::new(&[u32::MAX]).is_err());
    }
}
