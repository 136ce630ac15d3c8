//! Tests of the client over real TLS: certificates on both sides, one HTTP/2 connection, watches frame by frame,
//! tokens.

#![allow(clippy::unwrap_used)] // A test fails by panicking.

use bytes::Bytes;
use corten_client::{Client, Error, HttpsConfig, Kubeconfig, Pem, Resource, WatchEvent};
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::PrivateKeyDer;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio_rustls::TlsAcceptor;

type ResponseBody = BoxBody<Bytes, Infallible>;

/// A server that answers with the request it received, and its keys.
struct Server {
    address: String,
    ca: String,
    client_certificate: String,
    client_key: String,
    connections: Arc<AtomicUsize>,
    /// The lines for watching clients.
    lines: broadcast::Sender<String>,
    /// Receives a message for every watch that starts.
    watching: mpsc::UnboundedReceiver<()>,
    /// Closes every connection when sent to.
    hang_up: broadcast::Sender<()>,
    refusals: Refusals,
}

/// The frames by which the next connections answer their first request instead of serving it.
type Refusals = Arc<Mutex<VecDeque<Vec<u8>>>>;

impl Server {
    async fn start() -> Server {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let leaf = |names: &[&str], usage: ExtendedKeyUsagePurpose| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &issuer).unwrap(), key)
        };
        let (certificate, key) = leaf(&["127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth);
        let (client_certificate, client_key) = leaf(&["me"], ExtendedKeyUsagePurpose::ClientAuth);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .unwrap();
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (lines, _) = broadcast::channel(16);
        let (hang_up, _) = broadcast::channel(1);
        let (watch_started, watching) = mpsc::unbounded_channel();
        let server = Server {
            address: format!("https://{}", listener.local_addr().unwrap()),
            ca: issuer.pem(),
            client_certificate: client_certificate.pem(),
            client_key: client_key.serialize_pem(),
            connections: Arc::default(),
            lines: lines.clone(),
            watching,
            hang_up: hang_up.clone(),
            refusals: Refusals::default(),
        };
        let context = Context {
            lines,
            watch_started,
            hang_up,
            connections: server.connections.clone(),
            refusals: server.refusals.clone(),
        };
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), context));
        server
    }

    fn config(&self) -> HttpsConfig {
        HttpsConfig { server: self.address.clone(), ca: Some(self.ca.as_str().into()), ..HttpsConfig::default() }
    }
}

#[derive(Clone)]
struct Context {
    lines: broadcast::Sender<String>,
    watch_started: mpsc::UnboundedSender<()>,
    hang_up: broadcast::Sender<()>,
    connections: Arc<AtomicUsize>,
    refusals: Refusals,
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, context: Context) {
    while let Ok((stream, _)) = listener.accept().await {
        let acceptor = acceptor.clone();
        let context = context.clone();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            context.connections.fetch_add(1, Ordering::SeqCst);
            let refusal = context.refusals.lock().unwrap().pop_front();
            if let Some(frames) = refusal {
                return refuse(stream, &frames).await;
            }
            let certified = stream.get_ref().1.peer_certificates().is_some();
            let mut hang_up = context.hang_up.subscribe();
            let service = hyper::service::service_fn(move |request| answer(request, certified, context.clone()));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = connection => {}
                _ = hang_up.recv() => {}
            }
        });
    }
}

/// Answers the first request by frames, and closes the connection.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, frames: &[u8]) {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const HEADERS: u8 = 1;
    stream.write_all(&SETTINGS).await.unwrap();
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    let mut header = [0; 9];
    while stream.read_exact(&mut header).await.is_ok() {
        let mut payload = vec![0; usize::from(header[1]) << 8 | usize::from(header[2])];
        stream.read_exact(&mut payload).await.unwrap();
        if header[3] == HEADERS {
            stream.write_all(frames).await.unwrap();
            stream.shutdown().await.unwrap();
            return;
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    certified: bool,
    context: Context,
) -> Result<Response<ResponseBody>, Infallible> {
    if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
        let lines = context.lines.subscribe();
        let _ = context.watch_started.send(());
        let frames = futures::stream::unfold(lines, |mut lines| async move {
            let line: String = lines.recv().await.ok()?;
            Some((Ok(Frame::data(Bytes::from(line))), lines))
        });
        return Ok(Response::new(BodyExt::boxed(StreamBody::new(frames))));
    }
    let header = |name: &str| request.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let heard = serde_json::json!({
        "path": request.uri().path(), "certified": certified,
        "authorization": header("authorization"), "agent": header("user-agent"),
    });
    let status = if request.uri().path() == "/missing" { 404 } else { 200 };
    let body = BodyExt::boxed(Full::new(Bytes::from(heard.to_string())));
    Ok(Response::builder().status(status).body(body).unwrap())
}

async fn heard(client: &Client, path: &str) -> serde_json::Value {
    serde_json::from_slice(&client.get_raw(path).await.unwrap()).unwrap()
}

#[tokio::test]
async fn one_connection_serves_many_requests_and_is_made_again() {
    let server = Server::start().await;
    let mut config = server.config();
    config.client_certificate = Some(server.client_certificate.as_str().into());
    config.client_key = Some(server.client_key.as_str().into());
    let client = Client::https(config).unwrap().with_user_agent("kube-scheduler/v1.36.0");
    let answers = futures::future::join_all((0..20).map(|_| heard(&client, "/version"))).await;
    assert!(answers.iter().all(|a| a["certified"] == true && a["agent"] == "kube-scheduler/v1.36.0"), "{answers:?}");
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    let missing = client.get_raw("/missing").await.unwrap_err();
    assert!(missing.is_not_found(), "{missing}");

    server.hang_up.send(()).unwrap();
    // A request in flight when the connection broke may fail; the next one must not.
    if client.get_raw("/version").await.is_err() {
        heard(&client, "/version").await;
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_request_that_the_server_did_not_process_goes_out_again() {
    let goaway = |last: u8, code: u8| vec![0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, code];
    let reset = |code: u8| vec![0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, code];
    let cases = [
        ("no stream is taken", goaway(0, 0), true),
        ("the stream is refused", reset(7), true),
        ("the stream is cancelled", reset(8), false),
        ("the connection fails", goaway(0, 2), false),
    ];
    for (name, frames, goes_out_again) in cases {
        let server = Server::start().await;
        server.refusals.lock().unwrap().push_back(frames);
        let client = Client::https(server.config()).unwrap();
        let answer = client.get_raw("/version").await;
        assert_eq!(answer.is_ok(), goes_out_again, "{name}: {answer:?}");
        assert_eq!(server.connections.load(Ordering::SeqCst), 1 + usize::from(goes_out_again), "{name}");
    }
}

#[tokio::test]
async fn watches_arrive_frame_by_frame() {
    let mut server = Server::start().await;
    let client = Client::https(server.config()).unwrap();
    let pods = client.dynamic(&Resource::new("", "v1", "pods", true));
    let mut events = pods.watch("", &Default::default()).await.unwrap();
    server.watching.recv().await.unwrap();
    for revision in [5, 6] {
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"resourceVersion":"{revision}","name":"web","namespace":"a"}}}}"#
        );
        server.lines.send(format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n")).unwrap();
        let event = tokio::time::timeout(Duration::from_secs(300), events.next()).await.unwrap().unwrap().unwrap();
        let WatchEvent::Modified(found) = event else { panic!("{event:?}") };
        assert_eq!((found.revision, found.key().to_string()), (revision, "a/web".to_owned()));
        assert_eq!(found.wire(), object.as_bytes());
    }
    server.hang_up.send(()).unwrap();
    let end = tokio::time::timeout(Duration::from_secs(300), events.next()).await.unwrap();
    assert!(matches!(end, None | Some(Err(Error::Transport(_)))), "{end:?}");
}

#[tokio::test]
async fn tokens_come_from_strings_or_files() {
    let server = Server::start().await;
    let token = Client::https(HttpsConfig { token: Some("abc".into()), ..server.config() }).unwrap();
    let answer = heard(&token, "/x").await;
    assert_eq!((&answer["authorization"], &answer["certified"]), (&"Bearer abc".into(), &false.into()));

    let path = std::env::temp_dir().join(format!("token-{}", uuid::Uuid::new_v4()));
    std::fs::write(&path, "from-file\n").unwrap();
    let client = Client::https(HttpsConfig { token_file: Some(path.clone()), ..server.config() }).unwrap();
    assert_eq!(heard(&client, "/x").await["authorization"], "Bearer from-file");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(heard(&client, "/x").await["authorization"], "Bearer from-file", "the last one read is kept");
}

#[tokio::test]
async fn a_kubeconfig_is_enough() {
    let server = Server::start().await;
    let mut kubeconfig = Kubeconfig::default();
    kubeconfig.set_cluster("c", &server.address, server.ca.as_bytes());
    kubeconfig.set_user_certificate("u", server.client_certificate.as_bytes(), server.client_key.as_bytes());
    kubeconfig.set_context("x", "c", "u", "");
    kubeconfig.set_current_context("x");
    let directory = std::env::temp_dir().join(format!("client-{}", uuid::Uuid::new_v4()));
    let path = directory.join("config");
    kubeconfig.write(&path).unwrap();
    let client = Client::from_kubeconfig(&path, None).unwrap();
    assert_eq!(heard(&client, "/x").await["certified"], true);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn unknown_peers_are_refused() {
    let server = Server::start().await;
    let other = Server::start().await;
    let config = HttpsConfig { ca: Some(Pem::from(other.ca.as_str())), ..server.config() };
    let error = Client::https(config.clone()).unwrap().get_raw("/x").await.unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "{error:?}");
    let insecure = HttpsConfig { insecure_skip_tls_verify: true, ca: None, ..config };
    assert_eq!(heard(&Client::https(insecure).unwrap(), "/x").await["path"], "/x");
    assert!(Client::https(HttpsConfig { ca: None, ..server.config() }).is_err());
    assert!(Client::https(HttpsConfig { server: "ftp://x".into(), ..server.config() }).is_err());
    let unreachable = HttpsConfig { server: "https://127.0.0.1:1".into(), ..server.config() };
    assert!(matches!(Client::https(unreachable).unwrap().get_raw("/x").await, Err(Error::Transport(_))));
}
