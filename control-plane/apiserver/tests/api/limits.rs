//! Abuse of the server: too much, too deep, too slow. Each client gets a clear error, and the server continues.

use std::time::Duration;

use crate::network::{Listening, PATIENCE, read_until};
use crate::server::{TestServer, next, send};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LIMIT: usize = 3 * 1024 * 1024;

/// Checks that the server still responds.
async fn check_alive(listening: &Listening) {
    let answer = listening.server.get("/api/v1/namespaces/default").await;
    assert_eq!(answer.code, 200);
}

fn check_too_large(status: &Value) {
    assert_eq!(status["code"], 413);
    assert_eq!(status["reason"], "RequestEntityTooLarge");
    assert_eq!(status["message"], format!("Request entity too large: limit is {LIMIT}"));
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_on_http_1() {
    let listening = Listening::start().await;
    let mut stream = listening.connect("http/1.1").await;
    let body = vec![b' '; LIMIT + 1024 * 1024];
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The whole body is sent before the response is read, as curl does.
    stream.write_all(&body).await.unwrap();
    let answer = read_until(&mut stream, |text| text.ends_with("}\n")).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    check_too_large(&serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap());
    check_alive(&listening).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_on_http_2() {
    let listening = Listening::start().await;
    let mut sender = listening.http2().await;
    let body = Bytes::from(vec![b' '; LIMIT + 1024 * 1024]);
    let sent = sender.send_request(listening.request("POST", MAPS, body));
    let answer = timeout(PATIENCE, sent).await.unwrap().unwrap();
    assert_eq!(answer.status(), 413);
    let bytes = timeout(PATIENCE, answer.into_body().collect()).await.unwrap().unwrap().to_bytes();
    check_too_large(&serde_json::from_slice(&bytes).unwrap());
    // The connection is still usable.
    let again = sender.send_request(listening.request("GET", MAPS, Bytes::new()));
    assert_eq!(timeout(PATIENCE, again).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn an_answer_to_head_has_no_body_on_http_2() {
    let listening = Listening::start().await;
    let mut sender = listening.http2().await;
    let sent = sender.send_request(listening.request("HEAD", "/version", Bytes::new()));
    let answer = timeout(PATIENCE, sent).await.unwrap().unwrap();
    let length = answer.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
    assert!(length > 0);
    let bytes = timeout(PATIENCE, answer.into_body().collect()).await.unwrap().unwrap().to_bytes();
    assert!(bytes.is_empty(), "{bytes:?}");
}

/// Returns a ConfigMap that is too large to be stored together with its managers.
fn nearly_too_large(name: &str) -> Value {
    let keys = (0..3200).map(|n| (format!("{n:04}{}", "x".repeat(246)), json!("a"))).collect();
    let data: serde_json::Map<String, Value> = keys;
    json!({ "metadata": { "name": name }, "data": data })
}

#[tokio::test]
async fn an_object_near_the_limit_drops_its_managers_unless_it_is_applied() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}/big");
    let large = nearly_too_large("big");
    let created = server.post(MAPS, large.clone()).await.expect(201);
    assert_eq!(created["metadata"]["managedFields"], Value::Null);
    server.delete(&path, None).await.expect(200);
    let small = json!({ "metadata": { "name": "big" }, "data": { "a": "b" } });
    let created = server.post(MAPS, small).await.expect(201);
    assert!(created["metadata"]["managedFields"].is_array());
    let updated = server.put(&path, large.clone()).await.expect(200);
    assert_eq!(updated["metadata"]["managedFields"], Value::Null);
    let applied =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "big" }, "data": large["data"] });
    let refused = server.patch(&format!("{path}?fieldManager=me"), "application/apply-patch+yaml", applied).await;
    assert_eq!(refused.body["reason"], "RequestEntityTooLarge", "{}", refused.body["message"]);
}

#[tokio::test]
async fn an_object_over_the_limit_is_413() {
    let server = TestServer::start().await;
    let template = json!({
        "metadata": { "name": "big" },
        "template": { "spec": { "containers": [{ "name": "a", "image": "b", "args": ["x".repeat(1_600_000)] }] } },
    });
    let answer = server.post("/api/v1/namespaces/default/podtemplates", template).await;
    assert_eq!(answer.body["reason"], "RequestEntityTooLarge", "{}", answer.body["message"]);
    answer.expect(413);
}

#[tokio::test]
async fn deep_and_expanding_documents_are_refused() {
    let server = TestServer::start().await;
    let admin = server.user("admin", &["system:masters"]);
    let deep_json = format!(r#"{{"metadata":{{"name":"a"}},"data":{}{}}}"#, "[".repeat(500_000), "]".repeat(500_000));
    let deep_map = format!("{}1{}", r#"{"a":"#.repeat(200_000), "}".repeat(200_000));
    let deep_yaml = format!("metadata: {{name: a}}\ndata: {}{}\n", "[".repeat(200_000), "]".repeat(200_000));
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let references = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{references}]\n"));
    }
    for (content_type, body) in [
        ("application/json", deep_json),
        ("application/json", deep_map),
        ("application/yaml", deep_yaml),
        ("application/yaml", bomb),
    ] {
        let headers = [("content-type", content_type)];
        let request = send(&admin, "POST", MAPS, body.into(), &headers);
        let answer = timeout(PATIENCE, request).await.expect("an answer comes soon");
        assert_eq!(answer.code, 400, "{content_type}: {}", answer.body);
    }
    // JSON may nest deeper than YAML, also where it is sent as YAML.
    let nested = format!(r#"{{"metadata":{{"name":"a"}},"x":{}{}}}"#, "[".repeat(100), "]".repeat(100));
    let headers = [("content-type", "application/yaml")];
    let answer = send(&admin, "POST", MAPS, nested.into(), &headers).await;
    assert_eq!(answer.code, 201, "{}", answer.body);
}

#[tokio::test]
async fn a_user_of_many_groups_can_be_impersonated() {
    let listening = Listening::start().await;
    let groups: String = (0..300).map(|n| format!("x-group-{n}: y\r\n")).collect();
    let mut stream = listening.connect("http/1.1").await;
    stream.write_all(format!("GET {MAPS} HTTP/1.1\r\nhost: x\r\n{groups}\r\n").as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn floods_of_headers_are_431() {
    let listening = Listening::start().await;
    let many: String = (0..5000).map(|n| format!("x-{n}: y\r\n")).collect();
    let huge = format!("x-huge: {}\r\n", "y".repeat(2 << 20));
    for flood in [many, huge] {
        let mut stream = listening.connect("http/1.1").await;
        // The server may close before it has read everything.
        let _ = stream.write_all(format!("GET {MAPS} HTTP/1.1\r\nhost: x\r\n{flood}\r\n").as_bytes()).await;
        let answer = read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
    let mut sender = listening.http2().await;
    let mut request = listening.request("GET", MAPS, Bytes::new());
    for number in 0..50 {
        let name: http::HeaderName = format!("x-{number}").parse().unwrap();
        request.headers_mut().insert(name, "y".repeat(8 * 1024).parse().unwrap());
    }
    let answer = timeout(PATIENCE, sender.send_request(request)).await.unwrap();
    assert!(answer.as_ref().is_ok_and(|answer| answer.status() == 431) || answer.is_err(), "{answer:?}");
    check_alive(&listening).await;
}

#[tokio::test]
async fn unknown_fields_are_reported_up_to_a_limit() {
    let server = crate::server::TestServer::start().await;
    let fields: String = (0..5000).map(|n| format!("k{n:04}: 1\n")).collect();
    let yaml = format!("metadata: {{name: many}}\n{fields}");
    let json = format!("{{\"metadata\":{{\"name\":\"many\"}},{}\"x\":1}}", fields_of_json(5000));
    for (body, kind) in [(yaml, "application/yaml"), (json, "application/json")] {
        let send = |validation: &'static str| {
            let (admin, body) = (server.user("admin", &["system:masters"]), Bytes::from(body.clone()));
            let path = format!("{MAPS}?dryRun=All&fieldValidation={validation}");
            async move { crate::server::send(&admin, "POST", &path, body, &[("content-type", kind)]).await }
        };
        let refused = send("Strict").await.message(400);
        assert_eq!(refused.matches("unknown field").count(), 100, "{kind}");
        let warnings = send("Warn").await.warnings();
        assert_eq!((warnings.len(), warnings[0].as_str()), (100, r#"299 - "unknown field \"k0000\"""#), "{kind}");
    }
}

fn fields_of_json(count: usize) -> String {
    (0..count).map(|n| format!("\"k{n:04}\":1,")).collect()
}

#[tokio::test]
async fn invalid_heads_are_refused() {
    let listening = Listening::start().await;
    for (head, code) in [
        ("GET /version HTTP/1.1", 400),
        ("GET /version HTTP/1.0", 200),
        ("GET /version HTTP/1.1\r\nhost: x\r\nexpect: a miracle", 417),
        ("GET /version HTTP/1.1\r\nhost: x\r\nexpect:", 200),
        ("GET /version HTTP/1.1\r\nhost: x\r\nhost: y", 400),
        ("GET /version HTTP/1.1\r\nhost: x y", 400),
        ("GET version HTTP/1.1\r\nhost: x", 400),
        ("GET /api/%zz HTTP/1.1\r\nhost: x", 400),
        ("GET /version?%zz HTTP/1.1\r\nhost: x", 200),
        ("OPTIONS * HTTP/1.1\r\nhost: x", 200),
        ("GET /version HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked", 501),
    ] {
        let mut stream = listening.connect("http/1.1").await;
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
        assert!(answer.split(' ').nth(1) == Some(&code.to_string()), "{head}: {answer}");
    }
}

#[tokio::test]
async fn plain_http_gets_an_error() {
    let listening = Listening::start().await;
    let mut stream = tokio::net::TcpStream::connect(listening.address).await.unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n");
}

#[tokio::test]
async fn bodies_that_break_off_are_500() {
    let listening = Listening::start().await;
    for (body, message) in [("zz\r\n", "invalid byte in chunk length"), ("2\r\nabXX", "malformed chunked encoding")] {
        let mut stream = listening.connect("http/1.1").await;
        let head = format!("POST {MAPS} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{body}");
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, |text| text.ends_with("}\n")).await;
        assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains(message), "{answer}");
    }
}

#[tokio::test]
async fn a_slow_head_times_out() {
    let listening = Listening::start().await;
    let mut stream = listening.connect("http/1.1").await;
    stream.write_all(format!("GET {MAPS} HTTP/1.1\r\nhost: x\r\nx-slow:").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // The server must have begun to read before its timeout runs.
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let answer = read_until(&mut stream, |_| false).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(began.elapsed() <= Duration::from_secs(33), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_body_that_never_ends_times_out() {
    let listening = Listening::start().await;
    let mut stream = listening.connect("http/1.1").await;
    let head =
        format!("POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    let answer = read_until(&mut stream, |text| text.ends_with("}\n")).await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("request did not complete within the allotted timeout"), "{answer}");
    assert!(began.elapsed() <= Duration::from_secs(61), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_quiet_watch_outlives_the_timeouts_of_slow_clients() {
    let listening = Listening::start().await;
    let mut stream = listening.connect("http/1.1").await;
    let head = format!("GET {MAPS}?watch=1&resourceVersion=0&timeoutSeconds=1200 HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    tokio::time::resume();
    listening.server.post(MAPS, json!({ "metadata": { "name": "late" } })).await.expect(201);
    let event = read_until(&mut stream, |text| text.contains("\"late\"")).await;
    assert!(event.contains("ADDED"), "{event}");
}

#[tokio::test]
async fn a_watch_that_falls_behind_ends_with_410() {
    let server = TestServer::start().await;
    server.post(MAPS, json!({ "metadata": { "name": "a" }, "data": { "n": "" } })).await.expect(201);
    let mut events = server.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    let mut seen = next(&mut events).await;
    while seen != "ADDED a" {
        seen = next(&mut events).await;
    }
    // More than the window holds, without a reader.
    for round in 0..200 {
        let data = json!({ "n": round.to_string().repeat(16 * 1024) });
        server.put(&format!("{MAPS}/a"), json!({ "metadata": { "name": "a" }, "data": data })).await.expect(200);
    }
    assert_eq!(next(&mut events).await, "ERROR 410");
    assert_eq!(next(&mut events).await, "END");
}

#[tokio::test]
async fn one_connection_has_a_hundred_streams_and_no_more() {
    let listening = Listening::start().await;
    let mut sender = listening.http2().await;
    let watch = format!("{MAPS}?watch=1&resourceVersion=0");
    let mut open = Vec::new();
    for _ in 0..100 {
        let answer = sender.send_request(listening.request("GET", &watch, Bytes::new()));
        open.push(timeout(PATIENCE, answer).await.unwrap().unwrap());
    }
    let one_more = sender.send_request(listening.request("GET", &watch, Bytes::new()));
    tokio::pin!(one_more);
    assert!(timeout(Duration::from_millis(300), one_more.as_mut()).await.is_err(), "it must wait for a place");
    // Other connections are not affected.
    let mut other = listening.http2().await;
    let answer = other.send_request(listening.request("GET", MAPS, Bytes::new()));
    assert_eq!(timeout(PATIENCE, answer).await.unwrap().unwrap().status(), 200);
    drop(open);
    assert_eq!(timeout(PATIENCE, one_more).await.unwrap().unwrap().status(), 200);
}

/// Returns an HTTP/2 frame with these flags.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test]
async fn requests_may_be_cancelled_at_once() {
    let (headers, reset, settings, goaway) = (1, 3, 4, 7);
    let listening = Listening::start().await;
    let mut stream = listening.connect("h2").await;
    // GET, https, a path and an authority.
    let head = b"\x82\x87\x04\x08/healthz\x01\x01x";
    let mut sent = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(settings, 0, 0, &[])].concat();
    for number in 0..50 {
        sent.extend(frame(headers, 5, 2 * number + 1, head));
        sent.extend(frame(reset, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    sent.extend(frame(headers, 5, 101, head));
    stream.write_all(&sent).await.unwrap();
    let answered = async {
        loop {
            let mut start = [0; 9];
            stream.read_exact(&mut start).await.unwrap();
            let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, &byte| sum << 8 | u32::from(byte));
            stream.read_exact(&mut vec![0; number(&start[..3]) as usize]).await.unwrap();
            assert_ne!(start[3], goaway, "the connection goes on");
            if (start[3], number(&start[5..])) == (headers, 101) {
                return;
            }
        }
    };
    timeout(PATIENCE, answered).await.unwrap();
}

/// Begins a create whose body is still to come.
async fn begin_create(listening: &Listening, body: &str) -> tokio_rustls::client::TlsStream<tokio::net::TcpStream> {
    let mut stream = listening.connect("http/1.1").await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         expect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 100 "), "{answer}");
    stream
}

/// Sends a request on a connection of HTTP/1.1, and returns the response.
async fn get(stream: &mut tokio_rustls::client::TlsStream<tokio::net::TcpStream>, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    read_until(stream, |text| text.contains("\r\n\r\n") && !text.ends_with("\r\n\r\n")).await
}

#[tokio::test]
async fn a_server_that_stops_finishes_its_requests_and_sends_late_ones_elsewhere() {
    let listening = Listening::start().await;
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "late" } }).to_string();
    let mut under_way = begin_create(&listening, &body).await;
    let mut idle = listening.connect("http/1.1").await;
    let mut http2 = listening.http2().await;
    listening.stop();
    // New connections are taken, and their requests refused with the time after which to try again.
    let refused = async {
        loop {
            let mut stream = listening.connect("http/1.1").await;
            let answer = get(&mut stream, "/version").await;
            if answer.starts_with("HTTP/1.1 429 ") {
                return answer;
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await.unwrap();
    assert!(refused.contains("Retry-After: 1\r\n") && refused.contains("Connection: close\r\n"), "{refused}");
    assert!(refused.ends_with("\r\n\r\nThe apiserver is shutting down, please try again later.\n"), "{refused}");
    let late = get(&mut idle, "/version").await;
    assert!(late.starts_with("HTTP/1.1 429 ") && late.contains("Connection: close\r\n"), "{late}");
    assert_eq!(read_until(&mut idle, |_| false).await, "", "the connection is closed");
    let answer = http2.send_request(listening.request("GET", "/version", Bytes::new())).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].as_bytes()), (429, &b"1"[..]));
    drop(answer);
    let goaway = async { while http2.ready().await.is_ok() && !http2.is_closed() {} };
    timeout(PATIENCE, goaway).await.expect("GOAWAY closes the connection");
    // Probes are answered to the end.
    let mut probe = listening.connect("http/1.1").await;
    assert!(get(&mut probe, "/livez").await.starts_with("HTTP/1.1 200 "));
    let mut probe = listening.connect("http/1.1").await;
    assert!(get(&mut probe, "/readyz").await.starts_with("HTTP/1.1 500 "));

    under_way.write_all(body.as_bytes()).await.unwrap();
    let answer = read_until(&mut under_way, |text| text.ends_with('\n') || text.ends_with('}')).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let closed = async {
        while tokio::net::TcpStream::connect(listening.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, closed).await.expect("the listener is closed after the last request");
}

#[tokio::test]
async fn watches_end_within_their_grace_period_while_requests_are_under_way() {
    let grace = PATIENCE * 10;
    let config = corten_apiserver::Config { shutdown_watch_termination_grace_period: grace, ..crate::server::config() };
    let listening = Listening::with(config).await;
    let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "late" } }).to_string();
    let mut under_way = begin_create(&listening, &body).await;
    let mut http2 = listening.http2().await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        let path = format!("{MAPS}?watch=1&resourceVersion=0&timeoutSeconds=3000");
        let answer = http2.send_request(listening.request("GET", &path, Bytes::new())).await.unwrap();
        assert_eq!(answer.status(), 200);
        watches.push(answer.into_body());
    }
    listening.stop();
    for watch in watches {
        let ended =
            timeout(PATIENCE, http_body_util::BodyExt::collect(watch)).await.expect("the watch ends in its turn");
        assert!(ended.is_ok(), "it ends as a watch does: {ended:?}");
    }
    under_way.write_all(body.as_bytes()).await.unwrap();
    let answer = read_until(&mut under_way, |text| text.ends_with('\n') || text.ends_with('}')).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
}

#[tokio::test]
async fn an_unread_body_leaves_the_connection_usable() {
    let listening = Listening::start().await;
    let mut stream = listening.connect("http/1.1").await;
    // After a large body, the server closes the connection.
    for (size, closes) in [(10, false), (200 * 1024, false), (300 * 1024, true)] {
        let head = format!("POST /apis/no.example/v1/xs HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b' '; size]).await.unwrap();
        let answer = read_until(&mut stream, |text| text.ends_with("not found\n")).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        assert_eq!(answer.contains("Connection: close\r\n"), closes, "{answer}");
    }
    check_alive(&listening).await;
}
