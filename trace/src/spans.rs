//! A trace as OpenTelemetry spans, in the JSON encoding of OTLP.

use std::collections::BTreeMap;

use corten_spans::{Attribute, Context, Event, Kind, Span};
use jiff::Timestamp;
use serde_json::Value;

use crate::step::Step;

/// Returns the request that a collector takes at `/v1/traces`: a span for the whole, and one for each object from its first
/// to its last step, with the steps as events. `identity` makes the ids of the trace.
pub fn spans(steps: &[Step], name: &str, identity: u128) -> Value {
    let resource = [Attribute::text("service.name", "corten trace")];
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return corten_spans::json(&[], &resource) };
    let id = |index: usize| (identity as u64).wrapping_add(index as u64).max(1);
    let span = |index: usize, name: &str, start: Timestamp, end: Timestamp| Span {
        context: Context { trace: identity, span: id(index), is_sampled: true },
        parent: if index == 0 { 0 } else { id(0) },
        name: name.to_owned(),
        kind: Kind::Internal,
        start,
        end,
        attributes: Vec::new(),
        events: Vec::new(),
        link: None,
        error: None,
    };
    let mut objects: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in steps {
        objects.entry(&step.object).or_default().push(step);
    }
    let mut spans = vec![span(0, name, first.at, last.at)];
    for (index, (object, steps)) in objects.into_iter().enumerate() {
        let start = steps.first().map_or(first.at, |step| step.at);
        let end = steps.last().map_or(last.at, |step| step.at);
        let events = steps.iter().map(|step| event(step)).collect();
        spans.push(Span { events, ..span(index + 1, object, start, end) });
    }
    corten_spans::json(&spans, &resource)
}

fn event(step: &Step) -> Event {
    let attributes = vec![Attribute::text("component", step.actor.name())];
    Event { time: step.at, name: step.text.clone(), attributes }
}
