//! Complete requests through the pipeline of a real API server, and the parts of requests that it reads first.
//!
//! They change nothing: every write is a dry run, and paths to other servers are not requested.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_apiserver::{Body, Config, Identity, Peer, RequestBody, Server, User};
use http::{Method, Request};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{block_on, joined, parts, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "request", seeds: request_seeds, run: request },
    Target { name: "apply", seeds: apply_seeds, run: apply },
    Target { name: "custom-resource", seeds: custom_seeds, run: custom_resource },
    Target { name: "custom-definition", seeds: definition_seeds, run: custom_definition },
    Target { name: "list-query", seeds: list_seeds, run: list_query },
    Target { name: "token", seeds: token_seeds, run: token },
    Target { name: "request-line", seeds: line_seeds, run: request_line },
    Target { name: "accept", seeds: accept_seeds, run: accept },
    Target { name: "proxied-page", seeds: page_seeds, run: proxied_page },
];

/// The time after which a request counts as hanging.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

struct ApiServer {
    server: Arc<Server>,
    admin: Peer,
    _data: tempfile::TempDir,
}

/// The answer to one request.
struct Answer {
    code: u16,
    body: Bytes,
}

struct RequestSpec<'a> {
    method: &'a str,
    path: &'a str,
    content_type: &'a str,
    accept: &'a str,
    body: &'a [u8],
}

impl ApiServer {
    async fn start() -> ApiServer {
        let data = tempfile::tempdir().expect("a directory for the store");
        let store = corten_store::Embedded::open(corten_store::Config::new(data.path())).expect("the store opens");
        let server = Server::new(Config::default(), store).await.expect("the API server starts");
        let admin = User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() };
        let server = ApiServer { server, admin: peer(Identity::Certificate(admin)), _data: data };
        server.fill().await;
        server
    }

    /// Creates the objects that requests are about: a CustomResourceDefinition, its resource, and objects to change.
    async fn fill(&self) {
        self.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition()).await;
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
        self.make("/api/v1/namespaces/default/configmaps", &object).await;
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        let deployment =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec});
        self.make("/apis/apps/v1/namespaces/default/deployments", &deployment).await;
        for _ in 0..1_000 {
            let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
            let made = self.post("/apis/example.com/v1/namespaces/default/widgets", &widget).await;
            if made.is_some_and(|answer| answer.code == 201) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the definition is not established");
    }

    async fn make(&self, path: &str, object: &Value) {
        let answer = self.post(path, object).await.expect("an answer");
        assert_eq!(answer.code, 201, "{path} takes an object: {:?}", answer.body);
    }

    async fn post(&self, path: &str, object: &Value) -> Option<Answer> {
        let body = object.to_string();
        let request_spec =
            RequestSpec { method: "POST", path, content_type: "application/json", accept: "", body: body.as_bytes() };
        self.ask(&request_spec).await
    }

    /// Sends a request; `None` if it is invalid.
    async fn ask(&self, request_spec: &RequestSpec<'_>) -> Option<Answer> {
        let request = Request::builder()
            .method(Method::from_bytes(request_spec.method.as_bytes()).ok()?)
            .uri(request_spec.path)
            .header("content-type", request_spec.content_type)
            .header("accept", request_spec.accept)
            .body(RequestBody::Full(Bytes::copy_from_slice(request_spec.body)))
            .ok()?;
        Some(self.send(request, &self.admin).await)
    }

    async fn send(&self, request: Request<RequestBody>, peer: &Peer) -> Answer {
        let reply = self.server.handle(request, peer).await;
        let code = reply.status().as_u16();
        let body = match reply.into_body().joined() {
            Body::Full(body) => body,
            _ => Bytes::new(),
        };
        Answer { code, body }
    }
}

fn peer(identity: Identity) -> Peer {
    Peer { identity, address: None, expires: None, slot: None }
}

fn with_server(use_it: impl AsyncFnOnce(&ApiServer)) {
    thread_local! {
        static SERVER: OnceCell<ApiServer> = const { OnceCell::new() };
    }
    SERVER.with(|server| {
        let server = server.get_or_init(|| block_on(ApiServer::start()));
        block_on(use_it(server));
    });
}

/// Sends a request as a dry run. An answer of the type JSON must be JSON.
fn dry_run(request_spec: &RequestSpec<'_>) {
    let leads_elsewhere =
        ["proxy", "portforward", "exec", "attach", "log"].iter().any(|word| request_spec.path.contains(word));
    if leads_elsewhere {
        return;
    }
    let between = if request_spec.path.contains('?') { '&' } else { '?' };
    let path = format!("{}{between}dryRun=All", request_spec.path);
    let request_spec = RequestSpec { path: &path, ..*request_spec };
    with_server(async |server| {
        let Ok(Some(answer)) = timeout(LONGEST_WAIT, server.ask(&request_spec)).await else { return };
        if answer.body.starts_with(b"{") {
            let _: Value = serde_json::from_slice(&answer.body).expect("an answer in JSON");
        }
    });
}

/// Returns seeds: method, path, type of the body, accepted type, body.
fn request_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = super::api::objects()
        .iter()
        .filter_map(|object| {
            let version = object["apiVersion"].as_str()?;
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let kind = corten_api::by_gvk(group, version, object["kind"].as_str()?)?;
            let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
            let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
            let path = format!("{root}{namespace}/{}?fieldValidation=Strict", kind.plural);
            Some(joined(&["POST", &path, "application/json", "application/json", &object.to_string()]))
        })
        .collect();
    const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/d";
    for [method, path, content, accept, body] in [
        ["PATCH", DEPLOYMENT, "application/json-patch+json", "", r#"[{"op":"add","path":"/spec/replicas","value":3}]"#],
        ["PATCH", DEPLOYMENT, "application/merge-patch+json", "", r#"{"spec":{"replicas":3,"template":null}}"#],
        [
            "PATCH",
            DEPLOYMENT,
            "application/strategic-merge-patch+json",
            "",
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"j"}]}}}}"#,
        ],
        [
            "PATCH",
            "/apis/apps/v1/namespaces/default/deployments/d/scale",
            "application/merge-patch+json",
            "",
            r#"{"spec":{"replicas":2}}"#,
        ],
        [
            "PUT",
            "/api/v1/namespaces/default/configmaps/a",
            "application/yaml",
            "application/yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: w}\n",
        ],
        [
            "DELETE",
            "/api/v1/namespaces/default/configmaps/a",
            "application/json",
            "",
            r#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"x"},"propagationPolicy":"Foreground"}"#,
        ],
        [
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "application/json",
            "",
            r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"a.b.c"}}"#,
        ],
        [
            "POST",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "application/json",
            "",
            r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"user":"a","resourceAttributes":{"verb":"get","resource":"pods","fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]}]}}}}"#,
        ],
        [
            "POST",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            "application/json",
            "",
            r#"{"kind":"CertificateSigningRequest","apiVersion":"certificates.k8s.io/v1","metadata":{"name":"a"},"spec":{"request":"LS0t","signerName":"a.b/c","usages":["client auth"]}}"#,
        ],
        [
            "POST",
            "/api/v1/namespaces/default/serviceaccounts/default/token",
            "application/json",
            "",
            r#"{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":["a"],"expirationSeconds":600}}"#,
        ],
        ["DELETE", "/api/v1/namespaces/default/configmaps?labelSelector=a%3Db", "", "", ""],
    ] {
        seeds.push(joined(&[method, path, content, accept, body]));
    }
    seeds
}

fn request(input: &[u8]) {
    let [method, path, content_type, accept, body] = parts::<5>(input);
    let (Some(method), Some(path), Some(content_type), Some(accept)) =
        (text(method), text(path), text(content_type), text(accept))
    else {
        return;
    };
    dry_run(&RequestSpec { method, path, content_type, accept, body });
}

fn apply_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, managedFields: null}\nspec:\n  template:\n    spec:\n      containers:\n      - {name: c, image: j, ports: [{containerPort: 80, protocol: TCP}]}\n",
        r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"x":"y"},"finalizers":["a/b"]},"spec":{"replicas":5}}"#,
    ])
}

fn apply(input: &[u8]) {
    let path = "/apis/apps/v1/namespaces/default/deployments/d?fieldManager=m&force=true";
    dry_run(&RequestSpec {
        method: "PATCH",
        path,
        content_type: "application/apply-patch+yaml",
        accept: "",
        body: input,
    });
}

/// Returns a CustomResourceDefinition with rules, defaults and lists of every kind.
fn definition() -> Value {
    let item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 20, "pattern": "^[a-z]+$"},
        "value": {"x-kubernetes-int-or-string": true}}});
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "format": "int32", "minimum": 1, "default": 1},
        "when": {"type": "string", "format": "date-time"}, "any": {"x-kubernetes-preserve-unknown-fields": true, "type": "object"},
        "items": {"type": "array", "maxItems": 9, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item},
        "tags": {"type": "array", "maxItems": 9, "x-kubernetes-list-type": "set", "items": {"type": "string", "maxLength": 9}},
        "choice": {"type": "object", "additionalProperties": {"type": "number"}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        "x-kubernetes-validations": [{"rule": "self.size < 100 && (!has(self.items) || self.items.all(i, i.name != 'z'))", "messageExpression": "self.size > 9 ? 'large' : 'small'"}]});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": {"type": "object", "properties": {"n": {"type": "integer"}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.n"}},
        "selectableFields": [{"jsonPath": ".spec.when"}],
        "additionalPrinterColumns": [{"name": "s", "type": "integer", "jsonPath": ".spec.items[0].value"}]}]}})
}

fn custom_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"x"},"spec":{"size":3,"when":"2026-01-02T03:04:05Z",
        "items":[{"name":"a","value":"5%"},{"name":"b","value":7}],"tags":["t"],"any":{"x":[1]},"choice":{"a":1.5}}}"#,
    ])
}

fn custom_resource(input: &[u8]) {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let path = "/apis/example.com/v1/namespaces/default/widgets?fieldValidation=Strict";
    dry_run(&RequestSpec { method: "POST", path, content_type: "application/json", accept: table, body: input });
    let path = "/apis/example.com/v1/namespaces/default/widgets/w";
    dry_run(&RequestSpec { method: "PUT", path, content_type: "application/yaml", accept: "", body: input });
    let path = "/apis/example.com/v1/namespaces/default/widgets/w?fieldManager=m&force=true";
    dry_run(&RequestSpec {
        method: "PATCH",
        path,
        content_type: "application/apply-patch+yaml",
        accept: "",
        body: input,
    });
}

fn definition_seeds() -> Vec<Vec<u8>> {
    let mut other = definition();
    other["metadata"]["name"] = json!("gadgets.example.com");
    other["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    vec![other.to_string().into_bytes()]
}

fn custom_definition(input: &[u8]) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    dry_run(&RequestSpec { method: "POST", path, content_type: "application/json", accept: "", body: input });
}

fn list_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "labelSelector=a%3Db,c&fieldSelector=metadata.name%3Da&limit=1",
        "limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0",
        "resourceVersion=1&resourceVersionMatch=Exact&limit=500&timeoutSeconds=1",
        "watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
    ])
}

fn list_query(input: &[u8]) {
    let Some(query) = text(input) else { return };
    let path = format!("/api/v1/namespaces/default/configmaps?{query}");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    dry_run(&RequestSpec { method: "GET", path: &path, content_type: "", accept: table, body: &[] });
}

fn token_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50IiwiZXhwIjoxfQ.AAAA",
        "Bearer abcdef.0123456789abcdef",
        "bearer  x",
        "Basic YTpi",
    ])
}

/// Sends a header of a client without a certificate. No header may authenticate it.
fn token(input: &[u8]) {
    let Ok(header) = http::HeaderValue::from_bytes(input) else { return };
    with_server(async |server| {
        let request =
            Request::get("/api/v1/secrets").header("authorization", &header).body(RequestBody::Full(Bytes::new()));
        let Ok(request) = request else { return };
        let answer = server.send(request, &peer(Identity::None)).await;
        assert!(matches!(answer.code, 401 | 403), "an anonymous client must not read secrets");
        let protocol = [b"base64url.bearer.authorization.k8s.io.".as_slice(), input].concat();
        let request = Request::get("/api/v1/secrets")
            .header("sec-websocket-protocol", protocol)
            .body(RequestBody::Full(Bytes::new()));
        let Ok(request) = request else { return };
        let answer = server.send(request, &peer(Identity::None)).await;
        assert!(matches!(answer.code, 401 | 403), "an anonymous client must not read secrets");
    });
}

fn line_seeds() -> Vec<Vec<u8>> {
    [
        ["GET", "/api/v1/namespaces/default/pods/a/log", "container=c&follow=true"],
        ["POST", "/apis/apps/v1/namespaces/a%2Fb/deployments", "dryRun=All"],
        ["GET", "/api/v1/watch/namespaces/default/pods/%00/../x", "watch=0&fieldSelector=a%"],
        ["DELETE", "/api/v1/proxy/nodes/n//healthz", ""],
    ]
    .iter()
    .map(|line| joined(line))
    .collect()
}

fn request_line(input: &[u8]) {
    let [method, path, query] = parts::<3>(input);
    let (Ok(method), Some(path), Some(query)) = (Method::from_bytes(method), text(path), text(query)) else { return };
    let read = corten_apiserver::fuzz::request(&method, path, query);
    assert!(read.len() <= 3 * path.len(), "a path does not grow but by what replaces bytes that are no text");
}

fn accept_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.9,*/*;q=0.1",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/apidiscovery.v2+json;profile=nopeer, application/cbor-seq, text/plain;q=1.5",
    ])
}

fn accept(input: &[u8]) {
    let _ = corten_apiserver::fuzz::accept(input);
}

fn page_seeds() -> Vec<Vec<u8>> {
    let page = "<!DOCTYPE html><!-- c --><a HREF='/x?y#z' class=b>t</a><img src=//10.0.0.1:80/i.png><script src=\"http://10.0.0.1:80/\">";
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, page.as_bytes()).expect("memory is writable");
    vec![page.as_bytes().to_vec(), packed.finish().expect("memory is writable")]
}

fn proxied_page(input: &[u8]) {
    let _ = corten_apiserver::fuzz::page(input);
    let _ = corten_apiserver::fuzz::packed_page(input);
}
