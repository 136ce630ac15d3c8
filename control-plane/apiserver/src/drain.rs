//! The drain of a server that stops: requests that began are answered, late ones are sent elsewhere.
//!
//! After the announced delay a new request gets 429 with `Retry-After`, by which clients try again, on a connection that
//! finds another server. The listener stays open while this lasts: a refused connection is an error for most clients.
//! Probes and metrics are answered to the end. Watches end one after another, so that their clients do not all come to
//! the other servers at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::body::{Body, Reply};

/// The time that requests under way have to be answered.
pub const REQUESTS_TIMEOUT: Duration = Duration::from_secs(10);
/// The paths that are answered also while the server drains; upstream's.
const EXEMPT: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];
/// The least number of watches that end in a second; upstream's.
const WATCHES_PER_SECOND: f64 = 200.0;

/// The requests and watches of the network, and whether new ones are still taken.
pub struct Drain {
    has_begun: CancellationToken,
    requests: TaskTracker,
    watches: Arc<Watches>,
    /// The time that watches have to end; zero ends them with the server.
    grace: Duration,
}

/// The watches of the network.
#[derive(Default)]
struct Watches {
    tracker: TaskTracker,
    /// The number of watches that have been given their turn to end.
    ending: AtomicUsize,
    /// The time between the ends of two watches, once they end.
    interval: OnceLock<Duration>,
}

impl Drain {
    pub fn new(watch_termination_grace_period: Duration) -> Drain {
        Drain {
            has_begun: CancellationToken::new(),
            requests: TaskTracker::new(),
            watches: Arc::default(),
            grace: watch_termination_grace_period,
        }
    }

    /// Counts a request as one under way until the token is dropped. `None` if it is late, and must be refused.
    pub fn enter(&self, path: &str, headers: &HeaderMap) -> Option<TaskTrackerToken> {
        // The token first: a drain that begins after the check waits for it.
        let token = self.requests.token();
        (!self.has_begun.is_cancelled() || is_exempt(path, headers)).then_some(token)
    }

    /// Refuses new requests from now on, and waits for those under way and for the watches.
    pub async fn run(&self) {
        // The watches of this moment set the pace: none begins later.
        let count = self.watches.tracker.len() as f64;
        let rate = (count / self.grace.as_secs_f64()).max(WATCHES_PER_SECOND);
        let _ = self.watches.interval.set(Duration::from_secs_f64(1.0 / rate));
        self.has_begun.cancel();
        self.requests.close();
        self.watches.tracker.close();
        let requests = tokio::time::timeout(REQUESTS_TIMEOUT, self.requests.wait());
        let watches = tokio::time::timeout(self.grace, self.watches.tracker.wait());
        let (requests, _) = futures::future::join(requests, watches).await;
        if requests.is_err() {
            tracing::warn!(count = self.requests.len(), "requests are not answered yet; the server stops without them");
        }
    }

    /// Lets a watch end in its turn once the drain began, unless there is no grace period.
    pub fn bound(&self, body: Body) -> Body {
        let Body::Watch(watch) = body else { return body };
        if self.grace.is_zero() {
            return Body::Watch(watch);
        }
        let token = self.watches.tracker.token();
        let watches = Arc::clone(&self.watches);
        let has_begun = self.has_begun.clone();
        let turn = async move {
            has_begun.cancelled().await;
            let place = watches.ending.fetch_add(1, Ordering::Relaxed);
            let interval = watches.interval.get().copied().unwrap_or_default();
            tokio::time::sleep(interval.mul_f64(place as f64)).await;
        };
        let frames = watch.frames().take_until(Box::pin(turn)).map(move |frames| {
            let _until_end = &token;
            Ok(frames)
        });
        Body::Stream(frames.boxed())
    }
}

/// Reports whether a request is answered while the server drains: probes, metrics, and requests of API servers.
fn is_exempt(path: &str, headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map_or(&b""[..], HeaderValue::as_bytes);
    agent.starts_with(b"kube-apiserver/") || EXEMPT.iter().any(|prefix| path.starts_with(prefix))
}

/// Returns the response to a late request.
pub fn late() -> Reply {
    let text = "The apiserver is shutting down, please try again later.\n";
    let mut reply = http::Response::new(Body::Full(text.into()));
    *reply.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    for (name, value) in [
        (header::RETRY_AFTER, "1"),
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(drain: &Drain, path: &str, agent: &str) -> Option<TaskTrackerToken> {
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, agent.parse().unwrap());
        drain.enter(path, &headers)
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_requests_and_refuses_late_ones() {
        let drain = Arc::new(Drain::new(Duration::ZERO));
        let under_way = enter(&drain, "/api", "kubectl").unwrap();
        let running = tokio::spawn({
            let drain = Arc::clone(&drain);
            async move { drain.run().await }
        });
        drain.has_begun.cancelled().await;
        assert!(enter(&drain, "/api", "kubectl").is_none());
        for (path, agent) in [("/readyz", ""), ("/livez?verbose", ""), ("/metrics", ""), ("/api", "kube-apiserver/v1")]
        {
            assert!(enter(&drain, path, agent).is_some(), "{path} {agent}");
        }
        tokio::time::sleep(REQUESTS_TIMEOUT / 2).await;
        assert!(!running.is_finished());
        drop(under_way);
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_in_spite_of_a_request_that_is_never_answered() {
        let drain = Drain::new(Duration::ZERO);
        let _stuck = enter(&drain, "/api", "kubectl").unwrap();
        let began = tokio::time::Instant::now();
        drain.run().await;
        assert_eq!(began.elapsed().as_secs(), REQUESTS_TIMEOUT.as_secs());
    }
}
