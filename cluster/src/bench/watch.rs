//! Watches: many on one resource while objects are written at a steady rate, and the delay of each event.
//!
//! A write has the time of its request in its data. Every watch counts its events, and a run fails if there are too few
//! or too many; of some watches every event is parsed for its delay. The objects are small: a thousand copies of each
//! write have to pass through one machine that also receives them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use memchr::{memchr, memchr_iter, memmem};
use tokio::sync::Barrier;
use tokio_util::task::AbortOnDropHandle;

use super::Run;
use super::measure::{Latencies, Report, Span};
use super::objects;
use crate::bench_cli::HttpVersion;

/// The number of objects that are written in turn.
const OBJECTS: u64 = 100;
const OBJECT_BYTES: usize = 200;
/// The number of connections that write.
const WRITERS: u64 = 8;
/// The number of watches of which one parses every event.
const SAMPLE: u32 = 20;
/// The number of watches that share a connection with HTTP/2.
const STREAMS: u32 = 50;
/// The time limit of the last events.
const PATIENCE: Duration = Duration::from_secs(20);
const STAMP: &[u8] = br#""sent":""#;

pub async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    run.namespace.fill("watch", OBJECTS).await?;
    let writes = u64::from(run.flags.writes) * u64::from(run.flags.duration);
    let origin = Instant::now();
    let streams = open(run).await?;
    report.memory("watches open", &run.processes);
    let span = Span::begin(&run.processes);
    let watchers = streams.into_iter().enumerate().map(|(number, body)| {
        let reader = Reader { body, origin, sampled: (number as u32).is_multiple_of(SAMPLE), expected: writes };
        AbortOnDropHandle::new(tokio::spawn(reader.run()))
    });
    let watchers: Vec<_> = watchers.collect();
    let written = write(run, origin, writes).await;
    // A watch that has not received all events by then has missed some.
    let last = tokio::time::Instant::now() + PATIENCE;
    let mut delays = Latencies::default();
    for watcher in watchers {
        let seen = tokio::time::timeout_at(last, watcher).await.context("a watch did not get all events")?;
        delays.extend(seen??);
    }
    let cost = span.end(&run.processes);
    let wrote = written?;
    let events = writes as f64 * f64::from(run.flags.watchers);
    report.add("watch, watchers", f64::from(run.flags.watchers), "");
    report.add("watch, writes", writes as f64 / wrote.as_secs_f64(), "/s");
    report.add("watch, delivery p50", delays.percentile(0.5), "ms");
    report.add("watch, delivery p99", delays.percentile(0.99), "ms");
    if run.processes.are_known() {
        report.add("watch, server CPU an event", cost.server.as_secs_f64() * 1e6 / events, "µs");
        report.add("watch, server cores", cost.server.as_secs_f64() / cost.wall.as_secs_f64(), "");
    }
    report.add("watch, client cores", cost.own.as_secs_f64() / cost.wall.as_secs_f64(), "");
    report.memory("watch", &run.processes);
    run.namespace.empty("watch", OBJECTS).await
}

/// Opens the watches, from the current resourceVersion on.
async fn open(run: &Run<'_>) -> Result<Vec<Incoming>> {
    let list = format!("{}?limit=1", run.namespace.config_maps());
    let (_, first) = run.target.connect().await?.json(Method::GET, &list, &serde_json::Value::Null).await?;
    let revision = first["metadata"]["resourceVersion"].as_str().context("a list without a resourceVersion")?;
    let path = format!(
        "{}?watch=1&allowWatchBookmarks=false&resourceVersion={revision}&timeoutSeconds=3600&labelSelector=",
        run.namespace.config_maps()
    );
    let per_connection = match run.flags.http {
        HttpVersion::Http1 => 1,
        HttpVersion::Http2 => STREAMS,
    };
    let mut streams = Vec::new();
    while streams.len() < run.flags.watchers as usize {
        let mut connection = run.target.connect().await?;
        let missing = run.flags.watchers as usize - streams.len();
        for _ in 0..missing.min(per_connection as usize) {
            let response = connection.send(Method::GET, &path, Bytes::new()).await?;
            ensure!(response.status().is_success(), "a watch was refused: {}", response.status());
            streams.push(response.into_body());
        }
    }
    Ok(streams)
}

/// Writes at the rate of the flag, whether the server keeps up or not; returns the time that it took.
async fn write(run: &Run<'_>, origin: Instant, writes: u64) -> Result<Duration> {
    let period = Duration::from_secs(1) / run.flags.writes;
    let connections = run.target.connections(WRITERS as usize).await?;
    let barrier = Barrier::new(WRITERS as usize);
    let began = Instant::now();
    let writers = connections.into_iter().enumerate().map(async |(writer, mut connection)| {
        barrier.wait().await;
        let began = tokio::time::Instant::now();
        let mut number = writer as u64;
        while number < writes {
            tokio::time::sleep_until(began + period * u32::try_from(number).unwrap_or(u32::MAX)).await;
            let name = format!("watch-{}", number % OBJECTS);
            let path = run.namespace.config_map(&name);
            connection.call(Method::PUT, &path, stamped(&name, origin.elapsed())).await?;
            number += WRITERS;
        }
        Ok::<_, anyhow::Error>(())
    });
    futures::future::try_join_all(writers).await?;
    Ok(began.elapsed())
}

/// Returns a small object with the time of its request.
fn stamped(name: &str, at: Duration) -> Bytes {
    let plain = objects::sized_config_map(name, OBJECT_BYTES);
    let plain = String::from_utf8_lossy(&plain);
    let stamp = format!(r#""data":{{"sent":"{}","#, at.as_micros());
    plain.replacen(r#""data":{"#, &stamp, 1).into()
}

/// One watch, read until its last expected event.
struct Reader {
    body: Incoming,
    origin: Instant,
    sampled: bool,
    expected: u64,
}

impl Reader {
    async fn run(mut self) -> Result<Latencies> {
        let mut delays = Latencies::default();
        let mut rest = BytesMut::new();
        let mut seen = 0;
        while seen < self.expected {
            let frame = self.body.frame().await.context("a watch ended early")??;
            let Ok(data) = frame.into_data() else { continue };
            seen += lines(&data);
            if self.sampled {
                rest.extend_from_slice(&data);
                let now = self.origin.elapsed();
                while let Some(end) = memchr(b'\n', &rest) {
                    delays.add(now.saturating_sub(sent(&rest.split_to(end + 1))?));
                }
            }
        }
        ensure!(seen == self.expected, "a watch got {seen} events of {}", self.expected);
        Ok(delays)
    }
}

/// Returns the number of lines that end in these bytes.
fn lines(data: &[u8]) -> u64 {
    memchr_iter(b'\n', data).count() as u64
}

/// Returns the time of the request that caused an event.
fn sent(event: &[u8]) -> Result<Duration> {
    let at = memmem::find(event, STAMP).context("an event without a stamp")?;
    let digits = &event[at + STAMP.len()..];
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    let micros: u64 = std::str::from_utf8(&digits[..length])?.parse()?;
    Ok(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_where_they_end() {
        for (text, count) in [("", 0), ("a", 0), ("\n", 1), ("a\nb", 1), ("a\n\nb\n", 3)] {
            assert_eq!(lines(text.as_bytes()), count, "{text:?}");
        }
    }

    #[test]
    fn a_stamp_is_found_again() {
        let body = stamped("watch-7", Duration::from_micros(123_456));
        let value: serde_json::Value = serde_json::from_slice(&body).expect("it is JSON");
        assert_eq!(value["data"]["sent"], "123456");
        assert_eq!(sent(&body).expect("it has a stamp"), Duration::from_micros(123_456));
        assert!(sent(b"{}").is_err());
    }
}
