//! Tests of contexts, sampling and configurations, and of the export to a collector that is a plain HTTP/2 server.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::otlp::{AnyValueKind, ExportTraceServiceRequest};
use crate::{Attribute, Configuration, Context, Kind, Tracer, child, traceparent, within};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn traceparent_is_read_and_written() {
    let context = Context::parse(PARENT).unwrap();
    assert_eq!((context.span, context.is_sampled), (0xb7ad_6b71_6920_3331, true));
    assert_eq!(context.to_string(), PARENT);
    assert!(!Context::parse(&PARENT.replace("-01", "-00")).unwrap().is_sampled);
    assert!(Context::parse(&format!("{PARENT}-more").replacen("00", "01", 1)).is_some());
    for wrong in [
        "",
        "00",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
    ] {
        assert_eq!(Context::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn configurations_are_checked_as_upstream_does() {
    let of = |value| Configuration::read(&value);
    let default = of(json!({})).unwrap();
    assert_eq!((default.url().as_str(), default.sampling_rate_per_million), ("http://localhost:4317", 0));
    let set = of(json!({"endpoint": "dns:///collector:4317", "samplingRatePerMillion": 100})).unwrap();
    assert_eq!((set.url().as_str(), set.sampling_rate_per_million), ("http://collector:4317", 100));
    assert_eq!(of(json!({"endpoint": "unix:///run/c.sock"})).unwrap().url(), "unix:///run/c.sock");
    for (value, error) in [
        (
            json!({"samplingRatePerMillion": -1}),
            "samplingRatePerMillion: Invalid value: -1: sampling rate must be positive",
        ),
        (
            json!({"samplingRatePerMillion": 1_000_001}),
            "samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or equal to one million",
        ),
        (
            json!({"endpoint": "https://a"}),
            "endpoint: Invalid value: \"https://a\": unsupported scheme: https.  Options are none, dns or unix.",
        ),
        (json!({"endpoint": 3}), "endpoint: Invalid value: 3: it is no string"),
    ] {
        assert_eq!(of(value).unwrap_err(), error);
    }
}

fn tracer(rate: u32) -> Tracer {
    Tracer::new(&Configuration { endpoint: "localhost:1".to_owned(), sampling_rate_per_million: rate }, Vec::new()).0
}

#[test]
fn a_trusted_parent_decides_and_another_is_linked() {
    let parent = Context::parse(PARENT);
    let unsampled = Context { is_sampled: false, ..parent.unwrap() };
    let now = Timestamp::UNIX_EPOCH;
    let begun = tracer(0).begin(parent, true, now).unwrap();
    assert_eq!(begun.context().trace, parent.unwrap().trace);
    assert!(tracer(0).begin(parent, false, now).is_none());
    assert!(tracer(1_000_000).begin(Some(unsampled), true, now).is_none());
    let begun = tracer(1_000_000).begin(parent, false, now).unwrap();
    assert_ne!(begun.context().trace, parent.unwrap().trace);
    let sampled = (0..1000).filter(|_| tracer(500_000).begin(None, false, now).is_some()).count();
    assert!((300..700).contains(&sampled), "{sampled} of 1000");
}

/// Starts a collector; returns its address and the requests that it gets.
async fn collector() -> (String, mpsc::Receiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, received) = mpsc::channel(16);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
            let sender = sender.clone();
            async move {
                assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
                let body = request.into_body().collect().await.unwrap().to_bytes();
                // A message is framed by a flag and its length.
                sender.send(ExportTraceServiceRequest::decode(&body[5..]).unwrap()).await.unwrap();
                let empty = Full::new(Bytes::from_static(&[0; 5]));
                let trailers = http::HeaderMap::from_iter([(
                    http::HeaderName::from_static("grpc-status"),
                    http::HeaderValue::from_static("0"),
                )]);
                let body = empty.with_trailers(async move { Some(Ok::<_, Infallible>(trailers)) });
                let response = http::Response::builder().header("content-type", "application/grpc").body(body);
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    });
    (address, received)
}

#[tokio::test]
async fn spans_reach_the_collector_with_their_parents() {
    let (endpoint, mut received) = collector().await;
    let configuration = Configuration { endpoint, sampling_rate_per_million: 1_000_000 };
    let (tracer, exporter) = Tracer::new(&configuration, vec![Attribute::text("service.name", "apiserver")]);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(exporter.run(shutdown.clone()));
    assert_eq!(traceparent(), None);
    let inner = within(Some(&tracer), "syncPod", Vec::new, async {
        let outer = traceparent().unwrap();
        let call = async { (outer, traceparent().unwrap()) };
        child("call", Kind::Client, || vec![Attribute::number("code", 200)], call).await
    })
    .await;
    shutdown.cancel();
    // The exporter may send them together or one after the other.
    let mut request = received.recv().await.unwrap();
    let mut spans = std::mem::take(&mut request.resource_spans[0].scope_spans[0].spans);
    while spans.len() < 2 {
        spans.append(&mut received.recv().await.unwrap().resource_spans[0].scope_spans[0].spans);
    }
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["call", "syncPod"]);
    assert_eq!(spans[0].trace_id, spans[1].trace_id);
    assert_eq!(spans[0].parent_span_id, spans[1].span_id);
    let id = |traceparent: &str| Context::parse(traceparent).unwrap().span.to_be_bytes().to_vec();
    assert_eq!((id(&inner.0), id(&inner.1)), (spans[1].span_id.clone(), spans[0].span_id.clone()));
    let attribute = spans[0].attributes[0].value.clone().unwrap().value;
    assert_eq!(attribute, Some(AnyValueKind::Number(200)));
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(resource.attributes[0].key, "service.name");
    running.await.unwrap();
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nothing() {
    let configuration = Configuration { endpoint: "127.0.0.1:1".to_owned(), sampling_rate_per_million: 1_000_000 };
    let (tracer, exporter) = Tracer::new(&configuration, Vec::new());
    for _ in 0..5000 {
        within(Some(&tracer), "syncPod", Vec::new, async {}).await;
    }
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    exporter.run(shutdown).await;
}
