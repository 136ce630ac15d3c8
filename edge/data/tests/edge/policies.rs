//! Tests of policies, metrics and the access log.

use crate::fixture::*;
use base64::Engine;
use corten_edge::{AccessLog, LogFormat, Options};
use corten_routing::{
    AddressPolicy, BasicAuth, ConcurrencyLimit, ErrorPages, Filter, FixedResponse, ForwardAuth, HashKey, HttpRule,
    ListenerOptions, ListenerProtocol, RateLimit, SessionKind, SessionPersistence,
};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use std::io::{BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn a_client_beyond_its_rate_is_answered_with_429() {
    let limit = RateLimit {
        name: "limit".into(),
        requests: 1,
        period: Duration::from_secs(3600),
        burst: 2,
        per_client: true,
        exempt: Vec::new(),
    };
    let filters: Arc<[Filter]> = Arc::from([Filter::RateLimit(Arc::new(limit))]);
    let mut fixture = Fixture::http(vec![filtered("/", "a", Arc::clone(&filters))]).await;
    let upstream = fixture.echo("a").await;
    for _ in 0..3 {
        assert_eq!(fixture.get("/").await.status(), 200);
    }
    // The count outlives a change of the configuration.
    fixture.apply(ListenerProtocol::Http(any_host(vec![filtered("/", "a", filters), rule("/b", "b")]))).await;
    let refused = fixture.get("/").await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 3000);
    assert_eq!(upstream.request_count(), 3);
}

#[tokio::test]
async fn addresses_are_allowed_and_denied_by_the_clients_own() {
    let policy =
        AddressPolicy { allow: vec!["203.0.113.0/24".parse().unwrap()], deny: vec!["203.0.113.66".parse().unwrap()] };
    let rules = vec![filtered("/", "a", [Filter::Addresses(Arc::new(policy))])];
    let trusted = ListenerOptions {
        trusted_proxies: Arc::from(["127.0.0.0/8".parse().unwrap()]),
        proxy_protocol: false,
        ..ListenerOptions::default()
    };
    for (options, forwarded, status) in [
        (ListenerOptions::default(), "203.0.113.7", 403),
        (trusted.clone(), "203.0.113.7", 200),
        (trusted.clone(), "203.0.113.66", 403),
        (trusted.clone(), "203.0.113.7, 192.0.2.1", 403),
        (trusted.clone(), "192.0.2.1, 203.0.113.7", 200),
        (trusted.clone(), "203.0.113.7, 127.0.0.2", 200),
        (trusted, "garbage", 403),
    ] {
        let protocol = ListenerProtocol::Http(any_host(rules.clone()));
        let fixture = Fixture::with(protocol, options, Options::default()).await;
        let _upstream = fixture.echo("a").await;
        let response = fixture.send(request("GET", "/", &[("x-forwarded-for", forwarded)], "")).await;
        assert_eq!(response.status(), status, "{forwarded}");
    }
}

#[tokio::test]
async fn users_need_their_password_and_endpoints_do_not_see_it() {
    let users = [("user".to_owned(), "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=".to_owned())].into();
    let policy = BasicAuth { realm: "corten".into(), users };
    let fixture = Fixture::http(vec![filtered("/", "a", [Filter::BasicAuth(Arc::new(policy))])]).await;
    let _upstream = fixture.echo("a").await;
    let refused = fixture.get("/").await;
    assert_eq!(refused.status(), 401);
    assert!(refused.headers()["www-authenticate"].to_str().unwrap().starts_with("Basic realm=\"corten\""));
    let encoded = base64::engine::general_purpose::STANDARD.encode("user:password");
    let response = fixture.send(request("GET", "/", &[("authorization", &format!("Basic {encoded}"))], "")).await;
    assert_eq!(response.status(), 200);
    assert!(!text(&response).contains("authorization"));
}

fn forward_auth(sign_in: Option<&str>) -> Filter {
    Filter::ForwardAuth(Arc::new(ForwardAuth {
        backend: key("decider"),
        host: Some("decider.example".into()),
        path: "/decide".into(),
        request_headers: Vec::new(),
        response_headers: vec!["x-user".to_owned()],
        sign_in: sign_in.map(Into::into),
    }))
}

#[tokio::test]
async fn another_backend_decides_on_requests() {
    let fixture = Fixture::http(vec![
        filtered("/", "a", [forward_auth(None)]),
        filtered("/browser", "a", [forward_auth(Some("https://sign-in.example/?to={url}"))]),
    ])
    .await;
    let upstream = fixture.echo("a").await;
    let decider = Upstream::start(|request: Request<Incoming>| async move {
        assert_eq!(request.uri(), "/decide");
        assert_eq!(request.headers()["host"], "decider.example");
        assert!(!request.headers().contains_key("content-length"));
        let uri = request.headers()["x-forwarded-uri"].clone();
        match request.headers().get("x-token") {
            Some(_) => Response::builder().header("x-user", "known").body(Full::default()).unwrap(),
            None => Response::builder().status(401).header("x-uri", uri).body(Full::from("no")).unwrap(),
        }
    })
    .await;
    fixture.endpoints("decider", &[decider.address]);
    let refused = fixture.get("/p?q=1").await;
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["x-uri"], "/p?q=1");
    assert_eq!(text(&refused), "no");
    let redirected = fixture.get("/browser").await;
    assert_eq!(redirected.status(), 302);
    assert_eq!(redirected.headers()["location"], "https://sign-in.example/?to=http%3A%2F%2Fexample.com%2Fbrowser");
    assert_eq!(upstream.request_count(), 0);
    let passed = fixture.send(request("POST", "/", &[("x-token", "1"), ("x-user", "root")], "body")).await;
    assert_eq!(passed.status(), 200);
    let seen = text(&passed);
    assert!(seen.contains("x-user: known\n") && !seen.contains("root") && seen.ends_with("\nbody"), "{seen}");
    fixture.endpoints("decider", &[]);
    assert_eq!(fixture.get("/").await.status(), 503, "without a decision no request passes");
}

#[tokio::test]
async fn large_request_bodies_are_refused() {
    let fixture = Fixture::http(vec![filtered("/", "a", [Filter::BodySize(10)])]).await;
    let _upstream = fixture.echo("a").await;
    assert_eq!(fixture.send(request("POST", "/", &[], "0123456789")).await.status(), 200);
    assert_eq!(fixture.send(request("POST", "/", &[], "0123456789x")).await.status(), 413);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = fixture.raw(format!("{chunked}6\r\nabcdef\r\n6\r\nabcdef\r\n0\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let answer = fixture.raw(format!("{chunked}6\r\nabcdef\r\n0\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn responses_are_compressed_for_clients_that_accept_it() {
    let fixture = Fixture::http(vec![filtered("/", "a", [Filter::Compression])]).await;
    let upstream = Upstream::start(|_| async {
        let body = Full::from("compressible ".repeat(1000));
        Response::builder().header("content-type", "text/html; charset=utf-8").body(body).unwrap()
    })
    .await;
    fixture.endpoints("a", &[upstream.address]);
    let plain = fixture.get("/").await;
    assert!(!plain.headers().contains_key("content-encoding"));
    let compressed = fixture.send(request("GET", "/", &[("accept-encoding", "br, gzip")], "")).await;
    assert_eq!(compressed.headers()["content-encoding"], "gzip");
    assert_eq!(compressed.headers()["vary"], "Accept-Encoding");
    let mut decoded = String::new();
    flate2::read::GzDecoder::new(&**compressed.body()).read_to_string(&mut decoded).unwrap();
    assert_eq!(decoded, text(&plain));
}

#[tokio::test]
async fn a_session_stays_with_its_endpoint() {
    for kind in [SessionKind::Cookie, SessionKind::Header] {
        let session = SessionPersistence {
            kind,
            name: "session".into(),
            absolute_timeout: None,
            idle_timeout: None,
            path: "/".into(),
            permanent: false,
            cookie: Default::default(),
        };
        let fixture = Fixture::http(vec![HttpRule { session: Some(Arc::new(session)), ..rule("/", "a") }]).await;
        let upstreams = [Upstream::echo("1").await, Upstream::echo("2").await, Upstream::echo("3").await];
        let addresses: Vec<_> = upstreams.iter().map(|upstream| upstream.address).collect();
        fixture.endpoints("a", &addresses);
        let first = fixture.get("/").await;
        let name = first.headers()["x-served-by"].clone();
        let sent = match kind {
            SessionKind::Cookie => {
                let cookie = first.headers()["set-cookie"].to_str().unwrap();
                ("cookie", cookie.split(';').next().unwrap().to_owned())
            }
            SessionKind::Header => ("session", first.headers()["session"].to_str().unwrap().to_owned()),
        };
        for _ in 0..20 {
            let response = fixture.send(request("GET", "/", &[(sent.0, &sent.1)], "")).await;
            assert_eq!(response.headers()["x-served-by"], name);
            assert!(!response.headers().contains_key("set-cookie"), "the session goes on");
        }
        let left: Vec<_> = upstreams
            .iter()
            .map(|upstream| upstream.address)
            .filter(|address| {
                upstreams.iter().position(|upstream| upstream.address == *address).map(|at| (at + 1).to_string())
                    != Some(name.to_str().unwrap().to_owned())
            })
            .collect();
        fixture.endpoints("a", &left);
        let moved = fixture.send(request("GET", "/", &[(sent.0, &sent.1)], "")).await;
        assert_eq!(moved.status(), 200);
        assert_ne!(moved.headers()["x-served-by"], name);
    }
}

#[tokio::test]
async fn a_maintenance_page_answers_every_request() {
    let body = Arc::from(*b"<p>Later.</p>");
    let page = FixedResponse { status: 503, content_type: "text/html".into(), body, exempt: Vec::new() };
    let fixture = Fixture::http(vec![filtered("/", "a", [Filter::Respond(Arc::new(page))])]).await;
    let upstream = fixture.echo("a").await;
    let response = fixture.get("/any").await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["content-type"], "text/html");
    assert_eq!(text(&response), "<p>Later.</p>");
    assert_eq!(upstream.request_count(), 0);
}

#[tokio::test]
async fn requests_are_counted_and_logged() {
    let (read, write) = std::io::pipe().unwrap();
    let log = AccessLog::new(LogFormat::Json, write).unwrap();
    let options = Options { access_log: Some(log), ..Options::default() };
    let protocol = ListenerProtocol::Http(any_host(vec![rule("/a", "a")]));
    let fixture = Fixture::with(protocol, ListenerOptions::default(), options).await;
    let _upstream = fixture.echo("a").await;
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let response = fixture.send(request("GET", "/a?b", &[("traceparent", parent)], "")).await;
    assert!(text(&response).contains(&format!("traceparent: {parent}\n")));
    fixture.get("/none").await;
    let reading = tokio::task::spawn_blocking(move || {
        let lines = std::io::BufReader::new(read).lines().take(2).map(Result::unwrap);
        lines.map(|line| serde_json::from_str(&line).unwrap()).collect::<Vec<serde_json::Value>>()
    });
    let entries = within(reading).await.unwrap();
    assert_eq!(entries[0]["route"], "HTTPRoute/default/a");
    assert_eq!(entries[0]["path"], "/a?b");
    assert_eq!(entries[0]["status"], 200);
    assert_eq!(entries[0]["bytes"], response.body().len());
    assert_eq!(entries[0]["traceparent"], parent);
    assert_eq!(entries[1]["status"], 404);
    let page = fixture.edge.metrics();
    let sample = r#"corten_edge_requests_total{kind="HTTPRoute",namespace="default",route="a",code="2xx"} 1"#;
    assert!(page.lines().any(|line| line == sample), "{page}");
    assert!(page.contains("corten_edge_requests_total{kind=\"\",namespace=\"\",route=\"\",code=\"4xx\"} 1"));
}

#[tokio::test]
async fn requests_with_one_hash_go_to_one_endpoint() {
    let filters = [Filter::HashBy(HashKey::Header("x-user".into()))];
    let fixture = Fixture::http(vec![filtered("/", "a", filters)]).await;
    let upstreams = [Upstream::echo("1").await, Upstream::echo("2").await, Upstream::echo("3").await];
    let addresses: Vec<_> = upstreams.iter().map(|upstream| upstream.address).collect();
    fixture.endpoints("a", &addresses);
    let served_by = async |user: &str| {
        let response = fixture.send(request("GET", "/", &[("x-user", user)], "")).await;
        response.headers()["x-served-by"].clone()
    };
    let mut used = std::collections::BTreeSet::new();
    for user in 0..30 {
        let user = user.to_string();
        let first = served_by(&user).await;
        assert_eq!(served_by(&user).await, first);
        used.insert(first.to_str().unwrap().to_owned());
    }
    assert_eq!(used.len(), 3, "{used:?}");
}

#[tokio::test]
async fn an_error_gets_the_page_of_a_backend() {
    let pages = ErrorPages { statuses: vec![404, 503], backend: key("pages") };
    let filters: Arc<[Filter]> = Arc::from([Filter::ErrorPages(Arc::new(pages))]);
    let rules = vec![filtered("/", "a", Arc::clone(&filters)), filtered("/none", "none", filters)];
    let fixture = Fixture::http(rules).await;
    let missing = Upstream::start(async |request: Request<Incoming>| {
        let status = if request.uri().path() == "/ok" { 200 } else { 404 };
        Response::builder().status(status).body(Full::from("own")).unwrap()
    });
    let missing = missing.await;
    fixture.endpoints("a", &[missing.address]);
    let pages = Upstream::start(async |request: Request<Incoming>| {
        let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
        let body = format!("{} {} {}", header("x-code"), header("x-original-uri"), header("x-format"));
        Response::builder().status(200).body(Full::from(body)).unwrap()
    });
    let pages = pages.await;
    fixture.endpoints("pages", &[pages.address]);
    let page = fixture.send(request("GET", "/gone?x", &[("accept", "text/html")], "")).await;
    assert_eq!(page.status(), 404);
    assert_eq!(text(&page), "404 /gone?x text/html");
    assert_eq!(text(&fixture.get("/ok").await), "own");
    let unserved = fixture.send(request("GET", "/none", &[("accept", "*/*")], "")).await;
    assert_eq!(unserved.status(), 503);
    assert_eq!(text(&unserved), "503 /none */*");
    drop(pages);
    assert_eq!(text(&fixture.get("/gone").await), "own", "without the backend the response stays");
}

#[tokio::test]
async fn a_maintenance_page_lets_some_clients_pass() {
    let page = |exempt: &str| FixedResponse {
        status: 503,
        content_type: "text/plain".into(),
        body: Arc::from(*b"later"),
        exempt: vec![exempt.parse().unwrap()],
    };
    for (exempt, status) in [("127.0.0.0/8", 200), ("192.0.2.0/24", 503)] {
        let fixture = Fixture::http(vec![filtered("/", "a", [Filter::Respond(Arc::new(page(exempt)))])]).await;
        let _upstream = fixture.echo("a").await;
        assert_eq!(fixture.get("/").await.status(), status, "{exempt}");
    }
}

#[tokio::test]
async fn a_client_has_a_number_of_requests_in_flight() {
    let limit = ConcurrencyLimit { name: "limit".into(), requests: 1, exempt: Vec::new() };
    let fixture = Fixture::http(vec![filtered("/", "a", [Filter::Concurrency(Arc::new(limit))])]).await;
    let release = Arc::new(tokio::sync::Notify::new());
    let begun = Arc::new(tokio::sync::Notify::new());
    let upstream = {
        let release = Arc::clone(&release);
        let begun = Arc::clone(&begun);
        Upstream::start(move |_: Request<Incoming>| {
            let release = Arc::clone(&release);
            let begun = Arc::clone(&begun);
            async move {
                begun.notify_one();
                release.notified().await;
                Response::new(Full::from("done"))
            }
        })
        .await
    };
    fixture.endpoints("a", &[upstream.address]);
    let second = async {
        begun.notified().await;
        let refused = fixture.get("/").await.status();
        release.notify_one();
        refused
    };
    let (first, second) = tokio::join!(fixture.get("/"), second);
    assert_eq!(first.status(), 200);
    assert_eq!(second, 503);
    release.notify_one();
    assert_eq!(fixture.get("/").await.status(), 200, "the first request has ended");
}
