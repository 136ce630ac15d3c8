//! The proxy's own health and mode, on upstream's ports: `/healthz` and `/livez` for load balancers, which must not
//! send traffic to a node whose rules are late or that is about to be deleted; `/healthz`, `/proxyMode` and
//! `/metrics/slis` for the node's own operator.
//!
//! Every client that reaches the port can read the pages, so they show nothing of Services, and a client gets a bounded
//! head, a deadline and one answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use corten_listen::Gate;
use corten_meta::metrics::HealthChecks;
use corten_nftables::IpFamily;
use jiff::{SignedDuration, Timestamp};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::Mode;
use crate::health::{LIMITS, RETRY, in_time, read_head, write_answer};

/// The time that a change may wait for the kernel before the proxy counts as unhealthy.
const LATE: SignedDuration = SignedDuration::from_secs(60);
/// Go's format of a time that is not set.
const NEVER: &str = "0001-01-01T00:00:00Z";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// The times of the last sync of one IP family.
#[derive(Clone, Debug, Default)]
struct Rules {
    updated: Option<Timestamp>,
    /// The time since which a change waits.
    pending: Option<Timestamp>,
}

impl Rules {
    fn is_healthy(&self, now: Timestamp) -> bool {
        self.pending.is_none_or(|since| now.duration_since(since) < LATE)
    }
}

/// The status that the pages are made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Status {
    rules: BTreeMap<IpFamily, Rules>,
    /// Whether the node exists and is not being deleted.
    pub is_node_eligible: bool,
}

impl Status {
    /// Records a change that waits for the kernel.
    pub fn queued(&mut self, ip: IpFamily, now: Timestamp) {
        self.rules.entry(ip).or_default().pending.get_or_insert(now);
    }

    /// Records that the kernel has every change.
    pub fn updated(&mut self, ip: IpFamily, now: Timestamp) {
        self.rules.insert(ip, Rules { updated: Some(now), pending: None });
    }

    fn is_healthy(&self, now: Timestamp) -> bool {
        self.rules.values().all(|rules| rules.is_healthy(now))
    }

    /// Returns the page of `/livez`, and with the node's eligibility that of `/healthz`.
    fn page(&self, now: Timestamp, with_node: bool) -> Page {
        let is_healthy = self.is_healthy(now);
        let is_served = is_healthy && (self.is_node_eligible || !with_node);
        let updated = if is_served { Some(now) } else { self.rules.values().filter_map(|rules| rules.updated).max() };
        let node = if with_node { format!(r#""nodeEligible":{},"#, self.is_node_eligible) } else { String::new() };
        let of_version = |(ip, rules): (&IpFamily, &Rules)| {
            let family = if *ip == IpFamily::V4 { "IPv4" } else { "IPv6" };
            let updated = shown(rules.updated);
            let is_healthy = rules.is_healthy(now);
            format!(r#""{family}":{{"lastUpdated":"{updated}","healthy":{is_healthy}}}"#)
        };
        let versions: Vec<String> = self.rules.iter().map(of_version).collect();
        let body = format!(
            r#"{{"lastUpdated":"{}","currentTime":"{now}",{node}"healthy":{is_healthy},"status":{{{}}}}}"#,
            shown(updated),
            versions.join(",")
        );
        let status = if is_served { "200 OK" } else { "503 Service Unavailable" };
        Page { status, content_type: JSON, body }
    }
}

fn shown(time: Option<Timestamp>) -> String {
    time.map_or_else(|| NEVER.to_owned(), |time| time.to_string())
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Page {
    fn text(body: impl Into<String>) -> Page {
        Page { status: "200 OK", content_type: TEXT, body: body.into() }
    }

    fn not_found() -> Page {
        Page { status: "404 Not Found", ..Page::text("404 page not found\n") }
    }

    fn response(&self) -> String {
        let Page { status, content_type, body } = self;
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    }
}

/// The two sets of pages.
pub(crate) struct Pages {
    pub mode: Mode,
    pub status: watch::Receiver<Status>,
    /// The start time of the proxy, in Unix seconds.
    pub started: f64,
    pub checks: HealthChecks,
}

/// The set of pages that a port serves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Port {
    Health,
    Status,
}

impl Pages {
    fn page(&self, port: Port, path: &str, now: Timestamp) -> Page {
        match (port, path) {
            (Port::Health, "/healthz") => self.status.borrow().page(now, true),
            (Port::Health, "/livez") => self.status.borrow().page(now, false),
            (Port::Status, "/healthz") => {
                self.checks.observe("ping", "healthz", true);
                Page::text("ok")
            }
            (Port::Status, "/proxyMode") => Page::text(self.mode.name()),
            (Port::Status, "/metrics/slis") => Page::text(self.checks.render(Some(self.started))),
            _ => Page::not_found(),
        }
    }
}

/// Serves one port until shutdown. A port in use, by the proxy of another cluster of the machine, is not fatal: it is
/// tried again.
pub(crate) async fn serve<B>(pages: Arc<Pages>, port: Port, bind: impl Fn() -> B, shutdown: CancellationToken)
where
    B: Future<Output = std::io::Result<TcpListener>>,
{
    let work = async {
        let mut is_logged = false;
        loop {
            match bind().await {
                Ok(listener) => return accept(&listener, &pages, port).await,
                Err(error) if !is_logged => info!(?port, %error, "the proxy's pages are not served"),
                Err(_) => {}
            }
            is_logged = true;
            tokio::time::sleep(RETRY).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
}

async fn accept(listener: &TcpListener, pages: &Arc<Pages>, port: Port) {
    let gate = Gate::new(LIMITS);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, slot) = gate.accept(listener) => {
                connections.spawn(in_time(slot, answer(stream, Arc::clone(pages), port)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(mut stream: TcpStream, pages: Arc<Pages>, port: Port) {
    let Some(head) = read_head(&mut stream).await else { return };
    let page = path_of(&head).map_or_else(Page::not_found, |path| pages.page(port, path, Timestamp::now()));
    write_answer(stream, &page.response()).await;
}

/// Returns the path of a request for a page, without its query.
fn path_of(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let target = std::str::from_utf8(line).ok()?.strip_prefix("GET ")?.split(' ').next()?;
    target.split('?').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_late_change_is_unhealthy() {
        let mut status = Status { is_node_eligible: true, ..Status::default() };
        assert_eq!(status.page(at(0), true).status, "200 OK", "healthy while it starts");
        status.queued(IpFamily::V4, at(10));
        status.queued(IpFamily::V4, at(60));
        assert!(status.is_healthy(at(69)));
        assert!(!status.is_healthy(at(70)));
        status.updated(IpFamily::V6, at(65));
        let page = status.page(at(70), true);
        assert_eq!(page.status, "503 Service Unavailable");
        let expected = r#"{"lastUpdated":"1970-01-01T00:01:05Z","currentTime":"1970-01-01T00:01:10Z","nodeEligible":true,"healthy":false,"status":{"IPv4":{"lastUpdated":"0001-01-01T00:00:00Z","healthy":false},"IPv6":{"lastUpdated":"1970-01-01T00:01:05Z","healthy":true}}}"#;
        assert_eq!(page.body, expected);
        status.updated(IpFamily::V4, at(71));
        assert_eq!(status.page(at(500), false).status, "200 OK");
    }

    #[test]
    fn a_node_that_is_being_deleted_takes_no_traffic_but_is_live() {
        let mut status = Status::default();
        status.updated(IpFamily::V4, at(1));
        assert_eq!(status.page(at(2), true).status, "503 Service Unavailable");
        let live = status.page(at(2), false);
        assert_eq!(live.status, "200 OK");
        assert!(!live.body.contains("nodeEligible"), "{}", live.body);
    }

    #[test]
    fn each_port_has_its_pages() {
        let (_keep, status) = watch::channel(Status { is_node_eligible: true, ..Status::default() });
        let pages = Pages { mode: Mode::Nftables, status, started: 7.0, checks: HealthChecks::default() };
        let page = |port, path| pages.page(port, path, at(1));
        assert!(page(Port::Health, "/healthz").body.contains("lastUpdated"));
        assert_eq!(page(Port::Status, "/proxyMode"), Page::text("nftables"));
        assert_eq!(page(Port::Status, "/healthz"), Page::text("ok"));
        let slis = page(Port::Status, "/metrics/slis").body;
        assert!(slis.contains(r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#), "{slis}");
        assert_eq!(page(Port::Health, "/proxyMode"), Page::not_found());
        assert_eq!(page(Port::Status, "/"), Page::not_found());
    }

    #[test]
    fn only_requests_for_pages_have_a_path() {
        for (head, path) in [
            ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", Some("/healthz")),
            ("GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", Some("/healthz")),
            ("GET /livez\r\n\r\n", Some("/livez")),
            ("POST /healthz HTTP/1.1\r\n\r\n", None),
            ("\r\n\r\n", None),
            ("GET \r\n\r\n", Some("")),
        ] {
            assert_eq!(path_of(head.as_bytes()), path, "{head:?}");
        }
        assert_eq!(path_of(b"GET /\xff HTTP/1.1\r\n\r\n"), None);
    }

    #[tokio::test]
    async fn a_port_answers_over_http() {
        let (_keep, status) = watch::channel(Status::default());
        let pages = Pages { mode: Mode::Iptables, status, started: 7.0, checks: HealthChecks::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let given = std::sync::Mutex::new(Some(listener));
        let bind = move || {
            let listener = given.lock().unwrap().take();
            async move { listener.ok_or_else(|| std::io::Error::other("taken")) }
        };
        let serving = tokio::spawn(serve(Arc::new(pages), Port::Status, bind, shutdown.clone()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET /proxyMode HTTP/1.1\r\n\r\n").await.unwrap();
        let mut response = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\niptables"), "{response}");
        shutdown.cancel();
        serving.await.unwrap();
    }
}
