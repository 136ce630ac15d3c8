//! The world of the tests: an API server in memory, an authority, the controller of Gateways, and one node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_gateway::data::{Applied, DataHalf, UnknownKeys};
use corten_gateway::key_sets::{Fetching, is_elsewhere};
use corten_gateway::resolve::PortRange;
use corten_gateway::{control, data};
use corten_meta::Value;
use corten_routing::{BackendKey, Configuration, Endpoints};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use x509_parser::prelude::{GeneralName, parse_x509_pem};

use crate::api::Api;
use crate::authority::{Authority, Settings};

/// The bound of every wait.
const BOUND: Duration = Duration::from_secs(120);
/// The namespace of the node's Lease and of all state.
const NAMESPACE: &str = "corten-edge";

/// The proxy of the node.
struct Proxy(corten_edge::Edge);

impl DataHalf for Proxy {
    fn set_endpoints(&self, backend: &BackendKey, endpoints: &Endpoints) {
        self.0.set_endpoints(backend, endpoints);
    }

    fn apply<'a>(&'a self, configuration: &'a Configuration) -> Applied<'a> {
        Box::pin(async move { self.0.apply(configuration).await.into_iter().map(|failed| failed.key).collect() })
    }

    fn unknown_keys(&self) -> UnknownKeys<'_> {
        Box::pin(self.0.unknown_keys())
    }
}

pub struct World {
    pub api: Api,
    pub authority: Authority,
    _stop: DropGuard,
}

/// A leader that ends with its test.
pub struct Leader(JoinHandle<()>);

impl Leader {
    /// Ends the leader where it is, without a chance to clean up.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns a range of ports that no other test of this process has.
fn ports() -> PortRange {
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let base = 21000 + u16::try_from(std::process::id() % 400).unwrap() * 20;
    let first = base + number * 3;
    PortRange { first, last: first + 2 }
}

impl World {
    pub async fn start(settings: Settings) -> World {
        let api = Api::default();
        let found = api.clone();
        let authority = Authority::start(settings, Arc::new(move |port| node_address(&found, port))).await;
        let stop = CancellationToken::new();
        let fetching = Fetching { roots: String::new, is_allowed: is_elsewhere };
        let config = control::Config { identity: "one".to_owned(), leader_elect: false, ports: ports(), fetching };
        tokio::spawn(control::run(config, api.client(), stop.clone()));
        let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
        api.put(
            "nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"},
            "status": {"addresses": addresses}}),
        );
        let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let options = corten_edge::Options { addresses, ..corten_edge::Options::default() };
        let proxy = Arc::new(Proxy(corten_edge::Edge::new(options)));
        let signals = data::Signals { shutdown: stop.clone(), ..data::Signals::default() };
        tokio::spawn(data::run("node".to_owned(), api.client(), proxy, signals));
        World { api, authority, _stop: stop.drop_guard() }
    }

    /// Starts a process that orders certificates.
    pub fn lead(&self) -> Leader {
        let config = corten_acme::Config { identity: "one".to_owned(), leader_elect: false };
        Leader(tokio::spawn(corten_acme::run(config, self.api.client(), CancellationToken::new())))
    }

    /// Waits until a condition holds.
    pub async fn until(&self, expected: &str, mut holds: impl FnMut() -> bool) {
        let waiting = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let secrets = || self.api.list("secrets");
        if tokio::time::timeout(BOUND, waiting).await.is_err() {
            panic!("{expected}; orders: {:?}; secrets: {:?}", self.orders(), secrets());
        }
    }

    /// Waits until a Secret has a certificate of the authority.
    pub async fn issued(&self, name: &str) -> Value {
        let secret = || self.api.get("secrets", "shop", name);
        let is_issued = |secret: &Value| secret["metadata"]["annotations"]["edge.corten.dev/temporary"] == "false";
        self.until("a certificate is issued", || secret().as_ref().is_some_and(is_issued)).await;
        secret().unwrap()
    }

    /// Returns the answers that nodes serve.
    pub fn challenges(&self) -> Value {
        let secret = self.api.get("secrets", NAMESPACE, "acme-challenges").unwrap_or_default();
        let bytes = BASE64_STANDARD.decode(secret["data"]["challenges"].as_str().unwrap_or_default()).unwrap();
        let challenges: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        json!([challenges["http"], challenges["tls"]])
    }

    /// Adds an answer that no order needs, as a leader whose removal of it failed leaves it.
    pub fn leave_answer(&self) {
        let mut secret = self.api.get("secrets", NAMESPACE, "acme-challenges").unwrap();
        let answer = json!({"host": "a.test", "token": "left", "answer": "left"});
        let challenges = json!({"version": 100, "http": [answer], "tls": []});
        secret["data"]["challenges"] = json!(BASE64_STANDARD.encode(challenges.to_string()));
        self.api.put("secrets", secret);
    }

    /// Returns the states of orders that are under way or failed.
    pub fn orders(&self) -> Vec<Value> {
        let secrets = self.api.list("secrets");
        let orders = secrets.iter().filter(|secret| secret["metadata"]["labels"]["edge.corten.dev/acme"] == "order");
        let state = |secret: &Value| {
            let bytes = BASE64_STANDARD.decode(secret["data"]["state"].as_str().unwrap()).unwrap();
            serde_json::from_slice(&bytes).unwrap()
        };
        orders.map(state).collect()
    }

    /// Returns the number of orders that were made, or refused.
    pub fn new_orders(&self) -> usize {
        self.authority.requests("/order") - self.authority.requests("/order/")
    }

    pub fn put_hmac(&self, name: &str, key: &[u8]) {
        let printed = corten_acme::jws::encode(key);
        let data = json!({"hmac": BASE64_STANDARD.encode(printed)});
        let metadata = json!({"namespace": NAMESPACE, "name": name});
        self.api.put("secrets", json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}));
    }
}

/// Returns the address that the proxy of the node binds for a port of clients.
pub fn node_address(api: &Api, port: u16) -> Option<SocketAddr> {
    let services = api.list("services");
    let ports = services.iter().flat_map(|service| service["spec"]["ports"].as_array().into_iter().flatten());
    let found = ports.into_iter().find(|one| one["port"] == port)?;
    let bound = u16::try_from(found["targetPort"].as_u64()?).ok()?;
    Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), bound))
}

pub fn issuer(world: &World, more: Value) -> Value {
    let mut spec = json!({"directory": world.authority.url});
    corten_meta::patch::merge_patch(&mut spec, &more);
    json!({"apiVersion": "edge.corten.dev/v1alpha1", "kind": "AcmeIssuer", "metadata": {"name": "public"}, "spec": spec})
}

fn metadata() -> Value {
    let annotations = json!({"edge.corten.dev/acme-issuer": "public"});
    json!({"namespace": "shop", "name": "web", "annotations": annotations})
}

/// Returns an Ingress whose certificate for all hosts is in the Secret `tls`.
pub fn ingress(hosts: &[&str]) -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    let rules: Vec<Value> = hosts.iter().map(|host| json!({"host": host, "http": {"paths": paths}})).collect();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata(), "spec": {
        "ingressClassName": "corten", "tls": [{"hosts": hosts, "secretName": "tls"}], "rules": rules}})
}

/// Returns a Gateway with one listener, for HTTPS on port 443.
pub fn gateway(host: &str) -> Value {
    let tls = json!({"mode": "Terminate", "certificateRefs": [{"group": "", "kind": "Secret", "name": "tls"}]});
    let listener = json!({"name": "https", "port": 443, "protocol": "HTTPS", "hostname": host, "tls": tls});
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata(),
        "spec": {"gatewayClassName": "corten", "listeners": [listener]}})
}

/// Returns the DNS names of the certificate of a Secret.
pub fn certificate_names(secret: &Value) -> Vec<String> {
    let pem = BASE64_STANDARD.decode(secret["data"]["tls.crt"].as_str().unwrap()).unwrap();
    let (_, block) = parse_x509_pem(&pem).unwrap();
    let certificate = block.parse_x509().unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        other => format!("{other:?}"),
    };
    let mut names: Vec<String> = names.value.general_names.iter().map(name).collect();
    names.sort();
    names
}
