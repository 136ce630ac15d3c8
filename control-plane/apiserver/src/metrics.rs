//! `/metrics`: counters of the pipeline under upstream's names, in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::request::RequestInfo;
use crate::server::Server;

/// The upper bounds of the duration histogram, in seconds.
const BUCKETS: &[f64] = &[0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];

/// What requests are told apart by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

impl Labels {
    pub fn of(info: &RequestInfo) -> Labels {
        // A path that is no resource is not a label: clients could make as many as they like.
        let scope = match info {
            _ if !info.is_resource => "",
            _ if !info.name.is_empty() => "resource",
            _ if !info.namespace.is_empty() => "namespace",
            _ => "cluster",
        };
        let verb = match info.verb.as_str() {
            "create" => "POST".to_owned(),
            "update" => "PUT".to_owned(),
            other => other.to_ascii_uppercase(),
        };
        Labels {
            verb,
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope,
        }
    }

    fn text(&self) -> String {
        format!(
            r#"group="{}",resource="{}",scope="{}",subresource="{}",verb="{}",version="{}""#,
            self.group, self.resource, self.scope, self.subresource, self.verb, self.version
        )
    }
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

#[derive(Default)]
struct State {
    requests: BTreeMap<(Labels, u16), u64>,
    durations: BTreeMap<Labels, Histogram>,
}

/// All metrics that are counted; gauges are read when they are asked for.
#[derive(Default)]
pub struct Metrics(Mutex<State>);

impl Metrics {
    /// Counts one finished request. Unknown resources are not counted by name.
    pub fn observe(&self, mut labels: Labels, code: u16, took: Duration) {
        if code == 404 || code == 401 {
            (labels.group, labels.resource, labels.subresource, labels.version) = Default::default();
        }
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *state.requests.entry((labels.clone(), code)).or_default() += 1;
        if labels.verb == "WATCH" {
            return;
        }
        let histogram = state.durations.entry(labels).or_default();
        let seconds = took.as_secs_f64();
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= *bound);
        }
        histogram.count += 1;
        histogram.sum += seconds;
    }

    /// The whole exposition.
    pub fn render(&self, server: &Server) -> String {
        let mut out = String::new();
        self.render_requests(&mut out);
        let (reading, writing) = server.limits.current();
        header(&mut out, "apiserver_current_inflight_requests", "gauge", "Requests being served, by kind.");
        line(&mut out, "apiserver_current_inflight_requests", r#"request_kind="readOnly""#, reading as f64);
        line(&mut out, "apiserver_current_inflight_requests", r#"request_kind="mutating""#, writing as f64);
        let levels = server.flow_control.current();
        let executing = "apiserver_flowcontrol_current_executing_seats";
        header(&mut out, executing, "gauge", "Seats taken, by priority level.");
        for (level, seats, _) in &levels {
            line(&mut out, executing, &format!(r#"priority_level="{level}""#), f64::from(*seats));
        }
        let waiting = "apiserver_flowcontrol_current_inqueue_requests";
        header(&mut out, waiting, "gauge", "Requests that wait, by priority level.");
        for (level, _, requests) in &levels {
            line(&mut out, waiting, &format!(r#"priority_level="{level}""#), *requests as f64);
        }
        header(&mut out, "apiserver_storage_objects", "gauge", "Stored objects, by resource.");
        for resource in &server.registry.resources().ordered {
            if let Some(stored) = resource.stored.as_ref().filter(|s| Arc::ptr_eq(&s.hub, &resource.kind)) {
                let kind = &resource.kind;
                let name =
                    if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) };
                line(
                    &mut out,
                    "apiserver_storage_objects",
                    &format!(r#"resource="{name}""#),
                    stored.cache.count() as f64,
                );
            }
        }
        header(&mut out, "apiserver_storage_revision", "gauge", "The store's revision.");
        line(&mut out, "apiserver_storage_revision", "", server.registry.store.revision() as f64);
        out
    }

    fn render_requests(&self, out: &mut String) {
        let state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        header(out, "apiserver_request_total", "counter", "Requests, by verb, resource and code.");
        for ((labels, code), count) in &state.requests {
            line(out, "apiserver_request_total", &format!(r#"code="{code}",{}"#, labels.text()), *count as f64);
        }
        let name = "apiserver_request_duration_seconds";
        header(out, name, "histogram", "How long requests took, by verb and resource.");
        for (labels, histogram) in &state.durations {
            let text = labels.text();
            for (count, bound) in histogram.buckets.iter().zip(BUCKETS) {
                line(out, &format!("{name}_bucket"), &format!(r#"{text},le="{bound}""#), *count as f64);
            }
            line(out, &format!("{name}_bucket"), &format!(r#"{text},le="+Inf""#), histogram.count as f64);
            line(out, &format!("{name}_sum"), &text, histogram.sum);
            line(out, &format!("{name}_count"), &text, histogram.count as f64);
        }
    }
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(out, "{name}{braced} {value}");
}
