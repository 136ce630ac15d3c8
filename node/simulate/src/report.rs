//! The result of a simulation: service levels as upstream defines them, and the cost of the server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use corten_meta::Value;
use serde_json::json;

use crate::histogram::Histogram;
use crate::recorder::{Answers, CallKind, Scope};

/// Upstream's limits of the 99th percentile, in milliseconds: a call for one object, a list, and the start of a pod
/// without the pull of its images.
const OBJECT_LIMIT: f64 = 1_000.0;
const LIST_LIMIT: f64 = 30_000.0;
const STARTUP_LIMIT: f64 = 5_000.0;

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    pub nodes: u32,
    /// The pods on simulated nodes at the end.
    pub pods: u64,
    /// The time that was measured.
    pub seconds: f64,
    /// The time from the creation of the workloads until all pods ran.
    pub fill_seconds: f64,
    pub calls: Vec<Call>,
    /// The times from the creation of a pod of the churn.
    pub bound: Startup,
    pub running: Startup,
    /// The cost of the server, if its process is known.
    pub server: Option<ServerUse>,
}

/// The latencies of requests of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub verb: &'static str,
    pub resource: String,
    pub scope: &'static str,
    pub count: u64,
    pub failures: u64,
    pub p50: f64,
    pub p99: f64,
    pub limit: f64,
}

/// The times of pods from their creation, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Startup {
    pub count: u64,
    pub p50: f64,
    pub p99: f64,
}

/// The cost of the server while it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerUse {
    /// The CPU time of a second, in cores.
    pub cores: f64,
    pub resident_mib: f64,
    pub peak_resident_mib: f64,
    /// The size of the store at the end, and its growth in an hour; zero if it is not known.
    pub store_mib: f64,
    pub store_mib_per_hour: f64,
    /// The load average of the machine over the last minute.
    pub load_average: f64,
}

impl Startup {
    pub(crate) fn of(histogram: &Histogram) -> Startup {
        Startup { count: histogram.count(), p50: histogram.percentile(0.5), p99: histogram.percentile(0.99) }
    }
}

/// Returns the latencies of all kinds of requests, except the few that only begin and end a simulation.
pub(crate) fn calls(answers: BTreeMap<CallKind, Answers>) -> Vec<Call> {
    let call = |(kind, Answers { latencies, failures }): (CallKind, Answers)| Call {
        verb: kind.verb,
        resource: kind.resource,
        scope: kind.scope.name(),
        count: latencies.count(),
        failures,
        p50: latencies.percentile(0.5),
        p99: latencies.percentile(0.99),
        limit: if kind.scope == Scope::Resource { OBJECT_LIMIT } else { LIST_LIMIT },
    };
    answers.into_iter().map(call).collect()
}

impl Call {
    pub fn meets(&self) -> bool {
        self.p99 <= self.limit
    }
}

impl Report {
    /// Reports whether all of upstream's service levels are met.
    pub fn meets(&self) -> bool {
        self.calls.iter().all(Call::meets) && (self.running.count == 0 || self.running.p99 <= STARTUP_LIMIT)
    }

    /// Returns the report for people.
    pub fn table(&self) -> String {
        let Report { nodes, pods, seconds, fill_seconds, .. } = self;
        let mut out = format!("{nodes} nodes, {pods} pods, measured for {seconds:.0} s");
        if *fill_seconds > 0.0 {
            let _ = write!(out, "; all pods ran after {fill_seconds:.1} s");
        }
        out.push_str("\n\n");
        let widest = self.calls.iter().map(|call| call.resource.len()).max().unwrap_or(0).max(8);
        let _ = writeln!(
            out,
            "{:<16}  {:<widest$}  {:<9}  {:>9}  {:>8}  {:>9}  {:>9}  {:>8}  LEVEL",
            "VERB", "RESOURCE", "SCOPE", "COUNT", "FAILURES", "P50 MS", "P99 MS", "LIMIT MS"
        );
        for call in &self.calls {
            let Call { verb, resource, scope, count, failures, p50, p99, limit } = call;
            let met = level(call.meets());
            let _ = writeln!(
                out,
                "{verb:<16}  {resource:<widest$}  {scope:<9}  {count:>9}  {failures:>8}  {p50:>9.1}  {p99:>9.1}  {limit:>8.0}  {met}"
            );
        }
        out.push('\n');
        if self.bound.count > 0 {
            let Startup { count, p50, p99 } = self.bound;
            let _ = writeln!(out, "pod created to bound    p50 {p50:.1} ms, p99 {p99:.1} ms, of {count}");
        }
        if self.running.count > 0 {
            let Startup { count, p50, p99 } = self.running;
            let met = level(p99 <= STARTUP_LIMIT);
            let _ = writeln!(
                out,
                "pod created to running  p50 {p50:.1} ms, p99 {p99:.1} ms, of {count}; limit 5000 ms, {met}"
            );
        }
        if let Some(server) = &self.server {
            out.push_str(&server.table(self.nodes));
        }
        out
    }

    /// Returns the report for programs.
    pub fn json(&self) -> Value {
        let startup =
            |one: &Startup| json!({"count": one.count, "p50Milliseconds": one.p50, "p99Milliseconds": one.p99});
        let calls = self.calls.iter().map(|call| {
            json!({
                "verb": call.verb,
                "resource": call.resource,
                "scope": call.scope,
                "count": call.count,
                "failures": call.failures,
                "p50Milliseconds": call.p50,
                "p99Milliseconds": call.p99,
                "limitMilliseconds": call.limit,
                "met": call.meets(),
            })
        });
        let server = self.server.map(|server| {
            json!({
                "cores": server.cores,
                "residentMiB": server.resident_mib,
                "peakResidentMiB": server.peak_resident_mib,
                "storeMiB": server.store_mib,
                "storeMiBPerHour": server.store_mib_per_hour,
                "loadAverage": server.load_average,
            })
        });
        json!({
            "nodes": self.nodes,
            "pods": self.pods,
            "seconds": self.seconds,
            "fillSeconds": self.fill_seconds,
            "calls": calls.collect::<Vec<_>>(),
            "podCreatedToBound": startup(&self.bound),
            "podCreatedToRunning": startup(&self.running),
            "server": server,
            "met": self.meets(),
        })
    }
}

fn level(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

impl ServerUse {
    fn table(&self, nodes: u32) -> String {
        let thousand = 1000.0 / f64::from(nodes.max(1));
        let ServerUse { cores, resident_mib, peak_resident_mib, store_mib, store_mib_per_hour, load_average } = self;
        let mut out = format!(
            "server CPU              {cores:.3} cores, {:.3} for 1000 nodes (load average of the machine {load_average:.1})\n\
             server memory           {resident_mib:.0} MiB resident, {:.0} for 1000 nodes, {peak_resident_mib:.0} at most\n",
            cores * thousand,
            resident_mib * thousand,
        );
        if *store_mib > 0.0 {
            let _ = writeln!(out, "store                   {store_mib:.0} MiB, {store_mib_per_hour:+.0} MiB an hour");
        }
        out
    }
}

/// Returns the cores that a CPU time of a span is.
pub(crate) fn cores(cpu: Duration, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { cpu.as_secs_f64() / span.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn report() -> Report {
        let mut latencies = Histogram::default();
        latencies.add(Duration::from_millis(2));
        let resource = CallKind { verb: "patch", resource: "pods/status".into(), scope: Scope::Resource };
        let mut slow = Histogram::default();
        slow.add(Duration::from_secs(31));
        let cluster = CallKind { verb: "list", resource: "pods".into(), scope: Scope::Cluster };
        let answers = BTreeMap::from([
            (resource, Answers { latencies, failures: 0 }),
            (cluster, Answers { latencies: slow, failures: 1 }),
        ]);
        Report {
            nodes: 500,
            pods: 15_000,
            seconds: 60.0,
            fill_seconds: 12.34,
            calls: calls(answers),
            bound: Startup { count: 3, p50: 4.0, p99: 9.5 },
            running: Startup { count: 2, p50: 1010.0, p99: 1100.0 },
            server: Some(ServerUse {
                cores: 0.25,
                resident_mib: 300.0,
                peak_resident_mib: 310.0,
                store_mib: 120.0,
                store_mib_per_hour: 36.0,
                load_average: 1.5,
            }),
        }
    }

    #[test]
    fn the_table_shows_which_levels_are_met() {
        expect![[r#"
            500 nodes, 15000 pods, measured for 60 s; all pods ran after 12.3 s

            VERB              RESOURCE     SCOPE          COUNT  FAILURES     P50 MS     P99 MS  LIMIT MS  LEVEL
            list              pods         cluster            1         1    31000.0    31000.0     30000  MISSED
            patch             pods/status  resource           1         0        2.0        2.0      1000  met

            pod created to bound    p50 4.0 ms, p99 9.5 ms, of 3
            pod created to running  p50 1010.0 ms, p99 1100.0 ms, of 2; limit 5000 ms, met
            server CPU              0.250 cores, 0.500 for 1000 nodes (load average of the machine 1.5)
            server memory           300 MiB resident, 600 for 1000 nodes, 310 at most
            store                   120 MiB, +36 MiB an hour
        "#]]
        .assert_eq(&report().table());
    }

    #[test]
    fn the_json_has_the_same_figures() {
        let json = report().json();
        assert_eq!(json["met"], false);
        assert_eq!(json["calls"][0]["met"], false);
        assert_eq!(json["calls"][1]["p99Milliseconds"], 2.0);
        assert_eq!(json["podCreatedToBound"]["p99Milliseconds"], 9.5);
        assert_eq!(json["server"]["cores"], 0.25);
        let unknown = Report { server: None, ..report() };
        assert!(unknown.json()["server"].is_null());
    }
}
