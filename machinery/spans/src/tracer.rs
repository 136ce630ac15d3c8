//! The tracer of a component, and the span of the present task.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::{Attribute, Configuration, Context, Exporter, Kind, Span};

/// The spans that wait for the exporter. More are dropped.
const QUEUE: usize = 2048;
const MILLION: u128 = 1_000_000;

tokio::task_local! {
    static ACTIVE: Active;
}

/// The sampled span of a task.
#[derive(Clone)]
struct Active {
    tracer: Tracer,
    context: Context,
}

/// Decides which requests are sampled, and takes their spans.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rate: u32,
    spans: mpsc::Sender<Span>,
}

impl Tracer {
    /// Makes a tracer and its exporter; `resource` describes the component.
    pub fn new(configuration: &Configuration, resource: Vec<Attribute>) -> (Tracer, Exporter) {
        let (spans, received) = mpsc::channel(QUEUE);
        let rate = configuration.sampling_rate_per_million;
        (Tracer(Arc::new(Inner { rate, spans })), Exporter::new(configuration.url(), resource, received))
    }

    /// Begins the span of a request that names its parent. A parent that is trusted decides on sampling; another is
    /// only linked. Returns none if the request is not sampled.
    pub fn begin(&self, parent: Option<Context>, is_trusted: bool, start: Timestamp) -> Option<Recording> {
        let (context, above, link) = match parent {
            Some(parent) if is_trusted => (parent.is_sampled.then(|| parent.child())?, parent.span, None),
            parent => {
                let context = Context::root(true);
                (self.samples(&context).then_some(context)?, 0, parent)
            }
        };
        Some(Recording { tracer: self.clone(), context, parent: above, link, start })
    }

    /// Reports whether a new trace is sampled: its id decides, so that components agree.
    fn samples(&self, context: &Context) -> bool {
        // The low 63 bits of the id, as upstream's sampler takes them.
        let bits = (context.trace as u64) >> 1;
        u128::from(bits) < (u128::from(self.0.rate) << 63) / MILLION
    }

    fn send(&self, span: Span) {
        // Without room the span is lost, and no request waits.
        let _ = self.0.spans.try_send(span);
    }
}

/// A sampled span that has not ended.
#[derive(Debug)]
pub struct Recording {
    tracer: Tracer,
    context: Context,
    parent: u64,
    link: Option<Context>,
    start: Timestamp,
}

impl Recording {
    /// Returns the identity of the span.
    pub fn context(&self) -> Context {
        self.context
    }

    /// Runs a future within the span.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        let active = Active { tracer: self.tracer.clone(), context: self.context };
        ACTIVE.scope(active, future).await
    }

    /// Ends the span now.
    pub fn end(self, name: String, kind: Kind, attributes: Vec<Attribute>, error: Option<String>) {
        self.tracer.send(Span {
            context: self.context,
            parent: self.parent,
            name,
            kind,
            start: self.start,
            end: Timestamp::now(),
            attributes,
            events: Vec::new(),
            link: self.link,
            error,
        });
    }
}

/// Runs a future within a new trace, if the tracer samples it.
pub async fn within<F: Future>(
    tracer: Option<&Tracer>,
    name: &str,
    attributes: impl FnOnce() -> Vec<Attribute>,
    future: F,
) -> F::Output {
    let Some(recording) = tracer.and_then(|tracer| tracer.begin(None, false, Timestamp::now())) else {
        return future.await;
    };
    let output = recording.scope(future).await;
    recording.end(name.to_owned(), Kind::Internal, attributes(), None);
    output
}

/// Runs a future within a span below the present one, if there is one.
pub async fn child<F: Future>(
    name: &str,
    kind: Kind,
    attributes: impl FnOnce() -> Vec<Attribute>,
    future: F,
) -> F::Output {
    let Ok(active) = ACTIVE.try_with(Active::clone) else { return future.await };
    let recording = Recording {
        context: active.context.child(),
        parent: active.context.span,
        tracer: active.tracer,
        link: None,
        start: Timestamp::now(),
    };
    let output = recording.scope(future).await;
    recording.end(name.to_owned(), kind, attributes(), None);
    output
}

/// Returns the value of the header `traceparent` for a call of the present task, if it is sampled.
pub fn traceparent() -> Option<String> {
    ACTIVE.try_with(|active| active.context.to_string()).ok()
}
