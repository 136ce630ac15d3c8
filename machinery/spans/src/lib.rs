//! OpenTelemetry spans of a component: where a request spent its time, for a collector of the user.
//!
//! - [`Configuration`]: upstream's TracingConfiguration.
//! - [`Context`]: the identity of a span, as `traceparent` carries it between processes.
//! - [`Tracer`] decides which requests are sampled; [`Exporter`] sends their spans over OTLP/gRPC.
//! - [`within`], [`child`] and [`traceparent`]: the span of the present task, for calls to other servers.
//!
//! Invariant: without a tracer nothing is measured and nothing is kept; the span of a task that is not sampled costs
//! one look at a task-local value. A collector that does not answer never delays a request: its spans are dropped.

mod configuration;
mod context;
mod exporter;
mod json;
mod otlp;
mod span;
mod tracer;

pub use configuration::Configuration;
pub use context::Context;
pub use exporter::Exporter;
pub use json::json;
pub use span::{Attribute, AttributeValue, Event, Kind, Span};
pub use tracer::{Recording, Tracer, child, traceparent, within};

#[cfg(test)]
mod tests;
