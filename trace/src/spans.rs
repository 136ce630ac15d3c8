//! A trace as OpenTelemetry spans, in the JSON encoding of OTLP.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::step::Step;

/// Returns the request that a collector takes at `/v1/traces`: a span for the whole, and one for each object from its first
/// to its last step, with the steps as events. `identity` makes the ids of the trace.
pub fn spans(steps: &[Step], name: &str, identity: u128) -> Value {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return json!({"resourceSpans": []}) };
    let trace = format!("{identity:032x}");
    let id = |index: usize| format!("{:016x}", (identity as u64).wrapping_add(index as u64).max(1));
    let mut objects: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in steps {
        objects.entry(&step.object).or_default().push(step);
    }
    let mut spans = vec![json!({
        "traceId": trace, "spanId": id(0), "name": name, "kind": 1,
        "startTimeUnixNano": nanoseconds(first.at), "endTimeUnixNano": nanoseconds(last.at),
    })];
    for (index, (object, steps)) in objects.into_iter().enumerate() {
        let start = steps.first().map(|step| nanoseconds(step.at));
        let end = steps.last().map(|step| nanoseconds(step.at));
        let events: Vec<Value> = steps.iter().map(|step| event(step)).collect();
        spans.push(json!({
            "traceId": trace, "spanId": id(index + 1), "parentSpanId": id(0), "name": object, "kind": 1,
            "startTimeUnixNano": start, "endTimeUnixNano": end, "events": events,
        }));
    }
    let service = json!([{"key": "service.name", "value": {"stringValue": "corten trace"}}]);
    json!({"resourceSpans": [{
        "resource": {"attributes": service},
        "scopeSpans": [{"scope": {"name": "corten"}, "spans": spans}],
    }]})
}

fn event(step: &Step) -> Value {
    let component = json!([{"key": "component", "value": {"stringValue": step.actor.name()}}]);
    json!({"timeUnixNano": nanoseconds(step.at), "name": step.text, "attributes": component})
}

/// Returns a time as OTLP's JSON encoding writes 64-bit numbers.
fn nanoseconds(at: Timestamp) -> String {
    at.as_nanosecond().max(0).to_string()
}
