//! The metrics of the DNS, under CoreDNS's names, so that existing dashboards and alerts go on working.
//!
//! Counting is a handful of atomic additions; it never waits for a reader.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corten_listen::{Gate, Limits};
use corten_meta::metrics::{Exposition, exponential, families};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::clients::{Clients, Permits};

/// The limit of concurrent connections of metric readers.
const LIMITS: Limits = Limits::anonymous(READERS);

/// The types that have a counter of their own, as in CoreDNS.
const TYPES: [RecordType; 11] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::TXT,
    RecordType::NS,
    RecordType::SRV,
    RecordType::SOA,
    RecordType::CNAME,
    RecordType::PTR,
    RecordType::MX,
    RecordType::DS,
    RecordType::DNSKEY,
];
const CODES: [ResponseCode; 6] = [
    ResponseCode::NoError,
    ResponseCode::FormErr,
    ResponseCode::ServFail,
    ResponseCode::NXDomain,
    ResponseCode::NotImp,
    ResponseCode::Refused,
];
/// The upper ends of the buckets of durations: doubled from a quarter of a millisecond.
static SECONDS: [f64; 16] = exponential(0.000_25, 2.0);
/// The label of the server, which CoreDNS has for each of its listeners.
const SERVER: &str = "dns://:53";
/// The most concurrent readers, of all clients and of each.
const READERS: usize = 64;
const READERS_OF_EACH: usize = 8;
/// The time that a reader may take, and the longest request head.
const TIMEOUT: Duration = Duration::from_secs(5);
const HEAD: usize = 8 * 1024;

families! {
    BUILD_INFO = Gauge "coredns_build_info" ["version"], "A metric with a constant '1' value labeled by version.";
    REQUESTS = Counter "coredns_dns_requests_total" ["family", "proto", "server", "view", "type", "zone"],
        "Counter of DNS requests made per zone, protocol and family.";
    RESPONSES = Counter "coredns_dns_responses_total" ["plugin", "rcode", "server", "view", "zone"],
        "Counter of response status codes.";
    REQUEST_SECONDS = Histogram(&SECONDS) "coredns_dns_request_duration_seconds" ["server", "view", "zone"],
        "Histogram of the time (in seconds) each request took per zone.";
    CACHE_HITS = Counter "coredns_cache_hits_total" ["server", "view", "zones"], "The count of cache hits.";
    CACHE_MISSES = Counter "coredns_cache_misses_total" ["server", "view", "zones"], "The count of cache misses.";
    CACHE_REQUESTS = Counter "coredns_cache_requests_total" ["server", "view", "zones"], "The count of cache requests.";
    CACHE_ENTRIES = Gauge "coredns_cache_entries" ["server", "view", "zones"], "The number of elements in the cache.";
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// An answered query.
pub(crate) struct Answered {
    /// Whether the answer is the cluster's own.
    pub own: bool,
    pub record_type: Option<RecordType>,
    pub code: ResponseCode,
    pub transport: Transport,
    pub client: IpAddr,
    pub took: Duration,
}

/// The metrics of one zone: the cluster's, or everything else.
#[derive(Default)]
struct Zone {
    /// The requests by transport, then family, then type; the last type is any other.
    requests: [[[AtomicU64; TYPES.len() + 1]; 2]; 2],
    responses: [AtomicU64; CODES.len() + 1],
    buckets: [AtomicU64; SECONDS.len()],
    microseconds: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Metrics {
    zones: [Zone; 2],
    hits: AtomicU64,
    misses: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Metrics {
    pub fn count(&self, answered: &Answered) {
        let zone = &self.zones[usize::from(!answered.own)];
        let position = |wanted: Option<RecordType>| TYPES.iter().position(|known| Some(*known) == wanted);
        let kind = position(answered.record_type).unwrap_or(TYPES.len());
        let transport = usize::from(answered.transport == Transport::Tcp);
        let family = usize::from(answered.client.to_canonical().is_ipv6());
        add(&zone.requests[transport][family][kind], 1);
        let code = CODES.iter().position(|known| *known == answered.code).unwrap_or(CODES.len());
        add(&zone.responses[code], 1);
        let seconds = answered.took.as_secs_f64();
        let bucket = SECONDS.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = bucket {
            add(&zone.buckets[bucket], 1);
        }
        add(&zone.microseconds, answered.took.as_micros() as u64);
    }

    pub fn cached(&self, hit: bool) {
        add(if hit { &self.hits } else { &self.misses }, 1);
    }

    /// Renders all metrics in the format of Prometheus.
    pub fn render(&self, domain: &str, entries: usize) -> String {
        let mut out = Exposition::default();
        let zones = [(&self.zones[0], domain), (&self.zones[1], ".")];
        out.family(&BUILD_INFO);
        out.sample(&BUILD_INFO, &[concat!("corten-", env!("CARGO_PKG_VERSION"))], 1.0);
        out.family(&REQUESTS);
        for (zone, name) in zones {
            zone.render_requests(&mut out, name);
        }
        out.family(&RESPONSES);
        for (zone, name) in zones {
            for (index, count) in zone.responses.iter().enumerate().filter(|(_, count)| read(count) > 0) {
                let code = CODES.get(index).map_or("other", |code| code_name(*code));
                let plugin = if name == "." { "forward" } else { "kubernetes" };
                out.sample(&RESPONSES, &[plugin, code, SERVER, "", name], read(count) as f64);
            }
        }
        out.family(&REQUEST_SECONDS);
        for (zone, name) in zones {
            zone.render_durations(&mut out, name);
        }
        for (family, value) in [
            (&CACHE_HITS, read(&self.hits)),
            (&CACHE_MISSES, read(&self.misses)),
            (&CACHE_REQUESTS, read(&self.hits) + read(&self.misses)),
            (&CACHE_ENTRIES, entries as u64),
        ] {
            out.family(family);
            out.sample(family, &[SERVER, "", "."], value as f64);
        }
        out.finish()
    }
}

impl Zone {
    fn render_requests(&self, out: &mut Exposition, zone: &str) {
        for (transport, families) in self.requests.iter().enumerate() {
            for (family, kinds) in families.iter().enumerate() {
                for (kind, count) in kinds.iter().enumerate().filter(|(_, count)| read(count) > 0) {
                    let proto = ["udp", "tcp"][transport];
                    let kind = TYPES.get(kind).map_or("other".to_owned(), ToString::to_string);
                    let family = ["1", "2"][family];
                    out.sample(&REQUESTS, &[family, proto, SERVER, "", &kind, zone], read(count) as f64);
                }
            }
        }
    }

    fn render_durations(&self, out: &mut Exposition, zone: &str) {
        let total: u64 = self.responses.iter().map(read).sum();
        let within: Vec<u64> = self.buckets.iter().map(read).collect();
        let beyond = total.saturating_sub(within.iter().sum());
        let sum = read(&self.microseconds) as f64 / 1e6;
        out.histogram(&REQUEST_SECONDS, &[SERVER, "", zone], within.into_iter().chain([beyond]), sum);
    }
}

fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::NoError => "NOERROR",
        ResponseCode::FormErr => "FORMERR",
        ResponseCode::ServFail => "SERVFAIL",
        ResponseCode::NXDomain => "NXDOMAIN",
        ResponseCode::NotImp => "NOTIMP",
        ResponseCode::Refused => "REFUSED",
        _ => "other",
    }
}

/// The current metrics, and the clients that may read them.
pub(crate) struct Page {
    pub render: Arc<dyn Fn() -> String + Send + Sync>,
    pub clients: Arc<Clients>,
}

/// Answers `GET /metrics` at an address until shutdown. An address in use is logged, and does not keep the server from
/// answering queries.
pub(crate) async fn serve(address: SocketAddr, page: Page, tasks: TaskTracker, shutdown: CancellationToken) {
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return warn!(%address, "cannot serve the metrics of cluster DNS: {error}"),
    };
    let gate = Gate::new(LIMITS);
    let permits = Permits::new(READERS, READERS_OF_EACH);
    loop {
        let (stream, slot) = tokio::select! {
            accepted = gate.accept(&listener) => accepted,
            () = shutdown.cancelled() => return,
        };
        let Ok(client) = stream.peer_addr() else { continue };
        if !page.clients.admits(client.ip()) {
            continue;
        }
        let Some(permit) = permits.take(client.ip()) else { continue };
        let render = Arc::clone(&page.render);
        tasks.spawn(async move {
            let _permit = permit;
            tokio::select! {
                () = slot.closed() => {}
                _ = timeout(TIMEOUT, answer(stream, &*render)) => {}
            }
        });
    }
}

async fn answer(mut stream: TcpStream, render: &(dyn Fn() -> String + Send + Sync)) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < HEAD {
        match stream.read(&mut chunk).await? {
            0 => return Ok(()),
            length => head.extend_from_slice(&chunk[..length]),
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics") {
        true => ("200 OK", render()),
        false => ("404 Not Found", "404 page not found\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_corednss_names() {
        let metrics = Metrics::default();
        let answered = |own: bool, record_type: RecordType, code: ResponseCode, took: u64| Answered {
            own,
            record_type: Some(record_type),
            code,
            transport: Transport::Udp,
            client: IpAddr::from([10, 0, 0, 1]),
            took: Duration::from_micros(took),
        };
        metrics.count(&answered(true, RecordType::A, ResponseCode::NoError, 100));
        metrics.count(&answered(true, RecordType::CAA, ResponseCode::NXDomain, 400));
        metrics.count(&answered(false, RecordType::AAAA, ResponseCode::ServFail, 60_000_000));
        metrics.cached(true);
        let rendered = metrics.render("cluster.local.", 7);
        for line in [
            r#"coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",view="",type="A",zone="cluster.local."} 1"#,
            r#"coredns_dns_requests_total{family="1",proto="udp",server="dns://:53",view="",type="other",zone="cluster.local."} 1"#,
            r#"coredns_dns_responses_total{plugin="kubernetes",rcode="NXDOMAIN",server="dns://:53",view="",zone="cluster.local."} 1"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",view="",zone="cluster.local.",le="0.0005"} 2"#,
            r#"coredns_dns_request_duration_seconds_bucket{server="dns://:53",view="",zone=".",le="8.192"} 0"#,
            r#"coredns_dns_request_duration_seconds_count{server="dns://:53",view="",zone="."} 1"#,
            r#"coredns_cache_hits_total{server="dns://:53",view="",zones="."} 1"#,
            r#"coredns_cache_entries{server="dns://:53",view="",zones="."} 7"#,
        ] {
            assert!(rendered.contains(line), "{line}\n{rendered}");
        }
    }
}
