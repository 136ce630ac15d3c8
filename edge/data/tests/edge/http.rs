//! Tests of matching, filters, forwarding headers and protocols.

use crate::fixture::*;
use bytes::Bytes;
use corten_routing::{
    BackendProtocol, BackendRef, Cors, Filter, HeaderChange, HostPattern, Hosts, HttpHost, HttpRule, ListenerOptions,
    ListenerProtocol, Mirror, PathChange, PathMatch, Redirect,
};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::test]
async fn requests_go_to_the_service_of_their_rule() {
    let fixture = Fixture::http(vec![rule("/", "root"), rule("/a", "a")]).await;
    let _root = fixture.echo("root").await;
    let _a = fixture.echo("a").await;
    assert!(text(&fixture.get("/").await).starts_with("root\nGET / HTTP/1.1\n"));
    assert!(text(&fixture.get("/a/b?c=d").await).starts_with("a\nGET /a/b?c=d HTTP/1.1\n"));
    let posted = fixture.send(request("POST", "/a", &[], "the body")).await;
    assert!(text(&posted).ends_with("\nthe body"), "{}", text(&posted));
    assert!(text(&fixture.get("/x/../a/%2e/b").await).starts_with("a\nGET /a/b HTTP/1.1\n"));
}

#[tokio::test]
async fn requests_without_a_rule_backend_or_endpoint_have_their_statuses() {
    let invalid = BackendRef { weight: 1, key: None, filters: Arc::from([]) };
    let rules = vec![
        HttpRule { backends: Arc::from([invalid]), ..rule("/invalid", "none") },
        HttpRule { backends: Arc::from([]), ..rule("/nothing", "none") },
        rule("/empty", "empty"),
        HttpRule { grpc: true, ..rule("/grpc", "empty") },
    ];
    let fixture = Fixture::http(rules).await;
    for (path, status) in [("/", 404), ("/invalid", 500), ("/nothing", 500), ("/empty", 503), ("/..", 400)] {
        assert_eq!(fixture.get(path).await.status(), status, "{path}");
    }
    let grpc = fixture.get("/grpc").await;
    assert_eq!(grpc.status(), 200);
    assert_eq!(grpc.headers()["grpc-status"], "14");
    let unmatched = fixture.send(request("POST", "/", &[("content-type", "application/grpc")], "")).await;
    assert_eq!(unmatched.headers()["grpc-status"], "12");
}

#[tokio::test]
async fn a_client_that_closed_its_side_gets_its_answer() {
    let fixture = Fixture::http(vec![rule("/", "slow")]).await;
    let (release, released) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |_| {
        let mut released = released.clone();
        async move {
            let _ = released.wait_for(|released| *released).await;
            Response::new(Full::new(Bytes::from_static(b"late")))
        }
    })
    .await;
    fixture.endpoints("slow", &[upstream.address]);
    let mut stream = TcpStream::connect(fixture.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\nHost: a.example\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    eventually(async || upstream.request_count() == 1).await;
    release.send(true).unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("late"), "{answer}");
}

#[tokio::test]
async fn the_most_specific_host_serves() {
    let mut hosts = Hosts::default();
    for (pattern, service) in [
        (HostPattern::Exact("a.example.com".to_owned()), "exact"),
        (HostPattern::Wildcard("example.com".to_owned()), "wildcard"),
    ] {
        hosts.insert(pattern, Arc::new(HttpHost::build(vec![rule("/", service)])));
    }
    let fixture = Fixture::new(ListenerProtocol::Http(hosts)).await;
    let _exact = fixture.echo("exact").await;
    let _wildcard = fixture.echo("wildcard").await;
    for (host, expected) in [
        ("a.example.com", Some("exact")),
        ("A.Example.COM:8080", Some("exact")),
        ("a.example.com.", Some("exact")),
        ("b.a.example.com", Some("wildcard")),
        ("example.com", None),
        ("other", None),
    ] {
        let response = fixture.send(request("GET", "/", &[("host", host)], "")).await;
        let served = response.headers().get("x-served-by").map(|name| name.to_str().unwrap().to_owned());
        assert_eq!(served.as_deref(), expected, "{host}");
        assert_eq!(response.status() == StatusCode::NOT_FOUND, expected.is_none(), "{host}");
    }
}

#[tokio::test]
async fn forwarding_headers_of_clients_are_replaced_and_those_of_trusted_proxies_extended() {
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    let _upstream = fixture.echo("a").await;
    let sent = [
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "told.example"),
        ("forwarded", "for=203.0.113.9"),
        ("connection", "x-hop, keep-alive"),
        ("x-hop", "1"),
        ("te", "trailers, deflate"),
    ];
    let seen = text(&fixture.send(request("GET", "/", &sent, "")).await);
    for line in [
        "x-forwarded-for: 127.0.0.1\n",
        "x-forwarded-proto: http\n",
        "x-forwarded-host: example.com\n",
        "x-forwarded-port: 8080\n",
        "host: example.com\n",
        "te: trailers\n",
    ] {
        assert!(seen.contains(line), "{line} {seen}");
    }
    for line in ["x-hop", "203.0.113.9", "deflate"] {
        assert!(!seen.contains(line), "{line} {seen}");
    }
    let options = ListenerOptions {
        trusted_proxies: Arc::from(["127.0.0.0/8".parse().unwrap()]),
        proxy_protocol: false,
        ..ListenerOptions::default()
    };
    fixture.apply_with(ListenerProtocol::Http(any_host(vec![rule("/", "a")])), options).await;
    let seen = text(&fixture.send(request("GET", "/", &sent, "")).await);
    for line in [
        "x-forwarded-for: 203.0.113.9\nx-forwarded-for: 127.0.0.1\n",
        "x-forwarded-proto: https\n",
        "x-forwarded-host: told.example\n",
        "forwarded: for=203.0.113.9\nforwarded: for=127.0.0.1\n",
    ] {
        assert!(seen.contains(line), "{line} {seen}");
    }
}

fn change(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderChange {
    let owned =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    HeaderChange { set: owned(set), add: owned(add), remove: remove.iter().map(|name| (*name).to_owned()).collect() }
}

#[tokio::test]
async fn headers_are_set_added_and_removed_both_ways() {
    let filters = [
        Filter::RequestHeaders(change(&[("x-set", "new")], &[("x-add", "2")], &["x-remove"])),
        Filter::ResponseHeaders(change(&[("x-served-by", "edge")], &[("x-more", "1")], &[])),
    ];
    let target = [Filter::RequestHeaders(change(&[("x-target", "t")], &[], &[]))];
    let reference = BackendRef { filters: Arc::from(target), ..reference("a") };
    let fixture =
        Fixture::http(vec![HttpRule { backends: Arc::from([reference]), ..filtered("/", "a", filters) }]).await;
    let _upstream = fixture.echo("a").await;
    let sent = [("x-set", "old"), ("x-add", "1"), ("x-remove", "gone")];
    let response = fixture.send(request("GET", "/", &sent, "")).await;
    assert_eq!(response.headers()["x-served-by"], "edge");
    assert_eq!(response.headers()["x-more"], "1");
    let seen = text(&response);
    assert!(seen.contains("x-set: new\n") && seen.contains("x-add: 1\nx-add: 2\n"), "{seen}");
    assert!(!seen.contains("x-remove") && seen.contains("x-target: t\n"), "{seen}");
}

fn redirect(scheme: Option<&str>, hostname: Option<&str>, path: Option<PathChange>, port: Option<u16>) -> Filter {
    Filter::Redirect(Redirect {
        scheme: scheme.map(Into::into),
        hostname: hostname.map(Into::into),
        path,
        port,
        status: 302,
    })
}

#[tokio::test]
async fn redirects_name_the_changed_address() {
    let prefix = |path: &str| Some(PathChange::ReplacePrefix(path.into()));
    let cases = [
        (redirect(Some("https"), None, None, None), "/r/x?y=z", "https://example.com/r/x?y=z"),
        (redirect(None, Some("other.example"), None, None), "/r", "http://other.example:8080/r"),
        (redirect(None, None, None, Some(80)), "/r", "http://example.com/r"),
        (redirect(Some("https"), None, None, Some(8443)), "/r", "https://example.com:8443/r"),
        (redirect(None, None, prefix("/new"), None), "/r/a?b=c", "http://example.com:8080/new/a?b=c"),
        (redirect(None, None, prefix("/"), None), "/r", "http://example.com:8080/"),
        (
            redirect(None, None, Some(PathChange::ReplaceFull("/full".into())), None),
            "/r/a?b",
            "http://example.com:8080/full?b",
        ),
    ];
    for (filter, path, expected) in cases {
        let fixture = Fixture::http(vec![filtered("/r", "a", [filter])]).await;
        let response = fixture.get(path).await;
        assert_eq!(response.status(), 302);
        assert_eq!(response.headers()["location"], expected);
    }
}

#[tokio::test]
async fn a_redirect_to_https_ends_behind_a_proxy_that_ends_tls() {
    let rules = || vec![filtered("/", "a", [redirect(Some("https"), None, None, None)])];
    let mut fixture = Fixture::http(rules()).await;
    let _upstream = fixture.echo("a").await;
    let https = request("GET", "/", &[("x-forwarded-proto", "https")], "");
    assert_eq!(fixture.send(https.clone()).await.status(), 302, "a client may not choose");
    let options = ListenerOptions {
        trusted_proxies: Arc::from(["127.0.0.0/8".parse().unwrap()]),
        proxy_protocol: false,
        ..ListenerOptions::default()
    };
    fixture.apply_with(ListenerProtocol::Http(any_host(rules())), options).await;
    assert_eq!(fixture.send(https).await.status(), 200);
    assert_eq!(fixture.get("/").await.status(), 302);
}

#[tokio::test]
async fn rewrites_change_what_the_endpoint_sees() {
    let rewrite = |hostname: Option<&str>, path| Filter::Rewrite { hostname: hostname.map(Into::into), path };
    let regex = HttpRule {
        path: PathMatch::Regex(regex::Regex::new("^/g/([a-z]+)/(.*)$").unwrap()),
        ..filtered("/", "a", [rewrite(None, Some(PathChange::ReplaceGroups("/$2/$1".into())))])
    };
    let fixture = Fixture::http(vec![
        filtered("/p", "a", [rewrite(None, Some(PathChange::ReplacePrefix("/new".into())))]),
        filtered("/top", "a", [rewrite(None, Some(PathChange::ReplacePrefix("/".into())))]),
        filtered("/full", "a", [rewrite(Some("inner.example"), Some(PathChange::ReplaceFull("/one".into())))]),
        regex,
    ])
    .await;
    let _upstream = fixture.echo("a").await;
    for (path, expected) in [
        ("/p", "GET /new "),
        ("/p/", "GET /new/ "),
        ("/p/a?b=c", "GET /new/a?b=c "),
        ("/top", "GET / "),
        ("/top/a", "GET /a "),
        ("/full/a?b", "GET /one?b "),
        ("/g/x/y/z", "GET /y/z/x "),
    ] {
        let seen = text(&fixture.get(path).await);
        assert!(seen.contains(expected), "{path} {seen}");
    }
    let seen = text(&fixture.get("/full").await);
    assert!(seen.contains("host: inner.example\n") && seen.contains("x-forwarded-host: example.com\n"), "{seen}");
}

#[tokio::test]
async fn mirrors_get_copies_with_their_bodies() {
    let mirror = Filter::Mirror(Mirror { backend: key("mirror"), numerator: 1, denominator: 1 });
    let never = Filter::Mirror(Mirror { backend: key("never"), numerator: 0, denominator: 100 });
    let fixture = Fixture::http(vec![filtered("/", "a", [mirror, never])]).await;
    let _upstream = fixture.echo("a").await;
    let unused = fixture.echo("never").await;
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let copied = Upstream::start(move |request: Request<hyper::body::Incoming>| {
        let sender = sender.clone();
        async move {
            let path = request.uri().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            sender.send((path, body)).unwrap();
            Response::builder().status(500).body(Full::default()).unwrap()
        }
    })
    .await;
    fixture.endpoints("mirror", &[copied.address]);
    assert_eq!(fixture.get("/x").await.status(), 200);
    assert_eq!(within(receiver.recv()).await.unwrap(), ("/x".to_owned(), Bytes::new()));
    let posted = fixture.send(request("POST", "/y", &[], "to both")).await;
    assert!(text(&posted).ends_with("to both"));
    assert_eq!(within(receiver.recv()).await.unwrap(), ("/y".to_owned(), Bytes::from("to both")));
    assert_eq!(unused.request_count(), 0);
}

#[tokio::test]
async fn weights_divide_the_requests() {
    let weighted = |service: &str, weight| BackendRef { weight, ..reference(service) };
    let backends = Arc::from([weighted("a", 9), weighted("b", 1), weighted("never", 0)]);
    let fixture = Fixture::http(vec![HttpRule { backends, ..rule("/", "a") }]).await;
    let a = fixture.echo("a").await;
    let b = fixture.echo("b").await;
    let never = fixture.echo("never").await;
    let mut sender = http2(TcpStream::connect(fixture.address).await.unwrap()).await;
    for _ in 0..400 {
        let request = Request::get("http://example.com/").body(Full::default()).unwrap();
        let response = within(sender.send_request(request)).await.unwrap();
        response.into_body().collect().await.unwrap();
    }
    assert_eq!(a.request_count() + b.request_count(), 400);
    assert_eq!(never.request_count(), 0);
    assert!((300..=395).contains(&a.request_count()), "{}", a.request_count());
}

#[tokio::test]
async fn cors_is_answered_by_the_edge() {
    let cors = Cors {
        allow_origins: vec!["https://*.example.com".to_owned()],
        allow_methods: vec!["GET".to_owned(), "PUT".to_owned()],
        allow_headers: vec!["*".to_owned()],
        expose_headers: vec!["x-exposed".to_owned()],
        allow_credentials: true,
        max_age_seconds: 60,
    };
    let fixture = Fixture::http(vec![filtered("/", "a", [Filter::Cors(cors)])]).await;
    let upstream = fixture.echo("a").await;
    let asked = |origin: &'static str| {
        [
            ("origin", origin),
            ("access-control-request-method", "PUT"),
            ("access-control-request-headers", "x-one, x-two"),
        ]
    };
    let allowed = fixture.send(request("OPTIONS", "/", &asked("https://a.example.com"), "")).await;
    assert_eq!(allowed.status(), 204);
    for (name, value) in [
        ("access-control-allow-origin", "https://a.example.com"),
        ("access-control-allow-methods", "GET, PUT"),
        ("access-control-allow-headers", "x-one, x-two"),
        ("access-control-expose-headers", "x-exposed"),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "60"),
        ("vary", "Origin"),
    ] {
        assert_eq!(allowed.headers()[name], value, "{name}");
    }
    let refused = fixture.send(request("OPTIONS", "/", &asked("https://evil.test"), "")).await;
    assert!(!refused.headers().contains_key("access-control-allow-origin"));
    assert_eq!(upstream.request_count(), 0);
    let simple = fixture.send(request("GET", "/", &[("origin", "https://b.example.com")], "")).await;
    assert_eq!(simple.headers()["access-control-allow-origin"], "https://b.example.com");
    let foreign = fixture.send(request("GET", "/", &[("origin", "https://evil.test")], "")).await;
    assert_eq!(foreign.status(), 200);
    assert!(!foreign.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn http2_reaches_endpoints_of_either_protocol_with_trailers() {
    let mut fixture = Fixture::http(vec![rule("/one", "one"), rule("/two", "two")]).await;
    fixture.backend("two", plain(BackendProtocol::Http2)).await;
    let one = fixture.echo("one").await;
    let two = fixture.echo("two").await;
    let mut sender = http2(TcpStream::connect(fixture.address).await.unwrap()).await;
    for (path, line) in [("/one", "GET /one HTTP/1.1\n"), ("/two", "GET http://example.com/two HTTP/2.0\n")] {
        let request = Request::get(format!("http://example.com{path}")).body(Full::default()).unwrap();
        let response = within(sender.send_request(request)).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let seen = String::from_utf8_lossy(&body);
        assert!(seen.contains(line), "{seen}");
        assert!(seen.contains("x-forwarded-host: example.com\n"), "{seen}");
    }
    // A client of HTTP/1.1 reaches an endpoint of HTTP/2 too, and connections are shared.
    for _ in 0..5 {
        assert!(text(&fixture.get("/two").await).contains("HTTP/2.0"));
        fixture.get("/one").await;
    }
    for upstream in [&one, &two] {
        assert_eq!(upstream.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

/// A body of one frame and trailers, as gRPC sends it.
struct Grpc(Option<Bytes>, Option<http::HeaderMap>);

impl http_body::Body for Grpc {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let frame = self.0.take().map(http_body::Frame::data);
        std::task::Poll::Ready(frame.or_else(|| self.1.take().map(http_body::Frame::trailers)).map(Ok))
    }
}

#[tokio::test]
async fn trailers_of_grpc_pass_through() {
    let mut fixture = Fixture::http(vec![HttpRule { grpc: true, ..rule("/", "a") }]).await;
    fixture.backend("a", plain(BackendProtocol::Http2)).await;
    let listener = tokio::net::TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    fixture.endpoints("a", &[listener.local_addr().unwrap()]);
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
            let sent = request.into_body().collect().await.unwrap();
            let trailers = sent.trailers().cloned().unwrap_or_default();
            assert_eq!(trailers["x-client-trailer"], "1");
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "7".parse().unwrap());
            Ok::<_, std::convert::Infallible>(Response::new(Grpc(Some("answer".into()), Some(trailers))))
        });
        let executor = hyper_util::rt::TokioExecutor::new();
        let builder = hyper::server::conn::http2::Builder::new(executor);
        let _ = builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await;
    });
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(connection);
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-client-trailer", "1".parse().unwrap());
    let request = Request::post("http://example.com/service/method").header("content-type", "application/grpc");
    let request = request.header("te", "trailers").body(Grpc(Some("question".into()), Some(trailers))).unwrap();
    let response = within(sender.send_request(request)).await.unwrap();
    let answered = within(response.into_body().collect()).await.unwrap();
    assert_eq!(answered.trailers().unwrap()["grpc-status"], "7");
    assert_eq!(answered.to_bytes(), "answer");
    serving.abort();
}

#[tokio::test]
async fn a_client_that_expects_it_is_asked_to_continue() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let _upstream = fixture.echo("a").await;
    let answer = fixture
        .raw(
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\nbody"), "{answer}");
    assert!(!answer.contains("expect:"), "{answer}");
}

#[tokio::test]
async fn large_bodies_pass_in_both_directions_and_heads_have_none() {
    let fixture = Fixture::http(vec![rule("/", "a")]).await;
    let upstream = Upstream::start(|request: Request<hyper::body::Incoming>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Full::new(body))
    })
    .await;
    fixture.endpoints("a", &[upstream.address]);
    let body = "0123456789abcdef".repeat(256 * 1024);
    for _ in 0..2 {
        let response = fixture.send(request("POST", "/", &[], &body)).await;
        assert!(text(&response) == body, "{} bytes of {}", response.body().len(), body.len());
    }
    assert_eq!(upstream.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
    let head = fixture.send(request("HEAD", "/", &[], "")).await;
    assert_eq!(head.status(), 200);
    assert!(head.body().is_empty());
}
