//! A node reports a Gateway only when it has read the Secrets that the Gateway's listeners name.

#![allow(clippy::unwrap_used)]

#[path = "../../acme/tests/orders/api.rs"]
mod api;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport};
use corten_gateway::data::{self, Applied, DataHalf, SERVES, UnknownKeys};
use corten_gateway::key_sets::Fetching;
use corten_gateway::{control, resolve};
use corten_meta::{GroupResource, Status, Value};
use corten_routing::{BackendKey, Configuration, Endpoints};
use futures::future::BoxFuture;
use http::{Request, Response};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::api::Api;

/// The bound of every wait.
const BOUND: Duration = Duration::from_secs(60);
const GROUP: &str = "gateway.networking.k8s.io/v1";

/// A proxy that can bind every port.
struct Proxy;

impl DataHalf for Proxy {
    fn set_endpoints(&self, _: &BackendKey, _: &Endpoints) {}

    fn apply<'a>(&'a self, _: &'a Configuration) -> Applied<'a> {
        Box::pin(async { Vec::new() })
    }

    fn unknown_keys(&self) -> UnknownKeys<'_> {
        Box::pin(std::future::pending())
    }
}

/// The API server as a node sees it that may not read Secrets yet.
struct Restricted {
    api: Api,
    may_read: Arc<AtomicBool>,
}

impl Transport for Restricted {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        if !request.uri().path().contains("/secrets") || self.may_read.load(Ordering::SeqCst) {
            return self.api.send(request);
        }
        let status = Status::forbidden(&GroupResource::new("", "secrets"), "web", "no Role permits it");
        let body = Body::Full(status.to_value().to_string().into());
        let response = Response::builder().status(status.code).body(body).unwrap();
        Box::pin(async move { Ok(response) })
    }
}

fn gateway(name: &str, listener: &Value) -> Value {
    json!({
        "apiVersion": GROUP, "kind": "Gateway", "metadata": {"name": name, "namespace": "default"},
        "spec": {"gatewayClassName": "corten", "listeners": [listener]},
    })
}

fn put_objects(api: &Api) {
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    let metadata = json!({"name": "node"});
    let status = json!({"addresses": addresses});
    api.put("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}));
    let tls = json!({"certificateRefs": [{"group": "", "kind": "Secret", "name": "web"}]});
    let secure = json!({"name": "https", "port": 443, "protocol": "HTTPS", "tls": tls});
    api.put("gateways", gateway("one-with-secret", &secure));
    api.put("gateways", gateway("other", &json!({"name": "http", "port": 80, "protocol": "HTTP"})));
}

/// Returns the Gateways that the node serves, as its Lease says.
fn served(api: &Api) -> Vec<String> {
    let lease = api.get("leases", resolve::NAMESPACE, "node").unwrap_or_default();
    let serves = lease["metadata"]["annotations"][SERVES].as_str().unwrap_or("{}").to_owned();
    serde_json::from_str::<serde_json::Map<String, Value>>(&serves).unwrap().into_iter().map(|(key, _)| key).collect()
}

/// Waits until the node serves a Gateway, and returns all that it serves then.
async fn until_served(api: &Api, gateway: &str) -> Vec<String> {
    let waiting = async {
        loop {
            let served = served(api);
            if served.iter().any(|one| one == gateway) {
                return served;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(BOUND, waiting).await;
    waited.unwrap_or_else(|_| panic!("{gateway} is not served, but {:?}; {:?}", served(api), api.list("services")))
}

#[tokio::test]
async fn a_gateway_waits_for_a_secret_that_its_node_may_not_read_yet() {
    let api = Api::default();
    put_objects(&api);
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let fetching = Fetching { roots: String::new, is_allowed: |_| true };
    let ports = resolve::PortRange::default();
    let config = control::Config { identity: "one".to_owned(), leader_elect: false, ports, fetching };
    tokio::spawn(control::run(config, api.client(), stop.clone()));
    let may_read = Arc::new(AtomicBool::new(false));
    let restricted = Restricted { api: api.clone(), may_read: Arc::clone(&may_read) };
    let signals = data::Signals { shutdown: stop.clone(), ..data::Signals::default() };
    tokio::spawn(data::run("node".to_owned(), Client::new(Arc::new(restricted)), Arc::new(Proxy), signals));

    let first = until_served(&api, "default/other").await;
    assert!(!first.iter().any(|one| one == "default/one-with-secret"), "{first:?}");
    // There is no such Secret, which the node now knows: the listener is not valid, and there is nothing to wait for.
    may_read.store(true, Ordering::SeqCst);
    until_served(&api, "default/one-with-secret").await;
}
