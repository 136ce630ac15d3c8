//! The edge as a process of its own, and the server behind all proxies.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use corten_edge::{Edge, Options};
use corten_routing::{
    BackendKey, BackendRef, Configuration, Endpoint, Endpoints, HostPattern, Hosts, HttpHost, HttpRule, Listener,
    ListenerKey, ListenerOptions, ListenerProtocol, ObjectName, PathMatch, ServerCertificate, Timeouts, TlsHost,
    TlsUse, Transport,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The routes beside the one that is measured: a real edge has some.
const ROUTES: usize = 100;

fn key() -> BackendKey {
    BackendKey { namespace: "default".into(), service: "server".into(), port: 80 }
}

fn rule(prefix: &str) -> HttpRule {
    let backends: Arc<[BackendRef]> = Arc::from([BackendRef { weight: 1, key: Some(key()), filters: Arc::from([]) }]);
    HttpRule {
        route: ObjectName { kind: "HTTPRoute", namespace: "default".into(), name: prefix.into() },
        rule_name: None,
        path: PathMatch::Prefix(prefix.to_owned()),
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
        filters: Arc::from([]),
        backends,
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        grpc: false,
        grpc_method: None,
    }
}

fn listener(bind_port: u16, protocol: ListenerProtocol) -> (ListenerKey, Arc<Listener>) {
    let owner = ObjectName { kind: "Gateway", namespace: "default".into(), name: "gateway".into() };
    let key = ListenerKey { owner, port: bind_port, transport: Transport::Tcp };
    (key, Arc::new(Listener { bind_port, protocol, options: ListenerOptions::default() }))
}

/// Serves the edge: ports for plain and TLS connections, the server's port, and the files of the certificate.
pub fn edge(arguments: &[String]) {
    let [port, tls_port, backend, chain, private_key] = arguments else {
        panic!("five arguments are expected");
    };
    let number = |text: &String| text.parse::<u16>().expect("a port");
    let read = |path: &String| std::fs::read(Path::new(path)).expect("a file");
    let mut rules: Vec<HttpRule> = (0..ROUTES).map(|number| rule(&format!("/route/{number}"))).collect();
    rules.push(rule(""));
    let host = Arc::new(HttpHost::build(rules));
    let mut hosts = Hosts::default();
    hosts.insert(HostPattern::Any, host);
    let certificate = ServerCertificate { chain_pem: read(chain).into(), key_pem: read(private_key).into() };
    let terminated = TlsHost::Terminate {
        certificates: Arc::from([Arc::new(certificate)]),
        client_validation: None,
        then: TlsUse::Http(hosts.clone()),
    };
    let mut names = Hosts::default();
    names.insert(HostPattern::Any, Arc::new(terminated));
    let listeners = [
        listener(number(port), ListenerProtocol::Http(hosts)),
        listener(number(tls_port), ListenerProtocol::Tls(names)),
    ];
    let configuration = Configuration { listeners: listeners.into(), ..Configuration::default() };
    let backend = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), number(backend));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let edge = Edge::new(Options { addresses, ..Options::default() });
        let errors = edge.apply(&configuration).await;
        assert!(errors.is_empty(), "{errors:?}");
        let ready = vec![Endpoint { address: backend, node: None }];
        edge.set_endpoints(&key(), &Endpoints { ready, terminating: Vec::new() });
        std::future::pending::<()>().await;
    });
}

/// Serves short answers, and large ones on `/large`, with as little work as possible.
pub fn backend() {
    let port: u16 = std::env::var("PORT").ok().and_then(|port| port.parse().ok()).expect("a port");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("a socket");
        let small: Arc<[u8]> = answer(b"Hello, world!").into();
        let large: Arc<[u8]> = answer(&vec![b'x'; 1 << 20]).into();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let small = Arc::clone(&small);
            let large = Arc::clone(&large);
            tokio::spawn(async move {
                // A client that is gone ends its connection.
                let _ = serve(stream, &small, &large).await;
            });
        }
    });
}

fn answer(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

async fn serve(mut stream: TcpStream, small: &[u8], large: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(8192);
    loop {
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        if buffer.ends_with(b"\r\n\r\n") {
            let is_large = buffer.starts_with(b"GET /large");
            stream.write_all(if is_large { large } else { small }).await?;
            buffer.clear();
        }
    }
}
