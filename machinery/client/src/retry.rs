//! Retries of requests that the server asks to repeat: a full queue (429) or an unavailable server (5xx) sets the time
//! to wait in `Retry-After`.
//!
//! The server did not execute such a request, so any verb may be repeated. A request without an answer is never
//! repeated here: the server may have executed it, and the caller decides.

use crate::{Body, Error};
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};
use std::time::Duration;

/// The number of retries of a request, as in client-go.
const MOST_RETRIES: u32 = 10;
/// The longest wait before a retry. A longer one becomes an error, so that no worker sleeps for an hour.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Marks a repeated request, for the metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again;

/// A request that failed, and the time after which it may be repeated.
#[derive(Debug)]
pub(crate) struct Refused {
    pub error: Error,
    pub retry_after: Option<Duration>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused { error, retry_after: None }
    }
}

impl Refused {
    /// Waits as long as the server requests, or returns the error if the server requests no wait, or too many. Dropping
    /// the future ends the wait.
    pub async fn wait(self, retries: &mut u32) -> Result<(), Error> {
        let Some(wait) = self.retry_after.filter(|_| *retries < MOST_RETRIES) else { return Err(self.error) };
        *retries += 1;
        tracing::debug!(error = %self.error, ?wait, retries = *retries, "the server requests a retry");
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Returns the time to wait before the request is repeated.
pub(crate) fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let status = response.status();
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds)).filter(|wait| *wait <= LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, Metrics, Transport};
    use bytes::Bytes;
    use futures::future::BoxFuture;
    use http::{Method, Request};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use tokio::time::Instant;

    #[test]
    fn only_a_429_or_5xx_with_retry_after_is_retried() {
        for (code, header, wait) in [
            (429, Some("1"), Some(1)),
            (429, Some("0"), Some(0)),
            (429, None, None),
            (429, Some("soon"), None),
            (429, Some("-1"), None),
            (429, Some("Fri, 31 Dec 1999 23:59:59 GMT"), None),
            (429, Some("60"), Some(60)),
            (429, Some("61"), None),
            (500, Some("2"), Some(2)),
            (503, Some("3"), Some(3)),
            (504, Some("4"), Some(4)),
            (503, None, None),
            (200, Some("1"), None),
            (409, Some("1"), None),
            (404, Some("1"), None),
        ] {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            if let Some(header) = header {
                response.headers_mut().insert(RETRY_AFTER, header.parse().unwrap());
            }
            assert_eq!(retry_after(&response), wait.map(Duration::from_secs), "{code} {header:?}");
        }
    }

    /// A server that refuses a number of requests before it answers, or loses them. Keeps their bodies.
    struct Busy {
        code: u16,
        refusals: AtomicU32,
        bodies: Mutex<Vec<Bytes>>,
    }

    fn busy(code: u16, refusals: u32) -> Arc<Busy> {
        Arc::new(Busy { code, refusals: refusals.into(), bodies: Mutex::default() })
    }

    impl Transport for Busy {
        fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
            self.bodies.lock().unwrap().push(request.into_body());
            let left = self.refusals.load(Ordering::SeqCst);
            self.refusals.store(left.saturating_sub(1), Ordering::SeqCst);
            let answer = match (left, self.code) {
                (0, _) => Ok(Response::new(Body::Full("done".into()))),
                (_, 0) => Err(Error::Transport("the connection broke".into())),
                (_, code) => Ok(Response::builder()
                    .status(code)
                    .header(RETRY_AFTER, "2")
                    .body(Body::Full("Too many requests, please try again later.".into()))
                    .unwrap()),
            };
            Box::pin(async move { answer })
        }
    }

    async fn post(server: &Arc<Busy>, metrics: &Metrics) -> Result<Bytes, Error> {
        let client = Client::new(server.clone()).with_metrics(metrics, "here");
        client.exchange(Method::POST, "/x", Some("application/json"), "{}".into()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_write_is_retried_after_the_requested_time() {
        let server = busy(429, 3);
        let metrics = Metrics::default();
        let began = Instant::now();
        assert_eq!(post(&server, &metrics).await.unwrap(), "done");
        assert_eq!(began.elapsed(), Duration::from_secs(6));
        assert_eq!(*server.bodies.lock().unwrap(), ["{}"; 4], "the body goes with every attempt");
        let text = metrics.render();
        for line in [
            r#"rest_client_requests_total{code="429",host="here",method="POST"} 3"#,
            r#"rest_client_request_retries_total{code="429",host="here",verb="POST"} 2"#,
            r#"rest_client_request_retries_total{code="200",host="here",verb="POST"} 1"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in:\n{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_and_a_lost_answer_is_an_error_at_once() {
        for (code, refusals, sent, fails) in [(429, 10, 11, false), (503, 11, 11, true), (0, 1, 1, true)] {
            let server = busy(code, refusals);
            let answer = post(&server, &Metrics::default()).await;
            assert_eq!((answer.is_err(), server.bodies.lock().unwrap().len()), (fails, sent), "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_request_is_not_retried() {
        let server = busy(429, 5);
        let metrics = Metrics::default();
        let given_up = tokio::time::timeout(Duration::from_secs(3), post(&server, &metrics)).await;
        assert!(given_up.is_err());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(server.bodies.lock().unwrap().len(), 2);
    }

    /// A watch is retried as any other request until it is answered.
    #[tokio::test(start_paused = true)]
    async fn a_refused_watch_is_retried() {
        let server = busy(503, 1);
        Client::new(server.clone()).open(Method::GET, "/x?watch=true", None, Bytes::new()).await.unwrap();
        assert_eq!(server.bodies.lock().unwrap().len(), 2);
    }
}
