//! Requests that a kubelet answers, against a kubelet that is only a TLS server: bytes must pass as they are.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use corten_apiserver::{Body, Config, KubeletClient, Server, User};
use futures::TryStreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::from_ca_cert_pem(&pem, key).unwrap(), pem }
    }

    fn issue(&self, name: &str, group: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// The kubelet's stats of its pods.
static SUMMARY: std::sync::Mutex<String> = std::sync::Mutex::new(String::new());

/// Starts a kubelet that responds with the request it got, and echoes upgraded connections in capitals.
async fn kubelet(ca: &Authority) -> u16 {
    let (certificate, key) = ca.issue("system:node:n1", "system:nodes");
    let tls = corten_apiserver::tls_config(&certificate, &key, &ca.pem).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.unwrap();
                assert!(stream.get_ref().1.peer_certificates().is_some(), "the server must show its certificate");
                let service = hyper::service::service_fn(answer);
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                let _ = connection.with_upgrades().await;
            });
        }
    });
    port
}

async fn answer(
    mut request: Request<hyper::body::Incoming>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let mut response = Response::new(Full::new(Bytes::from(request.uri().to_string())));
    if request.uri() == "/stats/summary?only_cpu_and_memory=true" {
        *response.body_mut() = Full::new(SUMMARY.lock().unwrap().clone().into());
        return Ok(response);
    }
    if request.headers().contains_key("authorization") {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(response);
    }
    if let Some(protocol) = request.headers().get("upgrade").cloned() {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 5];
            stream.read_exact(&mut buffer).await.unwrap();
            stream.write_all(&buffer.to_ascii_uppercase()).await.unwrap();
        });
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.body_mut() = Full::default();
        response.headers_mut().insert("upgrade", protocol);
        response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
    }
    Ok(response)
}

struct Cluster {
    server: Arc<Server>,
    ca: Authority,
    _directory: tempfile::TempDir,
}

async fn cluster() -> Cluster {
    let ca = Authority::new();
    let port = kubelet(&ca).await;
    let (certificate, key) = ca.issue("kube-apiserver-kubelet-client", "");
    let config = Config {
        client_ca: ca.pem.clone(),
        kubelet: Some(KubeletClient { ca: ca.pem.clone(), retired: None, certificate, key }),
        ..Config::default()
    };
    let directory = tempfile::tempdir().unwrap();
    let store = corten_store::Embedded::open(corten_store::Config::new(directory.path())).unwrap();
    let server = Server::new(config, store).await.unwrap();
    let namespace = "/api/v1/namespaces/default";
    let container = |name: &str| json!({ "name": name, "image": "i" });
    for (path, object) in [
        (format!("{namespace}/serviceaccounts"), json!({ "metadata": { "name": "default" } })),
        ("/api/v1/nodes".to_owned(), json!({ "metadata": { "name": "n1" } })),
        (
            format!("{namespace}/pods"),
            json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "n1", "containers": [container("c")] } }),
        ),
        (
            format!("{namespace}/pods"),
            json!({ "metadata": { "name": "two" }, "spec": { "nodeName": "n1", "containers": [container("a"), container("b")] } }),
        ),
    ] {
        assert_eq!(call(&server, "POST", &path, object).await.0, 201, "{path}");
    }
    let status = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
        "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
        "daemonEndpoints": { "kubeletEndpoint": { "Port": port } } } });
    assert_eq!(call(&server, "PUT", "/api/v1/nodes/n1/status", status).await.0, 200);
    Cluster { server, ca, _directory: directory }
}

/// Sends one request as the administrator: returns code and body.
async fn call(server: &Arc<Server>, method: &str, path: &str, body: Value) -> (u16, String) {
    let admin = server.in_process(User::new("admin", &["system:masters"]));
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let reply = admin.call(request.body(body).unwrap()).await;
    let code = reply.status().as_u16();
    let bytes: Vec<u8> = match reply.into_body() {
        Body::Full(bytes) => bytes.to_vec(),
        Body::Stream(stream) => stream.try_collect::<Vec<Bytes>>().await.unwrap().concat(),
        Body::List(list) => list.join().to_vec(),
        Body::Watch(_) => panic!("a watch"),
    };
    (code, String::from_utf8(bytes).unwrap())
}

#[tokio::test]
async fn requests_reach_the_kubelet_under_its_own_paths() {
    let cluster = cluster().await;
    let pods = "/api/v1/namespaces/default/pods";
    for (path, expected) in [
        (
            format!("{pods}/p/log?follow=true&tailLines=3&pretty=1"),
            "/containerLogs/default/p/c?follow=true&tailLines=3",
        ),
        (format!("{pods}/two/log?container=b"), "/containerLogs/default/two/b"),
        ("/api/v1/nodes/n1/proxy/stats/summary?only_cpu=true".to_owned(), "/stats/summary?only_cpu=true"),
        ("/api/v1/nodes/n1/proxy/".to_owned(), "/"),
    ] {
        assert_eq!(call(&cluster.server, "GET", &path, Value::Null).await, (200, expected.to_owned()));
    }
    let (code, message) = call(&cluster.server, "GET", &format!("{pods}/two/log"), Value::Null).await;
    assert!(
        code == 400 && message.contains("a container name must be specified for pod two, choose one of: [a b]"),
        "{message}"
    );
    let (code, message) = call(&cluster.server, "GET", &format!("{pods}/none/log?tailLines=-1"), Value::Null).await;
    assert!(code == 422 && message.contains("PodLogOptions \\\"none\\\" is invalid: tailLines"), "{message}");
}

#[tokio::test]
async fn kubelets_stats_are_served_as_metrics() {
    let cluster = cluster().await;
    let server = &cluster.server;
    let (_, pod) = call(server, "GET", "/api/v1/namespaces/default/pods/p", Value::Null).await;
    let uid = serde_json::from_str::<Value>(&pod).unwrap()["metadata"]["uid"].clone();
    let usage = |cores: u64, bytes: u64| {
        json!({ "name": "c", "cpu": { "time": "2026-01-01T00:00:00Z", "usageNanoCores": cores },
                "memory": { "workingSetBytes": bytes } })
    };
    let summary = json!({ "node": usage(1_500_000_000, 4096),
        "pods": [{ "podRef": { "name": "p", "namespace": "default", "uid": uid }, "containers": [usage(250_000_000, 2048)] }] });
    *SUMMARY.lock().unwrap() = summary.to_string();

    let api = "/apis/metrics.k8s.io/v1beta1";
    let get = async |path: &str| {
        let (code, text) = call(server, "GET", path, Value::Null).await;
        (code, serde_json::from_str::<Value>(&text).unwrap())
    };
    let (code, nodes) = get(&format!("{api}/nodes")).await;
    assert_eq!((code, &nodes["kind"]), (200, &json!("NodeMetricsList")), "{nodes}");
    assert_eq!(nodes["items"][0]["usage"], json!({ "cpu": "1500000000n", "memory": "4Ki" }));
    let (_, pods) = get(&format!("{api}/namespaces/default/pods")).await;
    let items = pods["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "the pod of which nothing is known is left out: {pods}");
    assert_eq!(items[0]["containers"][0]["usage"], json!({ "cpu": "250000000n", "memory": "2Ki" }));
    assert_eq!(items[0]["timestamp"], "2026-01-01T00:00:00Z");
    let (_, none) = get(&format!("{api}/pods?labelSelector=app%3Dnone")).await;
    assert_eq!(none["items"], json!([]));
    assert_eq!(get(&format!("{api}/namespaces/default/pods/p")).await.1["kind"], "PodMetrics");
    assert_eq!(get(&format!("{api}/namespaces/default/pods/two")).await.0, 404);
    assert_eq!(call(server, "DELETE", &format!("{api}/nodes/n1"), Value::Null).await.0, 405);

    let (_, groups) = get("/apis").await;
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "metrics.k8s.io"));
    testkit::eventually::eventually("the metrics are registered", async || {
        let (_, service) = get("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").await;
        if service["status"]["conditions"][0]["reason"] == "Local" { Ok(()) } else { Err(service.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn an_upgraded_connection_is_joined() {
    let cluster = cluster().await;
    let (certificate, key) = cluster.ca.issue("kube-apiserver", "");
    let tls = corten_apiserver::tls_config(&certificate, &key, &cluster.ca.pem).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(Arc::clone(&cluster.server).serve(
        listener,
        Arc::new(ArcSwap::from_pointee(tls)),
        shutdown.clone(),
    ));

    let mut sender = connect(&cluster.ca, address).await;
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=sh&stdin=true&stdout=true";
    let request = Request::get(exec).header("connection", "Upgrade").header("upgrade", "websocket").header("host", "x");
    let mut response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["upgrade"], "websocket");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    stream.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"HELLO");
    drop(stream);

    // A log is a WebSocket of this server: the kubelet gets a plain request, and here responds with its path.
    let mut sender = connect(&cluster.ca, address).await;
    let request = Request::get("/api/v1/namespaces/default/pods/p/log").header("host", "x");
    let request = request.header("connection", "Upgrade").header("upgrade", "websocket");
    let request = request.header("sec-websocket-version", "13").header("sec-websocket-protocol", "binary.k8s.io");
    let request = request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let mut response = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(response.headers()["sec-websocket-protocol"], "binary.k8s.io");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut messages = vec![0; 2 + 2 + "/containerLogs/default/p/c".len()];
    stream.read_exact(&mut messages).await.unwrap();
    let path = [&[0x82, 0, 0x82, 26][..], b"/containerLogs/default/p/c"].concat();
    assert_eq!(messages, path, "an empty message, then the log");
    drop(stream);
    shutdown.cancel();
    serving.await.unwrap().unwrap();
}

/// Opens a connection as a user in `system:masters`, by certificate.
async fn connect(
    ca: &Authority,
    address: std::net::SocketAddr,
) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
    let (certificate, key) = ca.issue("root", "system:masters");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

#[tokio::test]
async fn an_unknown_object_is_named_after_the_request() {
    let cluster = cluster().await;
    let server = &cluster.server;
    let namespace = "/api/v1/namespaces/default";
    let pod = |name: &str, node: &str| json!({ "metadata": { "name": name }, "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] } });
    let endpoints = |subsets: Value| json!({ "metadata": { "name": "x" }, "subsets": subsets });
    let service = json!({ "metadata": { "name": "svc" }, "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] } });
    for (path, object) in [
        ("/api/v1/nodes".to_owned(), json!({ "metadata": { "name": "bare" } })),
        (format!("{namespace}/pods"), pod("lost", "gone")),
        (format!("{namespace}/pods"), pod("mute", "bare")),
        (format!("{namespace}/services"), service),
        (
            format!("{namespace}/endpoints"),
            endpoints(json!([{ "addresses": [{ "ip": "10.0.0.1" }], "ports": [{ "port": 81 }] }])),
        ),
    ] {
        assert_eq!(call(server, "POST", &path, object).await.0, 201, "{path}");
    }
    let unknown = "no preferred addresses found; known addresses: []";
    for (path, code, message) in [
        ("pods/lost/log", 404, "pods \"gone\" not found"),
        ("pods/lost/exec?command=a", 404, "pods \"gone\" not found"),
        ("pods/lost/portforward", 404, "pods \"gone\" not found"),
        ("pods/mute/log", 500, unknown),
        ("pods/p/exec?command=a&stdout=true", 400, "Upgrade request required"),
        ("pods/p/proxy/", 400, "address not allowed"),
        ("pods/ftp:p:80/proxy/", 400, "invalid pod request \"ftp:p:80\""),
        ("services/x/proxy/", 503, "no endpoints available for service \"x\""),
        ("services/x:http/proxy/", 503, "no endpoints available for service \"x:http\""),
        ("services/x:81/proxy/", 404, "services \"x\" not found"),
        ("services/svc/proxy/", 404, "services \"svc\" not found"),
        ("services/svc:81/proxy/", 503, "no service port 81 found for service \"svc\""),
    ] {
        let (got, body) = call(server, "GET", &format!("{namespace}/{path}"), Value::Null).await;
        let status: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((got, status["message"].as_str()), (code, Some(message)), "{path}");
    }
    let (code, body) = call(server, "GET", "/api/v1/nodes/n1:1/proxy/", Value::Null).await;
    assert!(code == 400 && body.contains("address not allowed"), "another port of the machine itself: {body}");
}
