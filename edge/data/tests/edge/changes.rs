//! Tests that changes of routes, endpoints and processes lose no request.

use crate::fixture::*;
use corten_edge::{Edge, Options, receive_listeners, send_listeners};
use corten_routing::{Configuration, ListenerProtocol};
use http::Response;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// A server that answers when it is allowed to.
struct Waiting {
    upstream: Upstream,
    arrived: Arc<Notify>,
    allowed: Arc<Notify>,
}

impl Waiting {
    async fn start(name: &'static str) -> Waiting {
        let arrived = Arc::new(Notify::new());
        let allowed = Arc::new(Notify::new());
        let notices = (Arc::clone(&arrived), Arc::clone(&allowed));
        let upstream = Upstream::start(move |_| {
            let notices = notices.clone();
            async move {
                notices.0.notify_one();
                notices.1.notified().await;
                Response::new(Full::from(name))
            }
        })
        .await;
        Waiting { upstream, arrived, allowed }
    }
}

#[tokio::test]
async fn a_request_keeps_its_rule_and_its_endpoint_while_both_change() {
    let mut fixture = Fixture::http(vec![rule("/", "old")]).await;
    let old = Waiting::start("old").await;
    fixture.endpoints("old", &[old.upstream.address]);
    let address = fixture.address;
    let waiting = tokio::spawn(async move { send_http1(TcpStream::connect(address).await.unwrap(), get("/")).await });
    within(old.arrived.notified()).await;
    fixture.apply(ListenerProtocol::Http(any_host(vec![rule("/", "new")]))).await;
    let _new = fixture.echo("new").await;
    fixture.endpoints("old", &[]);
    assert_eq!(fixture.get("/").await.headers()["x-served-by"], "new");
    old.allowed.notify_one();
    assert_eq!(text(&within(waiting).await.unwrap()), "old");
}

#[tokio::test]
async fn no_request_fails_while_routes_and_endpoints_change() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let first = Upstream::echo("first").await;
    let second = Upstream::echo("second").await;
    fixture.endpoints("a", &[first.address]);
    let address = fixture.address;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let stopped = stopped.clone();
            tokio::spawn(async move {
                let mut count = 0;
                let mut sender = http2(TcpStream::connect(address).await.unwrap()).await;
                while !*stopped.borrow() {
                    let response = send_http1(TcpStream::connect(address).await.unwrap(), get("/x")).await;
                    assert_eq!(response.status(), 200);
                    let request = http::Request::get("http://example.com/y").body(Full::default()).unwrap();
                    let response = sender.send_request(request).await.unwrap();
                    assert_eq!(response.status(), 200);
                    count += 2;
                }
                count
            })
        })
        .collect();
    for round in 0..60 {
        let both = [first.address, second.address];
        fixture.endpoints("a", if round % 3 == 0 { &both } else { &both[round % 2..=round % 2] });
        let mut rules = vec![rule("/", "a")];
        rules.extend((0..round).map(|number| rule(&format!("/other/{number}"), "b")));
        fixture.apply(ListenerProtocol::Http(any_host(rules))).await;
        // Some request is on its way at every change.
        let before = first.request_count() + second.request_count();
        eventually(async || first.request_count() + second.request_count() > before).await;
    }
    fixture.endpoints("a", &[first.address, second.address]);
    eventually(async || first.request_count() > 20 && second.request_count() > 20).await;
    stop.send(true).unwrap();
    for client in clients {
        assert!(within(client).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn a_removed_listener_refuses_new_connections_and_ends_its_requests() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let upstream = Waiting::start("late").await;
    fixture.endpoints("a", &[upstream.upstream.address]);
    let address = fixture.address;
    let waiting = tokio::spawn(async move { send_http1(TcpStream::connect(address).await.unwrap(), get("/")).await });
    within(upstream.arrived.notified()).await;
    fixture.configuration = Configuration::default();
    fixture.reapply().await;
    eventually(async || TcpStream::connect(address).await.is_err()).await;
    upstream.allowed.notify_one();
    assert_eq!(text(&within(waiting).await.unwrap()), "late");
}

#[tokio::test]
async fn requests_that_outlast_the_grace_period_end_with_it() {
    let options = Options { grace: Duration::from_millis(50), ..Options::default() };
    let protocol = ListenerProtocol::Http(any_host(vec![rule("/", "a")]));
    let fixture = Fixture::with(protocol, corten_routing::ListenerOptions::default(), options).await;
    let upstream = Waiting::start("never").await;
    fixture.endpoints("a", &[upstream.upstream.address]);
    let address = fixture.address;
    let stuck = tokio::spawn(async move {
        let io = hyper_util::rt::TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(get("/")).await.is_err()
    });
    within(upstream.arrived.notified()).await;
    within(fixture.edge.drain()).await;
    assert!(within(stuck).await.unwrap());
}

#[tokio::test]
async fn a_new_process_takes_over_the_sockets() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let upstream = Waiting::start("old process").await;
    fixture.endpoints("a", &[upstream.upstream.address]);
    let address = fixture.address;
    let waiting = tokio::spawn(async move { send_http1(TcpStream::connect(address).await.unwrap(), get("/")).await });
    within(upstream.arrived.notified()).await;

    let (ours, theirs) = UnixStream::pair().unwrap();
    send_listeners(&ours, &fixture.edge.listeners().await.unwrap()).unwrap();
    let inherited = receive_listeners(&theirs).unwrap();
    assert_eq!(inherited.len(), 1);
    let new = Edge::new(Options { addresses: vec![LOCALHOST], inherited, ..Options::default() });
    assert!(new.apply(&fixture.configuration).await.is_empty());
    let answering = Upstream::echo("new process").await;
    let ready = vec![corten_routing::Endpoint { address: answering.address, node: None }];
    new.set_endpoints(&key("a"), &corten_routing::Endpoints { ready, terminating: Vec::new() });

    let draining = tokio::spawn({
        let edge = Arc::new(fixture.edge);
        async move { edge.drain().await }
    });
    for _ in 0..50 {
        let response = within(send_http1(TcpStream::connect(address).await.unwrap(), get("/"))).await;
        if response.headers().contains_key("x-served-by") {
            continue;
        }
        panic!("the old process took a connection after it began to drain");
    }
    upstream.allowed.notify_one();
    assert_eq!(text(&within(waiting).await.unwrap()), "old process");
    within(draining).await.unwrap();
}

#[tokio::test]
async fn an_edge_that_retires_answers_open_connections_until_they_end() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let _upstream = fixture.echo("a").await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let (mut idle, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let idle_connection = tokio::spawn(connection);
    let response = within(idle.send_request(get("/"))).await.unwrap();
    assert!(!response.headers().contains_key("connection"));
    within(response.into_body().collect()).await.unwrap();
    // A connection that was accepted and has sent nothing yet.
    let silent = TcpStream::connect(fixture.address).await.unwrap();
    let mut streams = http2(TcpStream::connect(fixture.address).await.unwrap()).await;
    let over_http2 = || http::Request::get("http://example.com/").body(Full::default()).unwrap();
    assert_eq!(within(streams.send_request(over_http2())).await.unwrap().status(), 200);
    eventually(async || fixture.edge.metrics().contains("corten_edge_connections_total{transport=\"tcp\"} 3")).await;

    fixture.edge.retire().await;
    assert!(fixture.edge.listeners().await.unwrap().is_empty());
    eventually(async || TcpStream::connect(fixture.address).await.is_err()).await;
    // Routes and endpoints are still followed.
    fixture.apply(ListenerProtocol::Http(any_host(vec![rule("/", "b")]))).await;
    let _other = fixture.echo("b").await;
    let response = within(idle.send_request(get("/"))).await.unwrap();
    assert_eq!((response.status(), &response.headers()["x-served-by"]), (http::StatusCode::OK, &"b".parse().unwrap()));
    assert_eq!(response.headers()["connection"], "close");
    within(response.into_body().collect()).await.unwrap();
    within(idle_connection).await.unwrap().unwrap();
    let response = within(send_http1(silent, get("/"))).await;
    assert_eq!(
        (response.status(), &response.headers()["connection"]),
        (http::StatusCode::OK, &"close".parse().unwrap())
    );
    // The client of HTTP/2 was asked to open no further stream.
    eventually(async || streams.is_closed() || streams.send_request(over_http2()).await.is_err()).await;
    within(fixture.edge.idle()).await;
}

#[tokio::test]
async fn an_occupied_port_is_reported_and_the_others_serve() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let occupied = std::net::TcpListener::bind((LOCALHOST, 0)).unwrap();
    let mut key = fixture.listener_key(corten_routing::Transport::Tcp);
    key.port = 9999;
    let listener = corten_routing::Listener {
        bind_port: occupied.local_addr().unwrap().port(),
        protocol: ListenerProtocol::Http(any_host(vec![])),
        options: corten_routing::ListenerOptions::default(),
    };
    fixture.configuration.listeners.insert(key.clone(), Arc::new(listener));
    let errors = fixture.edge.apply(&fixture.configuration).await;
    assert_eq!(errors.iter().map(|error| &error.key).collect::<Vec<_>>(), [&key]);
    assert_eq!(fixture.get("/").await.status(), 503);
}
