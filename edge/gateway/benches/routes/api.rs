//! An API server with synthetic objects, which it encodes when they are sent: they take no memory before that.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport};
use corten_meta::Value;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The resource version of all objects that are there from the beginning.
const BEGINNING: u64 = 1000;

/// The API server. Clones share it.
#[derive(Clone)]
pub struct Api {
    routes: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    revision: u64,
    watchers: Vec<mpsc::UnboundedSender<Result<Bytes, Error>>>,
}

impl Api {
    pub fn new(routes: usize) -> Api {
        Api { routes, state: Arc::new(Mutex::new(State { revision: BEGINNING, watchers: Vec::new() })) }
    }

    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    /// Adds a route, and returns its host.
    pub fn add_route(&self, number: usize) -> String {
        self.send("ADDED", number, false);
        host(number)
    }

    /// Writes the status of a route.
    pub fn write_status(&self, number: usize) {
        self.send("MODIFIED", number, true);
    }

    fn send(&self, kind: &str, number: usize, has_status: bool) {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        let frame = frame(kind, &route(number, state.revision, has_status));
        state.watchers.retain(|watcher| watcher.send(Ok(frame.clone())).is_ok());
    }

    /// Answers a watch: the objects that are there, the bookmark, and later changes.
    fn watch(&self, plural: &str) -> Body {
        let bookmark = json!({
            "apiVersion": "v1", "kind": "Bookmark",
            "metadata": {"resourceVersion": BEGINNING.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        let first: Vec<Value> = objects(plural);
        let routes = if plural == "httproutes" { self.routes } else { 0 };
        let first = first.into_iter().map(|object| frame("ADDED", &object));
        let first = first.chain((0..routes).map(|number| frame("ADDED", &route(number, BEGINNING, true))));
        let first = first.chain([frame("BOOKMARK", &bookmark)]).map(Ok);
        let (watcher, later) = mpsc::unbounded_channel();
        if plural == "httproutes" {
            self.state.lock().unwrap().watchers.push(watcher);
            return Body::Stream(futures::stream::iter(first).chain(UnboundedReceiverStream::new(later)).boxed());
        }
        Body::Stream(futures::stream::iter(first).chain(futures::stream::pending()).boxed())
    }
}

impl Transport for Api {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let path = request.uri().path();
        let plural = path.rsplit('/').next().unwrap_or_default();
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let body = match (is_watch, plural) {
            (true, plural) => self.watch(plural),
            (false, "v1" | "v1beta1") => Body::Full(discovery().to_string().into()),
            (false, _) => Body::Full("{}".into()),
        };
        Box::pin(async move { Ok(Response::new(body)) })
    }
}

fn discovery() -> Value {
    let names = [
        "gatewayclasses",
        "gateways",
        "listenersets",
        "httproutes",
        "grpcroutes",
        "tlsroutes",
        "tcproutes",
        "udproutes",
        "referencegrants",
        "backendtlspolicies",
        "routepolicies",
    ];
    json!({"resources": names.map(|name| json!({"name": name}))})
}

fn frame(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": kind, "object": object})).into()
}

fn host(number: usize) -> String {
    format!("route-{number}.example.com")
}

fn metadata(name: &str, namespace: &str) -> Value {
    json!({
        "name": name, "namespace": namespace, "uid": format!("0d1f2a3b-4c5d-4e6f-8a9b-{name:.12}"), "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": BEGINNING.to_string(),
    })
}

/// Returns the objects of a kind beside routes.
fn objects(plural: &str) -> Vec<Value> {
    match plural {
        "gatewayclasses" => vec![json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": metadata("corten", ""),
            "spec": {"controllerName": "corten.dev/gateway"},
        })],
        "gateways" => vec![json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata("front", "default"),
            "spec": {"gatewayClassName": "corten", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        })],
        "services" => {
            let mut own = metadata("front-corten", "default");
            own["labels"] = json!({"corten.dev/edge": "gateway"});
            let port = json!({"name": "tcp-80", "port": 80, "protocol": "TCP", "targetPort": 28911});
            let service = |metadata: Value, port: Value| {
                json!({
                    "apiVersion": "v1", "kind": "Service", "metadata": metadata,
                    "spec": {"type": "LoadBalancer", "ports": [port]},
                })
            };
            vec![service(own, port), service(metadata("web", "default"), json!({"name": "http", "port": 80}))]
        }
        "endpointslices" => {
            let mut metadata = metadata("web-1", "default");
            metadata["labels"] = json!({"kubernetes.io/service-name": "web"});
            vec![json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
                "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
            })]
        }
        _ => Vec::new(),
    }
}

/// Returns a route as the API server has it.
fn route(number: usize, revision: u64, has_status: bool) -> Value {
    let mut metadata = metadata(&format!("route-{number}"), "default");
    metadata["resourceVersion"] = json!(revision.to_string());
    metadata["managedFields"] = json!([{
        "manager": "kubectl-create", "operation": "Update", "apiVersion": "gateway.networking.k8s.io/v1",
        "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {".": {}, "f:hostnames": {}, "f:parentRefs": {}, "f:rules": {}}},
    }]);
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": kind, "message": "the route is attached",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        })
    };
    let parent = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "front"});
    let backend = json!({"group": "", "kind": "Service", "name": "web", "port": 80, "weight": 1});
    let mut route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": metadata,
        "spec": {
            "hostnames": [host(number)],
            "parentRefs": [parent],
            "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": [backend]}],
        },
    });
    if has_status {
        let conditions = [condition("Accepted"), condition("ResolvedRefs")];
        let parents = json!([{"controllerName": "corten.dev/gateway", "parentRef": parent, "conditions": conditions}]);
        route["status"] = json!({"parents": parents});
    }
    route
}
