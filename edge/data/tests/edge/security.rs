//! Tests of malformed and hostile clients with raw bytes.

use crate::fixture::*;
use corten_edge::Options;
use corten_routing::{BackendProtocol, ListenerOptions, ListenerProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

async fn served() -> (Fixture, Upstream) {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let upstream = fixture.echo("a").await;
    (fixture, upstream)
}

#[tokio::test]
async fn requests_of_unclear_length_are_refused_and_the_connection_closes() {
    let (fixture, upstream) = served().await;
    for headers in [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 6",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length: 0x5",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        " Transfer-Encoding: chunked",
        "X: a\r\n\tTransfer-Encoding: chunked",
        "Content Length: 5",
    ] {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n0\r\n\r\n{SMUGGLED}");
        let answer = fixture.raw(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{headers}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{headers}: {answer}");
    }
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn a_length_beside_a_chunked_body_smuggles_nothing() {
    for headers in [
        "Content-Length: 44\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 44",
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
    ] {
        let (fixture, upstream) = served().await;
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n0\r\n\r\n{SMUGGLED}");
        let answer = fixture.raw(request.as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 1, "{headers}: {answer}");
        assert!(!answer.contains("content-length: 4"), "the endpoint saw one length alone: {answer}");
        assert_eq!(upstream.request_count(), 1, "{headers}");
    }
}

#[tokio::test]
async fn malformed_heads_are_refused() {
    let (fixture, upstream) = served().await;
    let host = |value: &str| format!("GET / HTTP/1.1\r\n{value}\r\n\r\n");
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (host("Host: a\r\nHost: b"), 400),
        (host("Host: a/b"), 400),
        (host("Host: user@a"), 400),
        (host("Host: a\r\nX: a\0b"), 400),
        (host("Host: a\r\nX: a\rb"), 400),
        (host("Host: a\r\nX\x01: b"), 400),
        (host("Host: a\r\n: b"), 400),
        ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/3.7\r\nHost: a\r\n\r\n".to_owned(), 400),
        ("GET /../etc HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), 400),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_owned(), 405),
    ] {
        let request = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let answer = fixture.raw(request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
    }
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn oversized_heads_have_their_statuses() {
    let (fixture, upstream) = served().await;
    let long = "x".repeat(128 * 1024);
    let many: String = (0..500).map(|number| format!("x-{number}: y\r\n")).collect();
    for (request, expected) in [
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), ["414", "431"]),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), ["431", "431"]),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), ["431", "431"]),
    ] {
        let answer = fixture.raw(request.as_bytes()).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        // The edge may reset the connection while the rest is on its way.
        assert!(expected.contains(&status) || answer.is_empty(), "{status}");
    }
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn a_client_cannot_break_the_chunks_of_a_body() {
    let (fixture, upstream) = served().await;
    for chunks in ["5\r\nab\r\n0\r\n\r\n", "zz\r\nab\r\n0\r\n\r\n", "-1\r\n", "fffffffffffffffff\r\n"] {
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{SMUGGLED}");
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        let _ = within(stream.read_to_string(&mut answer)).await;
        assert!(!answer.contains("/smuggled"), "{chunks}: {answer}");
    }
    eventually(async || fixture.get("/").await.status() == 200).await;
    assert!(upstream.request_count() <= 5);
}

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns a literal field of HPACK that is not indexed.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0, u8::try_from(name.len()).unwrap()];
    field.extend(name.as_bytes());
    field.push(u8::try_from(value.len()).unwrap());
    field.extend(value.as_bytes());
    field
}

/// Returns the fields of `GET http://a/` and further ones.
fn get_fields(more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![0x82, 0x86, 0x84];
    fields.extend(literal(":authority", "a"));
    more.iter().for_each(|(name, value)| fields.extend(literal(name, value)));
    fields
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// Reads frames until one of a kind; returns its payload, or none at the end.
async fn read_until(stream: &mut TcpStream, kinds: &[u8]) -> Option<(u8, Vec<u8>)> {
    loop {
        let mut head = [0; 9];
        within(stream.read_exact(&mut head)).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        within(stream.read_exact(&mut payload)).await.ok()?;
        if kinds.contains(&head[3]) {
            return Some((head[3], payload));
        }
    }
}

#[tokio::test]
async fn fields_of_http2_cannot_carry_lines_of_http1() {
    let (fixture, upstream) = served().await;
    for (name, value) in [
        ("x", "a\r\nx-injected: b"),
        ("x", "a\nb"),
        ("x\r\ny", "a"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("X-Upper", "a"),
        (":path", "/\r\nx-injected: b"),
        (":method", "GET / HTTP/1.1\r\nx-injected: b\r\n\r\n"),
    ] {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        let fields = match name.starts_with(':') {
            false => get_fields(&[(name, value)]),
            true => {
                let mut fields = vec![0x86];
                fields.extend(literal(":authority", "a"));
                fields.extend(literal(":method", if name == ":method" { value } else { "GET" }));
                fields.extend(literal(":path", if name == ":path" { value } else { "/" }));
                fields
            }
        };
        let bytes = [preface(), frame(HEADERS, 5, 1, &fields)].concat();
        stream.write_all(&bytes).await.unwrap();
        let refused = read_until(&mut stream, &[RST_STREAM, GOAWAY, HEADERS]).await;
        let is_served = refused.is_some_and(|(kind, payload)| kind == HEADERS && payload.first() == Some(&0x88));
        assert!(!is_served, "{name:?}: {value:?}");
    }
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn a_length_of_http2_that_lies_ends_the_stream() {
    for protocol in [BackendProtocol::Http1, BackendProtocol::Http2] {
        let (mut fixture, _upstream) = served().await;
        fixture.backend("a", plain(protocol)).await;
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        let mut fields = vec![0x83, 0x86, 0x84];
        fields.extend(literal(":authority", "a"));
        fields.extend(literal("content-length", "1"));
        let data = frame(0, 1, 1, SMUGGLED.as_bytes());
        stream.write_all(&[preface(), frame(HEADERS, 4, 1, &fields), data].concat()).await.unwrap();
        let (kind, payload) = read_until(&mut stream, &[RST_STREAM, GOAWAY, HEADERS]).await.unwrap();
        assert!(kind != HEADERS || payload.first() != Some(&0x88));
    }
}

#[tokio::test]
async fn a_client_that_opens_and_resets_streams_loses_its_connection() {
    let (fixture, upstream) = served().await;
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    let mut bytes = preface();
    for number in 0..5000u32 {
        let id = 2 * number + 1;
        bytes.extend(frame(HEADERS, 5, id, &get_fields(&[])));
        bytes.extend(frame(RST_STREAM, 0, id, &8u32.to_be_bytes()));
    }
    // The edge may close before it has read everything.
    let _ = stream.write_all(&bytes).await;
    if let Some((_, payload)) = read_until(&mut stream, &[GOAWAY]).await {
        let code = payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap()));
        assert_eq!(code, Some(11), "ENHANCE_YOUR_CALM");
    }
    assert!(upstream.request_count() < 2500, "{} requests", upstream.request_count());
    assert_eq!(fixture.get("/").await.status(), 200);
}

#[tokio::test]
async fn an_endless_head_of_http2_is_refused() {
    let (fixture, upstream) = served().await;
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    let big = "v".repeat(100);
    let fields: Vec<u8> = (0..100).flat_map(|_| literal("x-filler", &big)).collect();
    let mut bytes = [preface(), frame(HEADERS, 1, 1, &get_fields(&[]))].concat();
    for _ in 0..200 {
        bytes.extend(frame(9, 0, 1, &fields));
    }
    let _ = stream.write_all(&bytes).await;
    let ended = read_until(&mut stream, &[GOAWAY, RST_STREAM]).await;
    assert!(ended.is_none_or(|(kind, _)| kind == GOAWAY || kind == RST_STREAM));
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(fixture.get("/").await.status(), 200);
}

#[tokio::test]
async fn silent_connections_yield_to_clients_that_speak() {
    let protocol = ListenerProtocol::Http(any_host(vec![rule("/", "a")]));
    let options = Options { connections: 3, ..Options::default() };
    let fixture = Fixture::with(protocol, ListenerOptions::default(), options).await;
    let _upstream = fixture.echo("a").await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        stream.write_all(b"GET / HT").await.unwrap();
        silent.push(stream);
    }
    for _ in 0..5 {
        assert_eq!(fixture.get("/").await.status(), 200);
    }
    let mut first = silent.remove(0);
    assert_eq!(within(first.read(&mut [0; 16])).await.unwrap_or(0), 0, "the oldest was closed");
}

#[tokio::test]
async fn bytes_that_are_no_client_hello_are_refused() {
    let fixture = Fixture::new(ListenerProtocol::Tls(corten_routing::Hosts::default())).await;
    let endless = [vec![22, 3, 1, 0x3f, 0xff, 1, 0xff, 0xff, 0xff], vec![0; 200_000]].concat();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![22, 3, 1, 0, 4, 1, 0, 0, 0], endless] {
        let mut stream = TcpStream::connect(fixture.address).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        let _ = within(stream.read_to_end(&mut answer)).await;
        assert!(answer.len() < 16, "an alert at most: {answer:?}");
    }
}
