//! The metrics of priority and fairness, under upstream's names: dispatched and rejected requests, and seats.

use std::collections::BTreeMap;

use corten_meta::metrics::Family;

use super::FlowControl;
use super::level::LevelDump;
use super::level::{Counts, RequestDump};
use crate::metrics::Exposition;
use crate::metrics::families::*;

/// Writes the metrics of all levels.
pub fn render(out: &mut Exposition, control: &FlowControl) {
    let levels = control.dump();
    limits(out, &levels);
    waits(out, &levels);
    let mut family = |family: &Family, of: &dyn Fn(&LevelDump) -> Vec<Sample>| {
        out.family(family);
        for (level, dump) in &levels {
            for (schema, reason, value) in of(dump) {
                out.sample(family, &[schema.as_str(), level.as_str(), reason], value);
            }
        }
    };
    family(&FLOW_DISPATCHED, &|level| {
        level.counts.iter().map(|(schema, counts)| (schema.clone(), "", counts.dispatched as f64)).collect()
    });
    family(&FLOW_REJECTED, &|level| {
        let refused = |(schema, counts): &(String, Counts)| {
            let why = if level.queues.is_empty() { "concurrency-limit" } else { "queue-full" };
            [(why, counts.rejected), ("time-out", counts.timed_out), ("cancelled", counts.cancelled)]
                .map(|(reason, number)| (schema.clone(), reason, number as f64))
        };
        level.counts.iter().flat_map(refused).filter(|(.., number)| *number > 0.0).collect()
    });
    let one = |_: &RequestDump| 1;
    family(&FLOW_QUEUED, &|level| {
        if level.exempt {
            return Vec::new();
        }
        by_schema(level, level.queues.iter().flat_map(|queue| &queue.waiting), one)
    });
    family(&FLOW_EXECUTING, &|level| by_schema(level, level.executing.iter().map(|(_, request, _)| request), one));
    family(&FLOW_EXECUTING_SEATS, &|level| {
        by_schema(level, level.executing.iter().map(|(_, request, _)| request), |request| request.seats)
    });
}

/// Writes the durations that requests waited for seats, by whether they got them.
fn waits(out: &mut Exposition, levels: &[(String, LevelDump)]) {
    out.family(&FLOW_WAIT_SECONDS);
    for (level, dump) in levels {
        for (schema, counts) in &dump.counts {
            for (execute, waits) in [("false", &counts.unserved), ("true", &counts.served)] {
                if waits.buckets.iter().any(|count| *count > 0) {
                    out.histogram(&FLOW_WAIT_SECONDS, &[execute, schema, level], waits.buckets, waits.sum);
                }
            }
        }
    }
}

/// The schema, the reason if there are several, and the value.
type Sample = (String, &'static str, f64);

fn limits(out: &mut Exposition, levels: &[(String, LevelDump)]) {
    let families = [&FLOW_NOMINAL_LIMIT, &FLOW_LOWER_LIMIT, &FLOW_UPPER_LIMIT, &FLOW_CURRENT_LIMIT];
    for (at, family) in families.into_iter().enumerate() {
        out.family(family);
        for (level, dump) in levels {
            out.sample(family, &[level], f64::from(dump.limits[at]));
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
