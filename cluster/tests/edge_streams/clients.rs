//! The clients: WebSockets and gRPC streams that are held open, and requests with a connection each.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::channel::mpsc;
use futures::{SinkExt as _, StreamExt as _};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use testkit::wait;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;

use super::HOST;

/// The messages of each stream, and the requests, after every change.
const MESSAGES: usize = 3;
const REQUESTS: usize = 20;
/// The pause between two messages of a stream.
const PAUSE: Duration = Duration::from_millis(300);
/// The time within which an answer comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The streams of one connection of HTTP/2.
const STREAMS_OF_CONNECTION: usize = 20;
const MESSAGE: &[u8] = b"message\n";

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Messages = StreamBody<mpsc::Receiver<Result<Frame<Bytes>, std::convert::Infallible>>>;

/// The counts of all clients.
pub struct Traffic {
    is_stopped: AtomicBool,
    websockets: Vec<AtomicUsize>,
    grpc: Vec<AtomicUsize>,
    requests: AtomicUsize,
    certificate: Mutex<Vec<u8>>,
    failures: Mutex<Vec<String>>,
}

/// Stops the clients when it is dropped.
pub struct Stop<'a>(pub &'a Traffic);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
    }
}

impl Traffic {
    pub fn new(streams: usize) -> Traffic {
        let counts = || (0..streams).map(|_| AtomicUsize::new(0)).collect();
        Traffic {
            is_stopped: AtomicBool::new(false),
            websockets: counts(),
            grpc: counts(),
            requests: AtomicUsize::new(0),
            certificate: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap().clone()
    }

    fn is_over(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Waits until each stream has sent further messages, and none has failed.
    #[track_caller]
    pub fn goes_on(&self, when: &str) {
        let counts: Vec<(&AtomicUsize, usize)> = self
            .websockets
            .iter()
            .chain(&self.grpc)
            .map(|count| (count, MESSAGES))
            .chain([(&self.requests, REQUESTS)])
            .collect();
        let before: Vec<usize> = counts.iter().map(|(count, _)| count.load(Ordering::SeqCst)).collect();
        wait::until(when, wait::BOUND, || {
            let failures = self.failures();
            assert!(failures.is_empty(), "{when}: {} failures, {:?}", failures.len(), failures.iter().take(5));
            let late = counts.iter().zip(&before);
            let late = late.filter(|((count, more), before)| count.load(Ordering::SeqCst) - *before < *more).count();
            if late == 0 { Ok(()) } else { Err(format!("{late} streams wait")) }
        });
    }

    /// Waits until new connections show a certificate.
    pub fn until_certificate(&self, expected: &[u8]) {
        wait::until("the certificate", wait::BOUND, || match *self.certificate.lock().unwrap() == expected {
            true => Ok(()),
            false => Err("another one".to_owned()),
        });
    }
}

pub struct Clients {
    config: ClientConfig,
    address: (&'static str, u16),
}

impl Clients {
    /// Makes clients that trust these certificates.
    pub fn new(certificates: Vec<Vec<u8>>, address: (&'static str, u16)) -> Clients {
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(CertificateDer::from(certificate)).unwrap();
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Clients { config, address }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Waits for no answer: reports whether there is one.
    pub fn first_answer(&self) -> Result<(), String> {
        let traffic = Traffic::new(0);
        Clients::runtime().block_on(self.request(&traffic)).map_err(|error| error.to_string())
    }

    /// Runs all clients until the traffic is over.
    pub fn run(&self, traffic: &Traffic) {
        Clients::runtime().block_on(async {
            let websockets = futures::future::join_all(traffic.websockets.iter().map(|count| async move {
                let outcome = self.websocket(traffic, count).await;
                note(traffic, "a WebSocket", outcome);
            }));
            let grpc = futures::future::join_all(traffic.grpc.chunks(STREAMS_OF_CONNECTION).map(|counts| async move {
                let outcome = self.grpc(traffic, counts).await;
                note(traffic, "a connection of HTTP/2", outcome);
            }));
            let requests = async {
                while !traffic.is_over() {
                    let outcome = self.request(traffic).await;
                    note(traffic, "a request", outcome);
                }
            };
            futures::join!(websockets, grpc, requests);
        });
    }

    async fn connect(&self, protocol: &[u8], host: &str) -> Result<TlsStream<TcpStream>, Failure> {
        let mut config = self.config.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        let stream = TcpStream::connect(self.address).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        Ok(connector.connect(ServerName::try_from(host.to_owned())?, stream).await?)
    }

    /// Sends a request over a connection of its own.
    async fn request(&self, traffic: &Traffic) -> Result<(), Failure> {
        let exchange = async {
            let mut stream = self.connect(b"http/1.1", HOST).await?;
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).map(|one| one.to_vec());
            let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            if !answer.starts_with("HTTP/1.1 200 ") || !answer.ends_with("\r\n\r\nweb") {
                return Err(answer.into());
            }
            *traffic.certificate.lock().unwrap() = shown.unwrap_or_default();
            traffic.requests.fetch_add(1, Ordering::SeqCst);
            Ok::<(), Failure>(())
        };
        tokio::time::timeout(PATIENCE, exchange).await?
    }

    /// Holds a WebSocket open, and sends messages that come back.
    async fn websocket(&self, traffic: &Traffic, count: &AtomicUsize) -> Result<(), Failure> {
        let mut stream = BufReader::new(self.connect(b"http/1.1", HOST).await?);
        let request = format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 2 {}
        if !line.starts_with("HTTP/1.1 101 ") {
            return Err(line.into());
        }
        while !traffic.is_over() {
            stream.write_all(MESSAGE).await?;
            let mut echoed = [0; MESSAGE.len()];
            tokio::time::timeout(PATIENCE, stream.read_exact(&mut echoed)).await??;
            if echoed != MESSAGE {
                return Err("another message".into());
            }
            count.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Holds streams of one connection open.
    async fn grpc(&self, traffic: &Traffic, counts: &[AtomicUsize]) -> Result<(), Failure> {
        // The certificates name the host alone, and the listener has no host of its own.
        let stream = self.connect(b"h2", HOST).await?;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(connection);
        let streams = counts.iter().map(|count| hold(traffic, count, sender.clone()));
        futures::future::try_join_all(streams).await.map(drop)
    }
}

/// Holds one stream open, and sends messages that come back.
async fn hold(traffic: &Traffic, count: &AtomicUsize, mut sender: SendRequest<Messages>) -> Result<(), Failure> {
    let (mut messages, body) = mpsc::channel(1);
    let request = Request::post(format!("https://grpc.{HOST}/echo.Echo/Hold"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(body))?;
    messages.send(Ok(Frame::data(Bytes::from_static(MESSAGE)))).await?;
    sender.ready().await?;
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request)).await??;
    if response.status() != StatusCode::OK {
        return Err(response.status().to_string().into());
    }
    let mut body = response.into_body().into_data_stream();
    while !traffic.is_over() {
        let mut left = MESSAGE.len();
        while left > 0 {
            let data = tokio::time::timeout(PATIENCE, body.next()).await?;
            let data = data.ok_or("the stream was closed")??;
            left = left.checked_sub(data.len()).ok_or("too long a message")?;
        }
        count.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(PAUSE).await;
        messages.send(Ok(Frame::data(Bytes::from_static(MESSAGE)))).await?;
    }
    Ok(())
}

fn note(traffic: &Traffic, client: &str, outcome: Result<(), Failure>) {
    if let Err(error) = outcome {
        traffic.failures.lock().unwrap().push(format!("{client}: {error}"));
    }
}
