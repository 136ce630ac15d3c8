//! Watches over a WebSocket, as browsers and some clients open them.

use crate::network::Listening;
use base64::Engine;
use futures::StreamExt;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{Error, Message};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ORIGIN: (&str, &str) = ("origin", "https://console.example");

/// Returns a request to open a WebSocket for a watch of ConfigMaps.
fn asking(extra: &[(&str, &str)]) -> Request<()> {
    let request = Request::get(format!("wss://localhost{MAPS}?watch=1&resourceVersion=0"))
        .header(header::HOST, "localhost")
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key());
    extra.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
}

async fn refused(listening: &Listening, request: Request<()>) -> StatusCode {
    match client_async(request, listening.connect("http/1.1").await).await {
        Err(Error::Http(response)) => response.status(),
        other => panic!("{other:?}"),
    }
}

fn map(name: &str, value: &str) -> Value {
    json!({ "metadata": { "name": name }, "data": { "a": value } })
}

#[tokio::test]
async fn every_event_is_a_message() {
    let listening = Listening::start().await;
    listening.server.post(MAPS, map("one", "1")).await.expect(201);
    let (mut socket, _) = client_async(asking(&[ORIGIN]), listening.connect("http/1.1").await).await.unwrap();
    listening.server.put(&format!("{MAPS}/one"), map("one", "2")).await.expect(200);
    listening.server.delete(&format!("{MAPS}/one"), None).await.expect(200);
    for (word, value) in [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")] {
        let Some(Ok(Message::Text(text))) = socket.next().await else { panic!("{word} is a message of text") };
        let event: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&event["type"], &event["object"]["data"]["a"]), (&json!(word), &json!(value)), "{event}");
    }

    let binary = asking(&[ORIGIN, ("accept", "application/vnd.kubernetes.protobuf")]);
    let (mut socket, _) = client_async(binary, listening.connect("http/1.1").await).await.unwrap();
    listening.server.post(MAPS, map("two", "1")).await.expect(201);
    let Some(Ok(Message::Binary(event))) = socket.next().await else { panic!("an event is a message of bytes") };
    assert!(event.starts_with(b"\n\x05ADDED"), "{event:?}");
}

#[tokio::test]
async fn a_watch_that_ends_closes_its_socket() {
    let listening = Listening::start().await;
    let mut short = asking(&[ORIGIN]);
    *short.uri_mut() = format!("wss://localhost{MAPS}?watch=1&timeoutSeconds=1").parse().unwrap();
    let (mut socket, _) = client_async(short, listening.connect("http/1.1").await).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_close());
}

#[tokio::test]
async fn a_handshake_without_an_origin_is_refused() {
    let listening = Listening::start().await;
    assert_eq!(refused(&listening, asking(&[])).await, 403);
    assert_eq!(refused(&listening, asking(&[ORIGIN, ("sec-websocket-protocol", "a, b")])).await, 400);
    let mut bad = asking(&[ORIGIN]);
    *bad.uri_mut() = format!("wss://localhost{MAPS}?watch=1&resourceVersion=x").parse().unwrap();
    assert_eq!(refused(&listening, bad).await, 500);
}

#[tokio::test]
async fn a_token_may_be_among_the_protocols() {
    let listening = Listening::start().await;
    let server = &listening.server;
    let account = json!({ "metadata": { "name": "page" } });
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let binding = json!({
        "metadata": { "name": "page" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "ServiceAccount", "name": "page", "namespace": "default" }],
    });
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let created = server.post("/api/v1/namespaces/default/serviceaccounts/page/token", json!({ "spec": {} })).await;
    let token = created.expect(201)["status"]["token"].as_str().unwrap().to_owned();
    let named = |token: &str| {
        let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
        format!("base64url.bearer.authorization.k8s.io.{encoded}, base64.binary.k8s.io")
    };
    for (token, code) in [(token.as_str(), 101), ("another", 401)] {
        let request = asking(&[ORIGIN, ("sec-websocket-protocol", &named(token))]);
        let stream = listening.connect_unknown("http/1.1").await;
        let answer = match client_async(request, stream).await {
            Ok((_, response)) => response.map(|_| ()),
            Err(Error::Http(response)) => response.map(|_| ()),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(answer.status(), code);
        let protocol = answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
        assert_eq!(protocol.is_some_and(|protocol| protocol == "base64.binary.k8s.io"), code == 101);
    }
}
