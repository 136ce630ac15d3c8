//! Key sets of JSON Web Tokens by URL: the leader fetches them from a real HTTPS server, and a real proxy verifies tokens.

#![allow(clippy::unwrap_used)]

#[path = "../../../acme/tests/orders/api.rs"]
mod api;
mod issuer;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use corten_gateway::data::{self, Applied, DataHalf, UnknownKeys};
use corten_gateway::key_sets::{Fetching, is_elsewhere};
use corten_gateway::{control, resolve};
use corten_meta::Value;
use corten_routing::{BackendKey, Configuration, Endpoints};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api::Api;
use crate::issuer::{Issuer, key_set, token};

/// The bound of every wait.
const BOUND: Duration = Duration::from_secs(60);
/// The time and number of rounds of a client that asks again and again.
const ROUND: Duration = Duration::from_secs(5);
const ROUNDS: usize = 12;
/// The pause between fetches because of unknown keys.
const MINUTE: Duration = Duration::from_secs(60);

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

struct World {
    api: Api,
    issuer: Issuer,
    ports: resolve::PortRange,
    _stop: DropGuard,
}

/// Returns a range of ports that no other test of this process has.
fn ports() -> resolve::PortRange {
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let first = 12000 + u16::try_from(std::process::id() % 400).unwrap() * 20 + number * 2;
    resolve::PortRange { first, last: first }
}

impl World {
    /// Starts an issuer, the leader, a node with its proxy, and a backend behind a route.
    async fn start(fetching: Fetching) -> World {
        let api = Api::default();
        let issuer = Issuer::start().await;
        let stop = CancellationToken::new();
        let ports = ports();
        put_objects(&api, backend().await, &issuer.authority);
        let config = control::Config { identity: "one".to_owned(), leader_elect: false, ports, fetching };
        tokio::spawn(control::run(config, api.client(), stop.clone()));
        let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let options = corten_edge::Options { addresses, ..corten_edge::Options::default() };
        let proxy = Arc::new(Proxy(corten_edge::Edge::new(options)));
        let signals = data::Signals { shutdown: stop.clone(), ..data::Signals::default() };
        tokio::spawn(data::run("node".to_owned(), api.client(), proxy, signals));
        World { api, issuer, ports, _stop: stop.drop_guard() }
    }

    /// Puts a policy whose keys have a URL.
    fn put_policy(&self, uri: &str) {
        let jwks = json!({"uri": uri, "caCertificateRef": {"name": "issuer"}});
        let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "web"});
        self.api.put(
            "routepolicies",
            json!({
                "apiVersion": "edge.corten.dev/v1beta1", "kind": "RoutePolicy",
                "metadata": {"name": "tokens", "namespace": "default"},
                "spec": {"targetRefs": [target], "jwt": {"jwks": jwks}},
            }),
        );
    }

    /// Returns the status of a request with a token; none without an answer.
    async fn ask(&self, token: &str) -> Option<u16> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports.first)).await.ok()?;
        let request =
            format!("GET / HTTP/1.1\r\nhost: a.example\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    /// Waits until requests with a token have a status.
    async fn until_status(&self, token: &str, expected: u16) {
        let waiting = async {
            while self.ask(token).await != Some(expected) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(BOUND, waiting).await.is_err() {
            panic!("no status {expected}, but {:?}; {:?}", self.ask(token).await, self.api.list("configmaps"));
        }
    }

    /// Returns the message of the condition of the policy's keys, if it has a reason.
    fn message(&self, reason: &str) -> Option<String> {
        let policy = self.api.get("routepolicies", "default", "tokens")?;
        let conditions = policy["status"]["ancestors"][0]["conditions"].as_array()?.clone();
        let keys = conditions.into_iter().find(|one| one["type"] == "KeysCurrent")?;
        (keys["reason"] == reason).then(|| keys["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the condition of the policy's keys has a reason, and returns its message.
    async fn until_reason(&self, reason: &str) -> String {
        let waited = tokio::time::timeout(BOUND, self.reason(reason)).await;
        waited.unwrap_or_else(|_| panic!("no reason {reason}: {:?}", self.api.list("routepolicies")))
    }

    async fn reason(&self, reason: &str) -> String {
        loop {
            if let Some(message) = self.message(reason) {
                return message;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks with a token of an unknown key, minute after minute, until it has a status.
    async fn misses_until_status(&self, token: &str, expected: u16) {
        let asking = async || {
            while self.ask(token).await != Some(expected) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        for _ in 0..ROUNDS {
            pass(MINUTE + MINUTE).await;
            if tokio::time::timeout(ROUND, asking()).await.is_ok() {
                return;
            }
        }
        panic!("no status {expected}; {:?}", self.api.list("configmaps"));
    }

    /// Asks with a token of an unknown key, minute after minute, until the condition of the policy's keys has a reason.
    async fn misses_until_reason(&self, token: &str, reason: &str) -> String {
        for _ in 0..ROUNDS {
            pass(MINUTE + MINUTE).await;
            assert_eq!(self.ask(token).await, Some(401));
            if let Ok(message) = tokio::time::timeout(ROUND, self.reason(reason)).await {
                return message;
            }
        }
        panic!("no reason {reason}: {:?}", self.api.list("routepolicies"))
    }
}

/// Starts a backend that answers every request with 200.
async fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
            });
        }
    });
    address
}

fn put_objects(api: &Api, backend: SocketAddr, authority: &str) {
    let put = |plural: &str, api_version: &str, kind: &str, name: &str, mut rest: Value| {
        let namespaced = !["Node", "Namespace"].contains(&kind);
        rest["apiVersion"] = json!(api_version);
        rest["kind"] = json!(kind);
        rest["metadata"]["name"] = json!(name);
        if namespaced {
            rest["metadata"]["namespace"] = json!("default");
        }
        api.put(plural, rest);
    };
    let group = "gateway.networking.k8s.io/v1";
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    put("nodes", "v1", "Node", "node", json!({"status": {"addresses": addresses}}));
    put("namespaces", "v1", "Namespace", "default", json!({}));
    put("configmaps", "v1", "ConfigMap", "issuer", json!({"data": {"ca.crt": authority}}));
    put("services", "v1", "Service", "web", json!({"spec": {"ports": [{"port": 80, "protocol": "TCP"}]}}));
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"port": backend.port(), "protocol": "TCP"}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
    });
    put("endpointslices", "discovery.k8s.io/v1", "EndpointSlice", "web", slice);
    let listener = json!({
        "name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "Same"}},
    });
    let gateway = json!({"spec": {"gatewayClassName": "corten", "listeners": [listener]}});
    put("gateways", group, "Gateway", "front", gateway);
    let parent = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "front"});
    let backend = json!({"group": "", "kind": "Service", "name": "web", "port": 80, "weight": 1});
    let rule = json!({"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": [backend]});
    put("httproutes", group, "HTTPRoute", "web", json!({"spec": {"parentRefs": [parent], "rules": [rule]}}));
}

/// Lets the given time pass for all timers.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

const LOCAL: Fetching = Fetching { roots: String::new, is_allowed: |_| true };

#[tokio::test]
async fn keys_are_fetched_rotate_and_outlive_their_server() {
    let world = World::start(LOCAL).await;
    world.issuer.set("/keys", 302, "location: /v2/keys\r\n", "");
    world.issuer.set("/v2/keys", 200, "cache-control: max-age=86400\r\n", &key_set(&[1]));
    world.put_policy(&world.issuer.url("/keys"));
    world.until_status(&token(1), 200).await;
    world.until_status(&token(2), 401).await;
    world.until_reason("Fetched").await;

    // The issuer rotates: a token of the new key fetches the set again, though it could be kept for a day.
    world.issuer.set("/v2/keys", 200, "cache-control: max-age=86400\r\n", &key_set(&[2]));
    world.misses_until_status(&token(2), 200).await;
    world.until_status(&token(1), 401).await;

    // The issuer fails: its last keys serve on.
    world.issuer.set("/v2/keys", 503, "", "");
    let message = world.misses_until_reason(&token(3), "FetchFailed").await;
    assert!(message.ends_with("cannot be fetched: it answers with status 503"), "{message}");
    assert_eq!(world.ask(&token(2)).await, Some(200));
    world.issuer.set("/v2/keys", 200, "", &key_set(&[2, 3]));
    world.misses_until_status(&token(3), 200).await;
    world.until_reason("Fetched").await;
}

#[tokio::test]
async fn unknown_keys_fetch_at_most_once_a_minute() {
    let world = World::start(LOCAL).await;
    world.issuer.set("/keys", 200, "cache-control: max-age=86400\r\n", &key_set(&[1]));
    world.put_policy(&world.issuer.url("/keys"));
    world.until_status(&token(1), 200).await;
    let before = world.issuer.requests();
    for _ in 0..50 {
        assert_eq!(world.ask(&token(9)).await, Some(401));
    }
    assert_eq!(world.issuer.requests(), before);
}

#[tokio::test]
async fn a_policy_closes_until_its_keys_are_there() {
    let world = World::start(LOCAL).await;
    let long = " ".repeat(70_000);
    for (path, status, headers, body, expected) in [
        ("/missing", 404, "", "", "it answers with status 404"),
        ("/elsewhere", 302, "location: https://other.example/keys\r\n", "", "it redirects to another host"),
        ("/loop", 302, "location: /loop\r\n", "", "it redirects too often"),
        ("/page", 200, "", "<html></html>", "its answer is no JSON Web Key Set"),
        ("/none", 200, "", r#"{"keys": []}"#, "its answer is no JSON Web Key Set"),
        ("/long", 200, "", long.as_str(), "an answer has more than 65536 bytes"),
    ] {
        world.issuer.set(path, status, headers, body);
        world.put_policy(&world.issuer.url(path));
        world.until_status(&token(1), 500).await;
        let url = world.issuer.url(path);
        let whole = format!("{url} cannot be fetched: {expected}");
        let waiting = async {
            while world.until_reason("FetchFailed").await != whole {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(BOUND, waiting).await.is_ok(), "{whole}");
    }
}

#[tokio::test]
async fn a_role_binding_that_is_gone_is_written_again() {
    let world = World::start(LOCAL).await;
    world.issuer.set("/keys", 200, "", &key_set(&[1]));
    world.put_policy(&world.issuer.url("/keys"));
    world.until_status(&token(1), 200).await;
    let bindings = || world.api.list("rolebindings").into_iter().filter(|one| corten_meta::name(one) == "corten-edge");
    let kind = corten_client::Resource::new("rbac.authorization.k8s.io", "v1", "rolebindings", true);
    let options = corten_client::DeleteOptions::default();
    let client = world.api.client();
    let deleted: Vec<Value> = bindings().collect();
    for binding in &deleted {
        client.dynamic(&kind).delete(corten_meta::namespace(binding), "corten-edge", &options).await.unwrap();
    }
    assert!(!deleted.is_empty());
    let written = async {
        while bindings().count() < deleted.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(BOUND, written).await.is_ok(), "{deleted:?}");
}

#[tokio::test]
async fn the_machine_itself_is_never_asked() {
    let world = World::start(Fetching { is_allowed: is_elsewhere, ..LOCAL }).await;
    world.issuer.set("/keys", 200, "", &key_set(&[1]));
    world.put_policy(&world.issuer.url("/keys"));
    let message = world.until_reason("FetchFailed").await;
    assert!(message.ends_with("is an address of the machine itself"), "{message}");
    assert_eq!(world.issuer.requests(), 0);
}
