//! Spans in the JSON encoding of OTLP, for collectors over HTTP.

use serde_json::{Value, json};

use crate::otlp::{SCOPE, nanoseconds};
use crate::{Attribute, AttributeValue, Span};

/// Returns the request that a collector takes at `/v1/traces`.
pub fn json(spans: &[Span], resource: &[Attribute]) -> Value {
    if spans.is_empty() {
        return json!({"resourceSpans": []});
    }
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes(resource)},
        "scopeSpans": [{"scope": {"name": SCOPE}, "spans": spans}],
    }]})
}

fn span(span: &Span) -> Value {
    // 64-bit numbers are strings in this encoding.
    let mut document = json!({
        "traceId": format!("{:032x}", span.context.trace),
        "spanId": format!("{:016x}", span.context.span),
        "name": span.name,
        "kind": span.kind as i32,
        "startTimeUnixNano": nanoseconds(span.start).to_string(),
        "endTimeUnixNano": nanoseconds(span.end).to_string(),
    });
    if span.parent != 0 {
        document["parentSpanId"] = json!(format!("{:016x}", span.parent));
    }
    if !span.attributes.is_empty() {
        document["attributes"] = attributes(&span.attributes);
    }
    if !span.events.is_empty() {
        let event = |event: &crate::Event| {
            let time = nanoseconds(event.time).to_string();
            json!({"timeUnixNano": time, "name": event.name, "attributes": attributes(&event.attributes)})
        };
        document["events"] = span.events.iter().map(event).collect();
    }
    document
}

fn attributes(attributes: &[Attribute]) -> Value {
    let pair = |one: &Attribute| {
        let value = match &one.value {
            AttributeValue::Text(text) => json!({"stringValue": text}),
            AttributeValue::Number(number) => json!({"intValue": number.to_string()}),
        };
        json!({"key": one.key, "value": value})
    };
    attributes.iter().map(pair).collect()
}
