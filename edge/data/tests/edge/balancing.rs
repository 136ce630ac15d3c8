//! Tests of the choice of endpoints, retries and timeouts.

use crate::fixture::*;
use corten_routing::{Endpoint, Endpoints, HttpRule, Retry, Timeouts};
use http::Response;
use http_body_util::Full;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test]
async fn requests_spread_over_endpoints_and_avoid_those_that_refuse() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let first = Upstream::echo("first").await;
    let second = Upstream::echo("second").await;
    let closed = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let refusing = closed.local_addr().unwrap();
    drop(closed);
    fixture.endpoints("a", &[first.address, refusing, second.address]);
    for _ in 0..60 {
        assert_eq!(fixture.get("/").await.status(), 200);
    }
    assert!(first.request_count() >= 10 && second.request_count() >= 10);
    fixture.endpoints("a", &[refusing]);
    assert_eq!(fixture.get("/").await.status(), 503);
}

#[tokio::test]
async fn terminating_endpoints_serve_only_when_none_is_ready() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let ready = Upstream::echo("ready").await;
    let terminating = Upstream::echo("terminating").await;
    let endpoint = |upstream: &Upstream| Endpoint { address: upstream.address, node: None };
    let both = Endpoints { ready: vec![endpoint(&ready)], terminating: vec![endpoint(&terminating)] };
    fixture.edge.set_endpoints(&key("a"), &both);
    for _ in 0..20 {
        fixture.get("/").await;
    }
    assert_eq!(terminating.request_count(), 0);
    let last = Endpoints { ready: Vec::new(), terminating: vec![endpoint(&terminating)] };
    fixture.edge.set_endpoints(&key("a"), &last);
    assert_eq!(fixture.get("/").await.headers()["x-served-by"], "terminating");
}

fn retrying(attempts: u32, codes: Vec<u16>) -> HttpRule {
    let retry = Retry { attempts, codes, backoff: Duration::from_millis(1), idempotent_only: false };
    HttpRule { retry: Some(Arc::new(retry)), ..rule("/", "a") }
}

/// Returns an endpoint whose first answers have a status.
async fn failing(times: usize, status: u16) -> Upstream {
    let count = Arc::new(AtomicUsize::new(0));
    Upstream::start(move |request| {
        let count = Arc::clone(&count);
        async move {
            if count.fetch_add(1, Ordering::SeqCst) < times {
                return Response::builder().status(status).body(Full::default()).unwrap();
            }
            echo("a", request).await
        }
    })
    .await
}

#[tokio::test]
async fn statuses_of_the_policy_are_tried_again_with_the_body() {
    let fixture = Fixture::http(vec![retrying(3, vec![500])]).await;
    for (times, status, expected, requests) in [(2, 500, 200, 3), (4, 500, 500, 4), (2, 503, 503, 1)] {
        let upstream = failing(times, status).await;
        fixture.endpoints("a", &[upstream.address]);
        let response = fixture.send(request("POST", "/", &[], "again")).await;
        assert_eq!(response.status(), expected);
        assert_eq!(upstream.request_count(), requests);
        if expected == 200 {
            assert!(text(&response).ends_with("\nagain"));
        }
    }
}

/// Starts a server that closes its first connections after it read a request.
async fn resetting(times: usize) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            if number >= times {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
                stream.write_all(answer).await.unwrap();
            }
        }
    });
    (address, task)
}

#[tokio::test]
async fn resets_are_tried_again_by_policy_alone() {
    for (rule, times, expected) in
        [(retrying(3, vec![]), 2, 200), (retrying(3, vec![]), 4, 503), (rule("/", "a"), 1, 503)]
    {
        let fixture = Fixture::http(vec![rule]).await;
        let (address, task) = resetting(times).await;
        fixture.endpoints("a", &[address]);
        assert_eq!(fixture.send(request("POST", "/", &[], "x")).await.status(), expected);
        task.abort();
    }
}

/// Starts a server that answers one request on each connection, says that it keeps it, and closes it when it is used again.
async fn forgetful() -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                let _ = stream.read(&mut buffer).await;
            });
        }
    });
    (address, task)
}

#[tokio::test]
async fn a_connection_that_an_endpoint_closed_while_idle_loses_no_request() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let (address, task) = forgetful().await;
    fixture.endpoints("a", &[address]);
    for _ in 0..20 {
        assert_eq!(fixture.get("/").await.status(), 200);
    }
    task.abort();
}

#[tokio::test]
async fn late_answers_are_gateway_timeouts() {
    let limit = Duration::from_millis(50);
    let request_limit = Timeouts { request: Some(limit), backend_request: None };
    let backend_limit = Timeouts { request: None, backend_request: Some(limit) };
    let fixture = Fixture::http(vec![
        HttpRule { timeouts: request_limit, ..rule("/request", "a") },
        HttpRule { timeouts: backend_limit, ..rule("/backend", "a") },
        rule("/none", "b"),
    ])
    .await;
    let silent = Upstream::start(|_| std::future::pending::<Response<Full<bytes::Bytes>>>()).await;
    fixture.endpoints("a", &[silent.address]);
    let _b = fixture.echo("b").await;
    assert_eq!(fixture.get("/request").await.status(), 504);
    assert_eq!(fixture.get("/backend").await.status(), 504);
    assert_eq!(fixture.get("/none").await.status(), 200);
}

#[tokio::test]
async fn a_late_try_is_followed_by_another() {
    let timeouts = Timeouts { request: None, backend_request: Some(Duration::from_millis(50)) };
    let fixture = Fixture::http(vec![HttpRule { timeouts, ..retrying(3, vec![]) }]).await;
    let count = Arc::new(AtomicUsize::new(0));
    let upstream = Upstream::start(move |request| {
        let count = Arc::clone(&count);
        async move {
            if count.fetch_add(1, Ordering::SeqCst) < 2 {
                std::future::pending::<()>().await;
            }
            echo("a", request).await
        }
    })
    .await;
    fixture.endpoints("a", &[upstream.address]);
    assert_eq!(fixture.get("/").await.status(), 200);
}
