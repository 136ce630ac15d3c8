//! The kubelet's API over TLS: authorization, logs, and streams that are joined to the runtime's.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use corten_kubelet::Tls;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Fixture, condition, eventually, one};

/// A CA, the node's serving certificate, and client certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn tls(&self) -> Tls {
        let (certificate, key) = self.issue("n1");
        Tls { certificate: certificate.pem(), key: key.serialize_pem(), client_ca: self.certificate.pem() }
    }

    /// Connects to the kubelet's API, with a client certificate of that name if one is given.
    async fn dial(&self, address: SocketAddr, user: Option<&str>) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match user {
            None => builder.with_no_client_auth(),
            Some(user) => {
                let (certificate, key) = self.issue(user);
                let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// Sends one GET; returns the response as text.
    async fn get(&self, address: SocketAddr, user: Option<&str>, path: &str) -> String {
        let mut stream = self.dial(address, user).await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
}

const API_SERVER: Option<&str> = Some("kube-apiserver-kubelet-client");

/// Returns a loopback address that no other test and no other run has: a free port that was only searched for may be in
/// use before the kubelet listens.
fn own_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 128 | high, middle, low], 10250 + u16::from(NEXT.fetch_add(1, Ordering::Relaxed))))
}

async fn node_with_pod() -> (Fixture, Authority, SocketAddr) {
    let authority = Authority::new();
    let address = own_address();
    let tls = authority.tls();
    let fixture = Fixture::start_with(|config| {
        config.listen = address;
        config.tls = Some(tokio::sync::watch::channel(tls).1);
    })
    .await;
    fixture.create_pod("p", one("present"));
    fixture.pod("p", "it runs", |status| condition(status, "Ready") == "True").await;
    let listening = || std::net::TcpStream::connect(address).ok();
    eventually("the node API listens", listening, String::new).await;
    (fixture, authority, address)
}

#[tokio::test]
async fn only_the_api_server_and_the_allowed_may_call() {
    let (_fixture, authority, address) = node_with_pod().await;
    assert!(authority.get(address, None, "/healthz").await.starts_with("HTTP/1.1 401"));
    assert!(authority.get(address, API_SERVER, "/healthz").await.starts_with("HTTP/1.1 200"));
    let stranger = authority.get(address, Some("system:node:n2"), "/containerLogs/ns/p/main").await;
    assert!(stranger.starts_with("HTTP/1.1 403"), "{stranger}");
    assert!(authority.get(address, API_SERVER, "/pods").await.contains("\"name\":\"p\""));
    assert!(authority.get(address, API_SERVER, "/nothing").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn logs_are_read_and_followed_to_the_end_of_the_container() {
    let (fixture, authority, address) = node_with_pod().await;
    let all = authority.get(address, API_SERVER, "/containerLogs/ns/p/main").await;
    assert!(all.starts_with("HTTP/1.1 200") && all.contains("hello"), "{all}");
    let absent = authority.get(address, API_SERVER, "/containerLogs/ns/none/main").await;
    assert!(absent.starts_with("HTTP/1.1 404") && absent.contains("pod \"none\" not found"), "{absent}");

    let mut stream = authority.dial(address, API_SERVER).await;
    stream
        .write_all(b"GET /containerLogs/ns/p/main?follow=true HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut stream, "hello").await;
    let log = fixture.root.path().join("log/pods/ns_p_uid-p/main/0.log");
    let mut log = std::fs::OpenOptions::new().append(true).open(log).unwrap();
    log.write_all(b"2026-01-01T00:00:01Z stdout F more\n").unwrap();
    read_until(&mut stream, "more").await;
    fixture.delete_pod("p", 1);
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(super::BOUND, stream.read_to_end(&mut rest)).await.expect("following ends");
}

#[tokio::test]
async fn exec_is_joined_to_the_runtime_byte_for_byte() {
    let (fixture, authority, address) = node_with_pod().await;
    let runtime = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/exec/once", runtime.local_addr().unwrap());
    fixture.cri.with(|inner| inner.streaming_url = url);
    let server = tokio::spawn(async move {
        let (mut stream, _) = runtime.accept().await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n").await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        head
    });
    let mut stream = authority.dial(address, API_SERVER).await;
    let request = "POST /exec/ns/p/main?command=sh&command=-c&input=1&output=1&tty=1 HTTP/1.1\r\nhost: n1\r\n\
        connection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    stream.write_all(b"ping").await.unwrap();
    read_until(&mut stream, "ping").await;
    drop(stream);
    let head = server.await.unwrap();
    assert!(head.starts_with("POST /exec/once") && head.contains("v4.channel.k8s.io"), "{head}");
    assert!(fixture.cri.calls().iter().any(|call| call.contains("sh -c stdin=true tty=true")));
    let unknown = authority.get(address, API_SERVER, "/exec/ns/p/none?command=sh").await;
    assert!(unknown.contains("container not found (\"none\")"), "{unknown}");
    assert_eq!(json!(fixture.status("p")["phase"]), "Running");
}

async fn read_until(stream: &mut (impl tokio::io::AsyncRead + Unpin), wanted: &str) -> String {
    let read = async {
        let mut text = String::new();
        let mut buffer = [0; 1024];
        while !text.contains(wanted) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "ended before {wanted:?}: {text}");
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        text
    };
    tokio::time::timeout(super::BOUND, read).await.unwrap_or_else(|_| panic!("never: {wanted:?}"))
}
