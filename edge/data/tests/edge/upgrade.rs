//! Tests of connections that change protocols.

use crate::fixture::*;
use corten_routing::ListenerProtocol;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Starts a server that changes to a protocol that echoes lines, and sends its first line with the answer.
async fn echoing() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    stream.read_line(&mut head).await.unwrap();
                }
                let lower = head.to_ascii_lowercase();
                assert!(lower.contains("upgrade: echo\r\n") && lower.contains("connection: upgrade\r\n"), "{head}");
                let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
                let mut line = String::new();
                while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                    stream.write_all(line.as_bytes()).await.unwrap();
                    line.clear();
                }
            });
        }
    });
    (address, task)
}

async fn upgraded(fixture: &Fixture) -> BufReader<TcpStream> {
    let mut stream = BufReader::new(TcpStream::connect(fixture.address).await.unwrap());
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\nearly\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(within(stream.read_line(&mut head)).await.unwrap() > 0, "{head}");
    }
    let lower = head.to_ascii_lowercase();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(lower.contains("upgrade: echo\r\n") && lower.contains("connection: upgrade\r\n"), "{head}");
    assert_eq!(line(&mut stream).await, "hello\n");
    assert_eq!(line(&mut stream).await, "early\n");
    stream
}

async fn line(stream: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    within(stream.read_line(&mut line)).await.unwrap();
    line
}

#[tokio::test]
async fn an_upgraded_connection_outlives_changes_of_routes_and_endpoints() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let (address, task) = echoing().await;
    fixture.endpoints("a", &[address]);
    let mut stream = upgraded(&fixture).await;
    stream.write_all(b"before\n").await.unwrap();
    assert_eq!(line(&mut stream).await, "before\n");
    fixture.apply(ListenerProtocol::Http(any_host(vec![rule("/other", "b")]))).await;
    fixture.endpoints("a", &[]);
    stream.write_all(b"after\n").await.unwrap();
    assert_eq!(line(&mut stream).await, "after\n");
    fixture.edge.retire().await;
    let mut idle = Box::pin(fixture.edge.idle());
    stream.write_all(b"retired\n").await.unwrap();
    tokio::select! {
        () = &mut idle => panic!("an open connection is no idle edge"),
        answered = line(&mut stream) => assert_eq!(answered, "retired\n"),
    }
    stream.shutdown().await.unwrap();
    assert_eq!(within(stream.read_to_string(&mut String::new())).await.unwrap(), 0);
    within(idle).await;
    task.abort();
}

#[tokio::test]
async fn an_endpoint_may_decline_to_upgrade() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let _upstream = fixture.echo("a").await;
    let sent = [("connection", "upgrade"), ("upgrade", "echo")];
    for _ in 0..2 {
        let response = fixture.send(request("GET", "/", &sent, "")).await;
        assert_eq!(response.status(), 200);
        assert!(text(&response).contains("upgrade: echo\n"));
    }
}

#[tokio::test]
async fn websockets_pass_through() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    fixture.endpoints("a", &[listener.local_addr().unwrap()]);
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        while let Some(Ok(message)) = futures::StreamExt::next(&mut socket).await {
            if message.is_text() {
                futures::SinkExt::send(&mut socket, message).await.unwrap();
            }
        }
    });
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let (mut socket, _) = within(tokio_tungstenite::client_async("ws://example.com/", stream)).await.unwrap();
    for text in ["one", "two"] {
        let message = tokio_tungstenite::tungstenite::Message::text(text);
        futures::SinkExt::send(&mut socket, message.clone()).await.unwrap();
        let answer = within(futures::StreamExt::next(&mut socket)).await.unwrap().unwrap();
        assert_eq!(answer, message);
    }
    drop(socket);
    within(serving).await.unwrap();
}
