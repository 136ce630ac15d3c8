//! The metrics of priority and fairness, under upstream's names: dispatched and rejected requests, and seats.

use std::collections::BTreeMap;

use corten_meta::metrics::number;

use super::FlowControl;
use super::level::LevelDump;
use super::level::{Counts, RequestDump, WAIT_SECONDS};
use crate::metrics::Exposition;

/// Writes the metrics of all levels.
pub fn render(out: &mut Exposition, control: &FlowControl) {
    let levels = control.dump();
    limits(out, &levels);
    waits(out, &levels);
    let mut family = |name: &str, kind: &str, help: &str, of: &dyn Fn(&LevelDump) -> Vec<Sample>| {
        let name = format!("apiserver_flowcontrol_{name}");
        out.family(&name, kind, help);
        for (level, dump) in &levels {
            for (schema, reason, value) in of(dump) {
                let labels = [("flow_schema", schema.as_str()), ("priority_level", level.as_str()), ("reason", reason)];
                out.sample(&name, if reason.is_empty() { &labels[..2] } else { &labels }, value);
            }
        }
    };
    family("dispatched_requests_total", "counter", "Number of requests that got their seats.", &|level| {
        level.counts.iter().map(|(schema, counts)| (schema.clone(), "", counts.dispatched as f64)).collect()
    });
    family("rejected_requests_total", "counter", "Requests that were refused, by why.", &|level| {
        let refused = |(schema, counts): &(String, Counts)| {
            let why = if level.queues.is_empty() { "concurrency-limit" } else { "queue-full" };
            [(why, counts.rejected), ("time-out", counts.timed_out), ("cancelled", counts.cancelled)]
                .map(|(reason, number)| (schema.clone(), reason, number as f64))
        };
        level.counts.iter().flat_map(refused).filter(|(.., number)| *number > 0.0).collect()
    });
    let one = |_: &RequestDump| 1;
    family("current_inqueue_requests", "gauge", "Number of queued requests.", &|level| {
        if level.exempt {
            return Vec::new();
        }
        by_schema(level, level.queues.iter().flat_map(|queue| &queue.waiting), one)
    });
    family("current_executing_requests", "gauge", "Requests that execute.", &|level| {
        by_schema(level, level.executing.iter().map(|(_, request, _)| request), one)
    });
    family("current_executing_seats", "gauge", "Seats that are taken.", &|level| {
        by_schema(level, level.executing.iter().map(|(_, request, _)| request), |request| request.seats)
    });
}

/// Writes the durations that requests waited for seats, by whether they got them.
fn waits(out: &mut Exposition, levels: &[(String, LevelDump)]) {
    let name = "apiserver_flowcontrol_request_wait_duration_seconds";
    out.family(name, "histogram", "Duration of the wait of requests for seats.");
    let bounds: Vec<String> = WAIT_SECONDS.iter().map(|bound| number(*bound)).chain(["+Inf".to_owned()]).collect();
    for (level, dump) in levels {
        for (schema, counts) in &dump.counts {
            for (execute, waits) in [("false", &counts.unserved), ("true", &counts.served)] {
                let labels = [("execute", execute), ("flow_schema", schema.as_str()), ("priority_level", level)];
                let mut total = 0;
                if waits.buckets.iter().all(|count| *count == 0) {
                    continue;
                }
                for (count, bound) in waits.buckets.iter().zip(&bounds) {
                    total += count;
                    let bucket = [&labels[..], &[("le", bound.as_str())]].concat();
                    out.sample(&format!("{name}_bucket"), &bucket, total as f64);
                }
                out.sample(&format!("{name}_sum"), &labels, waits.sum);
                out.sample(&format!("{name}_count"), &labels, total as f64);
            }
        }
    }
}

/// The schema, the reason if there are several, and the value.
type Sample = (String, &'static str, f64);

fn limits(out: &mut Exposition, levels: &[(String, LevelDump)]) {
    let names = ["nominal_limit_seats", "lower_limit_seats", "upper_limit_seats", "current_limit_seats"];
    let helps = ["The seats of its share.", "The seats it never lends.", "The seats it may have.", "The seats it has."];
    for (at, (name, help)) in names.into_iter().zip(helps).enumerate() {
        let name = format!("apiserver_flowcontrol_{name}");
        out.family(&name, "gauge", help);
        for (level, dump) in levels {
            out.sample(&name, &[("priority_level", level)], f64::from(dump.limits[at]));
        }
    }
}

/// Sums by schema; an idle schema that was used before has a sample too.
fn by_schema<'a>(
    level: &'a LevelDump,
    all: impl Iterator<Item = &'a RequestDump>,
    number: fn(&RequestDump) -> u32,
) -> Vec<Sample> {
    let mut sums: BTreeMap<&str, u32> = level.counts.iter().map(|(schema, _)| (schema.as_str(), 0)).collect();
    all.for_each(|request| *sums.entry(&request.schema).or_default() += number(request));
    sums.into_iter().map(|(schema, sum)| (schema.to_owned(), "", f64::from(sum))).collect()
}
