//! The OpenTelemetry span of a request, as upstream names it.

use corten_meta::Status;
use corten_spans::{Attribute, Context as SpanContext, Kind, Recording, Tracer};

use crate::body::Reply;
use crate::context::Context;

/// The groups whose clients decide on the sampling of their requests.
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

/// Begins the span of a request, if it is sampled.
pub fn begin(tracer: Option<&Tracer>, context: &Context) -> Option<Recording> {
    let tracer = tracer?;
    let parent = context.headers.get("traceparent").and_then(|value| value.to_str().ok()).and_then(SpanContext::parse);
    let is_trusted = TRUSTED.iter().any(|group| context.user.is_in(group));
    tracer.begin(parent, is_trusted, context.now)
}

/// Ends the span of a request that is answered.
pub fn end(span: Recording, context: &Context, answered: &Result<Reply, Status>) {
    let code = match answered {
        Ok(reply) => reply.status().as_u16(),
        Err(status) => status.code,
    };
    let message = || answered.as_ref().err().map(|status| status.message.clone()).unwrap_or_default();
    let error = (code >= 500).then(message);
    span.end(name(context), Kind::Server, attributes(context, code), error);
}

fn attributes(context: &Context, code: u16) -> Vec<Attribute> {
    let query = if context.raw_query.is_empty() { String::new() } else { format!("?{}", context.raw_query) };
    let agent = context.headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
    vec![
        Attribute::text("http.method", context.method.as_str()),
        Attribute::text("http.target", format!("{}{query}", context.raw_path)),
        Attribute::text("audit-id", context.audit.id.clone()),
        Attribute::text("user_agent.original", agent.unwrap_or_default()),
        Attribute::number("http.status_code", i64::from(code)),
    ]
}

/// Returns the name of a request's span: the method and the path without names.
fn name(context: &Context) -> String {
    let info = &context.info;
    let method = &context.method;
    if !info.is_resource {
        return method.to_string();
    }
    let mut name = match info.group.is_empty() {
        true => format!("{method} /api/{}", info.version),
        false => format!("{method} /apis/{}/{}", info.group, info.version),
    };
    if !info.namespace.is_empty() {
        name.push_str("/namespaces/{:namespace}");
    }
    name.push_str(&format!("/{}", info.resource));
    if !info.name.is_empty() {
        name.push_str("/{:name}");
    }
    if !info.subresource.is_empty() {
        name.push_str(&format!("/{}", info.subresource));
    }
    name
}
