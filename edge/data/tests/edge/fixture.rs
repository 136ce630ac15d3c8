//! An edge on a free port of loopback, endpoints that echo, and clients.

use bytes::Bytes;
use corten_edge::{Edge, Options};
use corten_routing::{
    Backend, BackendKey, BackendProtocol, BackendRef, Configuration, Endpoint, Endpoints, Filter, HostPattern, Hosts,
    HttpHost, HttpRule, Listener, ListenerKey, ListenerOptions, ListenerProtocol, ObjectName, PathMatch, Timeouts,
    Transport,
};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener, UdpSocket as StdUdp};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The longest time that a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("the test waited for too long")
}

/// Waits until a condition holds.
pub async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    within(async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub fn key(service: &str) -> BackendKey {
    BackendKey { namespace: "default".into(), service: service.into(), port: 80 }
}

pub fn reference(service: &str) -> BackendRef {
    BackendRef { weight: 1, key: Some(key(service)), filters: Arc::from([]) }
}

pub fn route_name(name: &str) -> ObjectName {
    ObjectName { kind: "HTTPRoute", namespace: "default".into(), name: name.into() }
}

/// Returns a rule of a prefix to a Service.
pub fn rule(prefix: &str, service: &str) -> HttpRule {
    HttpRule {
        route: route_name(service),
        rule_name: None,
        path: PathMatch::Prefix(prefix.trim_end_matches('/').to_owned()),
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
        filters: Arc::from([]),
        backends: Arc::from([reference(service)]),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        grpc: false,
        grpc_method: None,
    }
}

pub fn filtered(prefix: &str, service: &str, filters: impl Into<Arc<[Filter]>>) -> HttpRule {
    HttpRule { filters: filters.into(), ..rule(prefix, service) }
}

pub fn any_host(rules: Vec<HttpRule>) -> Hosts<Arc<HttpHost>> {
    let mut hosts = Hosts::default();
    hosts.insert(HostPattern::Any, Arc::new(HttpHost::build(rules)));
    hosts
}

/// An edge with one TCP socket and one UDP socket of the same number on loopback.
pub struct Fixture {
    pub edge: Edge,
    pub address: SocketAddr,
    pub configuration: Configuration,
}

/// Returns a free port with its sockets of TCP and UDP: no other process can take it before the edge does.
fn sockets() -> (u16, Vec<OwnedFd>) {
    loop {
        let tcp = StdListener::bind((LOCALHOST, 0)).unwrap();
        let port = tcp.local_addr().unwrap().port();
        if let Ok(udp) = StdUdp::bind((LOCALHOST, port)) {
            return (port, vec![tcp.into(), udp.into()]);
        }
    }
}

impl Fixture {
    pub async fn new(protocol: ListenerProtocol) -> Fixture {
        Fixture::with(protocol, ListenerOptions::default(), Options::default()).await
    }

    pub async fn with(protocol: ListenerProtocol, listener: ListenerOptions, options: Options) -> Fixture {
        let (port, inherited) = sockets();
        let edge = Edge::new(Options { addresses: vec![LOCALHOST], inherited, ..options });
        let mut fixture =
            Fixture { edge, address: SocketAddr::new(LOCALHOST, port), configuration: Configuration::default() };
        fixture.apply_with(protocol, listener).await;
        fixture
    }

    /// Returns an edge that serves rules for every host.
    pub async fn http(rules: Vec<HttpRule>) -> Fixture {
        Fixture::new(ListenerProtocol::Http(any_host(rules))).await
    }

    pub fn listener_key(&self, transport: Transport) -> ListenerKey {
        let owner = ObjectName { kind: "Gateway", namespace: "default".into(), name: "gateway".into() };
        ListenerKey { owner, port: 8080, transport }
    }

    pub async fn apply(&mut self, protocol: ListenerProtocol) {
        self.apply_with(protocol, ListenerOptions::default()).await;
    }

    pub async fn apply_with(&mut self, protocol: ListenerProtocol, options: ListenerOptions) {
        let transport = if matches!(protocol, ListenerProtocol::Udp(_)) { Transport::Udp } else { Transport::Tcp };
        let listener = Listener { bind_port: self.address.port(), protocol, options };
        self.configuration.listeners = [(self.listener_key(transport), Arc::new(listener))].into();
        self.reapply().await;
    }

    pub async fn reapply(&self) {
        let errors = self.edge.apply(&self.configuration).await;
        assert!(errors.is_empty(), "{errors:?}");
    }

    pub async fn backend(&mut self, service: &str, backend: Backend) {
        self.configuration.backends.insert(key(service), Arc::new(backend));
        self.reapply().await;
    }

    pub fn endpoints(&self, service: &str, addresses: &[SocketAddr]) {
        let ready = addresses.iter().map(|address| Endpoint { address: *address, node: None }).collect();
        self.edge.set_endpoints(&key(service), &Endpoints { ready, terminating: Vec::new() });
    }

    /// Starts an echoing endpoint for a Service.
    pub async fn echo(&self, service: &str) -> Upstream {
        let upstream = Upstream::echo(service).await;
        self.endpoints(service, &[upstream.address]);
        upstream
    }

    /// Sends a request over HTTP/1.1.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Response<Bytes> {
        within(send_http1(TcpStream::connect(self.address).await.unwrap(), request)).await
    }

    pub async fn get(&self, path: &str) -> Response<Bytes> {
        self.send(get(path)).await
    }

    /// Sends bytes and returns everything that comes back until the edge closes.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is an end too.
        let _ = within(stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

pub fn get(path: &str) -> Request<Full<Bytes>> {
    Request::builder().uri(path).header("host", "example.com").body(Full::default()).unwrap()
}

pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        builder = builder.header("host", "example.com");
    }
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::from(body.to_owned())).unwrap()
}

pub async fn send_http1<S>(stream: S, request: Request<Full<Bytes>>) -> Response<Bytes>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driving = tokio::spawn(connection);
    let response = sender.send_request(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    drop(sender);
    driving.abort();
    Response::from_parts(parts, bytes)
}

pub type Http2Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

pub async fn http2<S>(stream: S) -> Http2Sender
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

pub fn text(response: &Response<Bytes>) -> String {
    String::from_utf8_lossy(response.body()).into_owned()
}

/// A server that counts.
pub struct Upstream {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upstream {
    /// Starts a server that answers every request with its own name, and the head and body of the request.
    pub async fn echo(name: &str) -> Upstream {
        let name = name.to_owned();
        Upstream::start(move |request| {
            let name = name.clone();
            async move { echo(&name, request).await }
        })
        .await
    }

    pub async fn start<F, R>(handler: F) -> Upstream
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = (Arc::clone(&connections), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.0.fetch_add(1, Ordering::SeqCst);
                let requests = Arc::clone(&counted.1);
                let handler = handler.clone();
                let service = service_fn(move |request| {
                    requests.fetch_add(1, Ordering::SeqCst);
                    let answer = handler(request);
                    async move { Ok::<_, std::convert::Infallible>(answer.await) }
                });
                tokio::spawn(async move {
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Upstream { address, connections, requests, task }
    }

    /// Wraps a server that runs as a task.
    pub fn from_task(address: SocketAddr, task: impl Future<Output = ()> + Send + 'static) -> Upstream {
        Upstream { address, connections: Arc::default(), requests: Arc::default(), task: tokio::spawn(task) }
    }

    pub fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Answers with lines: the server's name, the request line, its headers, and the body.
pub async fn echo(name: &str, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let collected = body.collect().await;
    let mut lines = vec![name.to_owned(), format!("{} {} {:?}", parts.method, parts.uri, parts.version)];
    for (name, value) in &parts.headers {
        lines.push(format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
    }
    lines.push(String::new());
    if let Ok(collected) = collected {
        lines.push(String::from_utf8_lossy(&collected.to_bytes()).into_owned());
    }
    Response::builder().header("x-served-by", name).body(Full::from(lines.join("\n"))).unwrap()
}

pub fn plain(protocol: BackendProtocol) -> Backend {
    Backend::plain(protocol)
}
