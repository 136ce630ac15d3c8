//! The messages of OTLP's trace service, version 1, as far as they are sent.

use jiff::Timestamp;
use prost::Message;

use crate::{Attribute, AttributeValue, Context, Span};

#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExportTraceServiceResponse {}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<EventMessage>,
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<LinkMessage>,
    #[prost(message, optional, tag = "15")]
    pub status: Option<StatusMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventMessage {
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinkMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusMessage {
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    #[prost(oneof = "AnyValueKind", tags = "1, 3")]
    pub value: Option<AnyValueKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AnyValueKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// The code of a span that failed.
const ERROR: i32 = 2;
/// The name of the instrumentation.
pub const SCOPE: &str = "corten";

/// Makes the request that exports spans of a component.
pub fn request(spans: &[Span], resource: &[Attribute]) -> ExportTraceServiceRequest {
    let scope_spans = vec![ScopeSpans {
        scope: Some(InstrumentationScope { name: SCOPE.to_owned() }),
        spans: spans.iter().map(span).collect(),
    }];
    let resource = Some(Resource { attributes: attributes(resource) });
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
}

fn span(span: &Span) -> SpanMessage {
    let Context { trace, span: id, .. } = span.context;
    let link = |link: Context| LinkMessage {
        trace_id: link.trace.to_be_bytes().to_vec(),
        span_id: link.span.to_be_bytes().to_vec(),
    };
    SpanMessage {
        trace_id: trace.to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: if span.parent == 0 { Vec::new() } else { span.parent.to_be_bytes().to_vec() },
        name: span.name.clone(),
        kind: span.kind as i32,
        start_time_unix_nano: nanoseconds(span.start),
        end_time_unix_nano: nanoseconds(span.end),
        attributes: attributes(&span.attributes),
        events: span
            .events
            .iter()
            .map(|event| EventMessage {
                time_unix_nano: nanoseconds(event.time),
                name: event.name.clone(),
                attributes: attributes(&event.attributes),
            })
            .collect(),
        links: span.link.map(link).into_iter().collect(),
        status: span.error.as_ref().map(|message| StatusMessage { message: message.clone(), code: ERROR }),
    }
}

fn attributes(attributes: &[Attribute]) -> Vec<KeyValue> {
    let value = |value: &AttributeValue| match value {
        AttributeValue::Text(text) => AnyValueKind::Text(text.clone()),
        AttributeValue::Number(number) => AnyValueKind::Number(*number),
    };
    let pair = |one: &Attribute| KeyValue {
        key: one.key.to_owned(),
        value: Some(AnyValue { value: Some(value(&one.value)) }),
    };
    attributes.iter().map(pair).collect()
}

pub fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or_default()
}
