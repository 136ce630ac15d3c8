//! OpenTelemetry spans of requests: which are sampled, and what webhooks learn of them.

use corten_apiserver::Config;
use corten_spans::{Configuration, Context, Tracer};
use serde_json::json;

use crate::hook::{Hook, allow};
use crate::server::{TestServer, config, send};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Starts a server with a tracer of this rate, and a webhook that sees ConfigMaps.
async fn traced(rate: u32) -> (TestServer, Hook) {
    let configuration = Configuration { endpoint: "localhost:1".to_owned(), sampling_rate_per_million: rate };
    // Without its exporter, the tracer's spans go nowhere; only what is passed on counts here.
    let (tracer, _) = Tracer::new(&configuration, Vec::new());
    let server = TestServer::with(Config { tracer: Some(tracer), ..config() }).await;
    let hook = Hook::start(|_, request| allow(request)).await;
    let rules =
        json!([{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"] }]);
    let webhook = json!({ "name": "a.hook.test", "clientConfig": hook.client("/"), "rules": rules, "sideEffects": "None",
                          "admissionReviewVersions": ["v1"] });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    server.post(path, json!({ "metadata": { "name": "a" }, "webhooks": [webhook] })).await.expect(201);
    server.get(path).await.expect(200);
    (server, hook)
}

/// Creates a ConfigMap as a user; returns what the webhook learned of the trace.
async fn create(server: &TestServer, hook: &Hook, group: &str, name: &str, parent: Option<&str>) -> Option<Context> {
    let body = json!({ "metadata": { "name": name } }).to_string();
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(parent.map(|parent| ("traceparent", parent)));
    let user = server.user("jane", &["system:masters", group]);
    send(&user, "POST", CONFIGMAPS, body.into(), &headers).await.expect(201);
    let seen = hook.traceparents().pop().unwrap();
    seen.map(|parent| Context::parse(&parent).unwrap())
}

#[tokio::test]
async fn a_trusted_client_decides_and_webhooks_learn_the_trace() {
    let (server, hook) = traced(0).await;
    let parent = Context::parse(PARENT).unwrap();
    let seen = create(&server, &hook, "system:masters", "a", Some(PARENT)).await.unwrap();
    assert_eq!((seen.trace, seen.is_sampled), (parent.trace, true));
    assert_ne!(seen.span, parent.span, "the call is a span of its own");
    assert_eq!(create(&server, &hook, "dev", "b", None).await, None, "no request is sampled at a rate of zero");
    let unsampled = PARENT.replace("-01", "-00");
    assert_eq!(create(&server, &hook, "dev", "c", Some(&unsampled)).await, None);
    let malformed = create(&server, &hook, "dev", "d", Some("00-nonsense")).await;
    assert_eq!(malformed, None);
}

#[tokio::test]
async fn every_request_is_sampled_at_a_rate_of_a_million() {
    let (server, hook) = traced(1_000_000).await;
    let first = create(&server, &hook, "dev", "a", None).await.unwrap();
    let second = create(&server, &hook, "dev", "b", None).await.unwrap();
    assert_ne!(first.trace, second.trace);
}
