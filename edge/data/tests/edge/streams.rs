//! Tests of TCP, UDP and the PROXY protocol.

use crate::fixture::*;
use corten_edge::Options;
use corten_routing::{Backend, BackendProtocol, BackendRef, ListenerOptions, ListenerProtocol, ProxyVersion};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Starts a server that answers everything that it read, after its own name, when the client has closed its side.
async fn answering(name: &'static str) -> Upstream {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    Upstream::from_task(address, async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut read = Vec::new();
                stream.read_to_end(&mut read).await.unwrap();
                stream.write_all(name.as_bytes()).await.unwrap();
                stream.write_all(&read).await.unwrap();
            });
        }
    })
}

async fn exchanged(address: SocketAddr, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    answer
}

#[tokio::test]
async fn tcp_passes_through_with_half_closed_connections() {
    let fixture = Fixture::new(ListenerProtocol::Tcp(Arc::from([reference("a")]))).await;
    let upstream = answering("a:").await;
    let closed = TcpListener::bind((LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    fixture.endpoints("a", &[closed, upstream.address]);
    let long = vec![b'x'; 1 << 20];
    for _ in 0..5 {
        assert_eq!(exchanged(fixture.address, b"text").await, b"a:text");
    }
    assert_eq!(exchanged(fixture.address, &long).await.len(), 2 + long.len());
}

#[tokio::test]
async fn tcp_without_a_backend_is_closed() {
    let invalid = BackendRef { weight: 1, key: None, filters: Arc::from([]) };
    for backends in [vec![invalid], vec![reference("none")], vec![]] {
        let fixture = Fixture::new(ListenerProtocol::Tcp(backends.into())).await;
        assert_eq!(exchanged(fixture.address, b"text").await, b"");
    }
}

#[tokio::test]
async fn the_proxy_protocol_is_read_from_trusted_proxies_and_written_to_backends() {
    for (version, trusted) in [(ProxyVersion::V1, "127.0.0.1"), (ProxyVersion::V1, "192.0.2.0/24")] {
        let options = ListenerOptions {
            trusted_proxies: Arc::from([trusted.parse().unwrap()]),
            proxy_protocol: true,
            ..ListenerOptions::default()
        };
        let protocol = ListenerProtocol::Tcp(Arc::from([reference("a")]));
        let mut fixture = Fixture::with(protocol, options, Options::default()).await;
        let backend = Backend { proxy_protocol: Some(version), ..Backend::plain(BackendProtocol::Http1) };
        fixture.configuration.backends.insert(key("a"), Arc::new(backend));
        fixture.reapply().await;
        let upstream = answering("").await;
        fixture.endpoints("a", &[upstream.address]);
        let sent = b"PROXY TCP4 203.0.113.7 203.0.113.8 1234 443\r\ntext";
        let seen = String::from_utf8(exchanged(fixture.address, sent).await).unwrap();
        if trusted == "127.0.0.1" {
            assert_eq!(seen, "PROXY TCP4 203.0.113.7 203.0.113.8 1234 443\r\ntext");
        } else {
            assert!(seen.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "), "{seen}");
            assert!(seen.ends_with("\r\nPROXY TCP4 203.0.113.7 203.0.113.8 1234 443\r\ntext"), "{seen}");
        }
    }
}

/// Starts a server that answers each head with the bytes that it read since the last answer.
async fn head_echo() -> Upstream {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    Upstream::from_task(address, async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut read = Vec::new();
                while stream.read_buf(&mut read).await.is_ok_and(|length| length > 0) {
                    if read.ends_with(b"\r\n\r\n") {
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", read.len());
                        stream.write_all(&[head.as_bytes(), &read].concat()).await.unwrap();
                        read.clear();
                    }
                }
            });
        }
    })
}

#[tokio::test]
async fn every_request_to_a_backend_with_the_proxy_protocol_has_its_own_connection() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let backend = Backend { proxy_protocol: Some(ProxyVersion::V1), ..Backend::plain(BackendProtocol::Http1) };
    fixture.backend("a", backend).await;
    let upstream = head_echo().await;
    fixture.endpoints("a", &[upstream.address]);
    for _ in 0..3 {
        let seen = text(&fixture.get("/").await);
        assert!(seen.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 ") && seen.contains("\r\nGET / "), "{seen}");
    }
}

#[tokio::test]
async fn a_trusted_proxy_must_send_its_header() {
    let options = ListenerOptions {
        trusted_proxies: Arc::from(["127.0.0.1".parse().unwrap()]),
        proxy_protocol: true,
        ..ListenerOptions::default()
    };
    let protocol = ListenerProtocol::Http(any_host(vec![rule("/", "a")]));
    let fixture = Fixture::with(protocol, options, Options::default()).await;
    let _upstream = fixture.echo("a").await;
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_eq!(fixture.raw(request.as_bytes()).await, "");
    let told = format!("PROXY TCP4 203.0.113.7 203.0.113.8 1234 443\r\n{request}");
    let seen = fixture.raw(told.as_bytes()).await;
    assert!(seen.contains("x-forwarded-for: 203.0.113.7\n"), "{seen}");
}

/// Starts a UDP server that answers with its name and the datagram.
async fn udp_echo(name: &'static str) -> Upstream {
    let socket = UdpSocket::bind((LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    Upstream::from_task(address, async move {
        let mut buffer = [0; 2048];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            let answer = [name.as_bytes(), &buffer[..length]].concat();
            socket.send_to(&answer, client).await.unwrap();
        }
    })
}

/// Sends a datagram until it is answered.
async fn asked(socket: &UdpSocket, question: &str) -> String {
    let mut buffer = [0; 2048];
    within(async {
        loop {
            socket.send(question.as_bytes()).await.unwrap();
            let answer = tokio::time::timeout(std::time::Duration::from_millis(200), socket.recv(&mut buffer)).await;
            if let Ok(Ok(length)) = answer {
                return String::from_utf8_lossy(&buffer[..length]).into_owned();
            }
        }
    })
    .await
}

async fn udp_client(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((LOCALHOST, 0)).await.unwrap();
    socket.connect(address).await.unwrap();
    socket
}

#[tokio::test]
async fn datagrams_of_a_client_go_to_one_endpoint_until_it_leaves() {
    let fixture = Fixture::new(ListenerProtocol::Udp(Arc::from([reference("a")]))).await;
    let first = udp_echo("first:").await;
    let second = udp_echo("second:").await;
    fixture.endpoints("a", &[first.address, second.address]);
    let client = udp_client(fixture.address).await;
    let name = asked(&client, "x").await;
    for _ in 0..10 {
        assert_eq!(asked(&client, "x").await, name);
    }
    let (left, other) = if name == "first:x" { (second.address, "second:y") } else { (first.address, "first:y") };
    fixture.endpoints("a", &[left]);
    assert_eq!(asked(&client, "y").await, other);
}

#[tokio::test]
async fn sessions_of_udp_are_bounded_and_clients_beyond_the_bound_are_served() {
    let protocol = ListenerProtocol::Udp(Arc::from([reference("a")]));
    let options = Options { connections: 2, ..Options::default() };
    let fixture = Fixture::with(protocol, ListenerOptions::default(), options).await;
    let upstream = udp_echo("").await;
    fixture.endpoints("a", &[upstream.address]);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let client = udp_client(fixture.address).await;
        assert_eq!(asked(&client, "question").await, "question");
        clients.push(client);
    }
    assert_eq!(asked(&clients[0], "again").await, "again");
}
