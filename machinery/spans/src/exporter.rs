//! The exporter: sends spans to a collector over OTLP/gRPC, some at a time.

use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::otlp::{self, ExportTraceServiceRequest, ExportTraceServiceResponse};
use crate::{Attribute, Span};

/// The most spans of one request, and the longest time that a span waits for others.
const BATCH: usize = 512;
const PERIOD: Duration = Duration::from_secs(5);
/// The time of a request, after which its spans are lost.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The time of the last request, at shutdown.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Sends the spans of a tracer.
#[derive(Debug)]
pub struct Exporter {
    url: String,
    resource: Vec<Attribute>,
    spans: mpsc::Receiver<Span>,
}

impl Exporter {
    pub(crate) fn new(url: String, resource: Vec<Attribute>, spans: mpsc::Receiver<Span>) -> Exporter {
        Exporter { url, resource, spans }
    }

    /// Exports until shutdown. A collector that fails loses the spans of that moment.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let channel = match Endpoint::try_from(self.url.clone()) {
            Ok(endpoint) => endpoint.connect_timeout(TIMEOUT).connect_lazy(),
            Err(error) => {
                tracing::error!(url = self.url, %error, "the collector of spans cannot be used");
                return;
            }
        };
        let mut is_failing = false;
        loop {
            let mut batch = Vec::new();
            let is_last = !self.gather(&mut batch, &shutdown).await;
            let timeout = if is_last { LAST_TIMEOUT } else { TIMEOUT };
            if !batch.is_empty() {
                let sent = self.send(&channel, &batch, timeout).await;
                if let (Err(error), false) = (&sent, is_failing) {
                    tracing::warn!(url = self.url, error, "the collector of spans takes none; they are dropped");
                }
                is_failing = sent.is_err();
            }
            if is_last {
                return;
            }
        }
    }

    /// Gathers spans until there are enough, or the first has waited long enough; false at shutdown.
    async fn gather(&mut self, batch: &mut Vec<Span>, shutdown: &CancellationToken) -> bool {
        let first = tokio::select! {
            span = self.spans.recv() => span,
            () = shutdown.cancelled() => None,
        };
        let Some(first) = first else {
            while let Ok(span) = self.spans.try_recv() {
                batch.push(span);
            }
            return false;
        };
        batch.push(first);
        let until = Instant::now() + PERIOD;
        while batch.len() < BATCH {
            let next = tokio::select! {
                span = self.spans.recv() => span,
                () = tokio::time::sleep_until(until) => None,
                () = shutdown.cancelled() => None,
            };
            let Some(span) = next else { break };
            batch.push(span);
        }
        true
    }

    async fn send(&self, channel: &Channel, batch: &[Span], timeout: Duration) -> Result<(), String> {
        let request = otlp::request(batch, &self.resource);
        let call = async {
            let mut client = tonic::client::Grpc::new(channel.clone());
            client.ready().await.map_err(|error| error.to_string())?;
            let codec = ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default();
            let path = PathAndQuery::from_static(EXPORT);
            let answer = client.unary(tonic::Request::new(request), path, codec).await;
            answer.map(drop).map_err(|status| status.to_string())
        };
        tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
    }
}
