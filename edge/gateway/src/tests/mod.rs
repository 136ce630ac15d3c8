//! Tests of the resolution as text: the files in `scripts`.
//!
//! A line of the fixture language puts an object; a kind of Gateway API needs no group. The other commands:
//!
//! | command | effect and output |
//! |---|---|
//! | `node NAME ADDRESS` | adds a node that serves every Gateway |
//! | `late NAME` | lets a node serve nothing yet |
//! | `settle` | writes Services with an address each, and statuses, until nothing changes |
//! | `status KIND NAME` | prints the conditions of an object, of its listeners or of its parents |
//! | `routes` | prints the routing configuration |
//! | `services` | prints the ports of Services, and the addresses |
//! | `certificate NAME` | puts a Secret with a certificate for the host of this name |
//! | `challenge HOST TOKEN` | puts the Secret with an answer to a challenge of ACME |
//! | `delete KIND NAME` | |
//! | `ask [METHOD] URL [NAME:VALUE]` | prints the backends of a request, or the status of one that no rule takes |
//! | `events` | prints the events |

mod imports;
mod live;
mod print;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_client::Change;
use corten_meta::{Key, Object, Value};
use serde_json::json;
use testkit_fixture::split;

use crate::objects::{DataNode, Objects};
use crate::resolve::{self, CHALLENGES_ENTRY, Challenges, HttpChallenge, PortRange, Resolved, TlsChallenge};
use crate::{trace, world};

/// The state of one case: objects by kind and key, and what follows from them.
#[derive(Default)]
pub struct Scene {
    values: BTreeMap<(String, Key), Value>,
    nodes: BTreeMap<String, DataNode>,
    late: Vec<String>,
}

/// The kinds of Gateway API, by their words in scripts.
const KINDS: [(&str, &str, &str); 11] = [
    ("gatewayclass", "GatewayClass", "gatewayclasses"),
    ("gateway", "Gateway", "gateways"),
    ("listenerset", "ListenerSet", "listenersets"),
    ("httproute", "HTTPRoute", "httproutes"),
    ("grpcroute", "GRPCRoute", "grpcroutes"),
    ("tlsroute", "TLSRoute", "tlsroutes"),
    ("tcproute", "TCPRoute", "tcproutes"),
    ("udproute", "UDPRoute", "udproutes"),
    ("grant", "ReferenceGrant", "referencegrants"),
    ("tlspolicy", "BackendTLSPolicy", "backendtlspolicies"),
    ("routepolicy", "RoutePolicy", "routepolicies"),
];

fn plural_of(kind: &str) -> String {
    if let Some((_, _, plural)) = KINDS.iter().find(|(word, name, _)| *word == kind || *name == kind) {
        return (*plural).to_owned();
    }
    let kind = kind.to_lowercase();
    let ending = if kind.ends_with('s') { "es" } else { "s" };
    format!("{kind}{ending}")
}

pub fn run(scene: &mut Scene, command: &str) -> String {
    scene.run(command).unwrap_or_else(|error| format!("error: {error}"))
}

impl Scene {
    fn run(&mut self, command: &str) -> Result<String, String> {
        let words = split(command)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["node", name, address] => {
                let addresses = vec![address.parse().map_err(|_| "an address")?];
                self.nodes.insert((*name).to_owned(), DataNode { addresses, serves: BTreeMap::new() });
                Ok(String::new())
            }
            ["late", name] => {
                self.late.push((*name).to_owned());
                Ok(String::new())
            }
            ["certificate", name] => {
                self.put(certificate(name)?);
                Ok(String::new())
            }
            ["challenge", host, token] => {
                self.put(challenge(host, token));
                Ok(String::new())
            }
            ["settle"] => self.settle(),
            ["delete", kind, name] => {
                let key = key_of(kind, name);
                let place = (plural_of(kind), key);
                self.values.remove(&place).map(|_| String::new()).ok_or_else(|| "no such object".to_owned())
            }
            ["status", kind, name] => self.status(kind, name),
            ["routes"] => {
                live::check_each_route(&self.objects());
                Ok(print::configuration(&self.resolved().configuration))
            }
            ["services"] => Ok(self.services()),
            ["ask", words @ ..] => self.ask(words),
            ["events"] => {
                let events = self.resolved().events;
                let lines = events.iter().map(|one| format!("{} {}: {}", one.reason, one.key.name, one.message));
                Ok(lines.collect::<Vec<_>>().join("\n"))
            }
            [word, ..] => {
                let known = KINDS.iter().find(|(kind, _, _)| kind == word);
                let line = match known {
                    Some((_, kind, _)) => command.replacen(word, &format!("gateway.networking.k8s.io/v1/{kind}"), 1),
                    None => command.to_owned(),
                };
                let mut value = testkit_fixture::parse(&line)?;
                if known.is_some() {
                    move_to_spec(&mut value);
                }
                self.put(value);
                Ok(String::new())
            }
            [] => Err("a command".to_owned()),
        }
    }

    fn put(&mut self, mut value: Value) {
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        let mut key = Key::new(corten_meta::namespace(&value), corten_meta::name(&value));
        if ["GatewayClass", "IngressClass", "Namespace"].contains(&kind.as_str()) {
            key.namespace = String::new();
            value["metadata"]["namespace"] = Value::Null;
        }
        value["metadata"]["generation"] = json!(1);
        let place = (plural_of(&kind), key);
        if let Some(status) = self.values.get(&place).map(|known| known["status"].clone()) {
            value["status"] = status;
        }
        corten_meta::patch::discard_nulls(&mut value);
        self.values.insert(place, value);
    }

    fn objects(&self) -> Objects {
        let mut objects = Objects::default();
        for ((plural, key), value) in &self.values {
            let object = Object::from_value(value, 0).map(std::sync::Arc::new).ok();
            world::keep_by_plural(&mut objects, plural, &Change { key: key.clone(), old: None, new: object });
        }
        objects.nodes = self.nodes.clone();
        for (name, node) in &mut objects.nodes {
            if !self.late.contains(name) {
                let gateways = objects.gateways.iter();
                node.serves = gateways.map(|(key, gateway)| (key.clone(), gateway.metadata.generation)).collect();
            }
        }
        objects
    }

    fn resolved(&self) -> Resolved {
        resolve::resolve(&self.objects(), "2026-01-01T00:00:00Z")
    }

    /// Writes Services with an address each, and statuses, until a round changes nothing.
    fn settle(&mut self) -> Result<String, String> {
        for _ in 0..5 {
            let before = self.values.clone();
            let objects = self.objects();
            let resolved = self.resolved();
            for service in resolve::allocate(&objects.services, &resolved.services, PortRange::default()) {
                let place = ("services".to_owned(), service.key.clone());
                let status = self.values.get(&place).map(|known| known["status"].clone());
                let number = self.values.keys().filter(|(plural, _)| plural == "services").count();
                let assigned = json!({"loadBalancer": {"ingress": [{"ip": format!("203.0.113.{number}")}]}});
                let mut object = service.object;
                object["status"] = status.unwrap_or(assigned);
                self.values.insert(place, object);
            }
            for wanted in resolved.statuses {
                if let Some(object) = self.values.get_mut(&(wanted.plural.to_owned(), wanted.key)) {
                    object["status"] = wanted.status;
                }
            }
            if self.values == before {
                return Ok(String::new());
            }
        }
        Err("the statuses never settle".to_owned())
    }

    fn status(&self, kind: &str, name: &str) -> Result<String, String> {
        let key = key_of(kind, name);
        let plural = plural_of(kind);
        let resolved = self.resolved();
        let wanted = resolved.statuses.iter().find(|one| one.plural == plural && one.key == key);
        Ok(wanted.map_or_else(|| "none".to_owned(), |wanted| print::status(&wanted.status)))
    }

    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let url = words.iter().find(|word| word.contains("://")).ok_or("a URL")?;
        let method = words.iter().find(|word| word.bytes().all(|byte| byte.is_ascii_uppercase())).unwrap_or(&"GET");
        let pairs = words.iter().filter(|word| !word.contains("://")).filter_map(|word| word.split_once(':'));
        let header = |(name, value): (&str, &str)| {
            let name = http::HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
            Ok((name, http::HeaderValue::from_str(value).map_err(|error| error.to_string())?))
        };
        let headers = pairs.map(header).collect::<Result<http::HeaderMap, String>>()?;
        let question = trace::Question::new(url, method, headers).map_err(|error| error.to_string())?;
        let resolved = self.resolved();
        let hits = trace::follow(&resolved.configuration, &question);
        let hit = |hit: &trace::Hit<'_>| match &hit.outcome {
            trace::Outcome::Rule { rule, .. } => print::consequences(rule),
            trace::Outcome::Passthrough(_) => "passthrough".to_owned(),
            trace::Outcome::NoRule(_) | trace::Outcome::NoHost => "404".to_owned(),
            trace::Outcome::OtherProtocol => "another protocol".to_owned(),
        };
        Ok(hits.iter().map(hit).collect::<Vec<_>>().join("\n"))
    }

    fn services(&self) -> String {
        let objects = self.objects();
        let allocated = resolve::allocate(&objects.services, &self.resolved().services, PortRange::default());
        let lines: Vec<String> = allocated.iter().map(|service| print::service(&objects, service)).collect();
        if lines.is_empty() { "none".to_owned() } else { lines.join("\n") }
    }
}

/// Moves the fields of an object without a schema to its spec.
fn move_to_spec(value: &mut Value) {
    let Some(fields) = value.as_object_mut() else { return };
    let names: Vec<String> = fields.keys().cloned().collect();
    let top = ["apiVersion", "kind", "metadata", "spec", "status"];
    let moved = names.into_iter().filter(|name| !top.contains(&name.as_str()));
    let moved: serde_json::Map<String, Value> =
        moved.filter_map(|name| fields.remove(&name).map(|field| (name, field))).collect();
    if !moved.is_empty() {
        fields.insert("spec".to_owned(), Value::Object(moved));
    }
}

fn key_of(kind: &str, name: &str) -> Key {
    match name.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None if kind.ends_with("class") => Key::new("", name),
        None => Key::new("default", name),
    }
}

/// Returns a Secret with a certificate for a host.
fn certificate(name: &str) -> Result<Value, String> {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let made =
        rcgen::generate_simple_self_signed(vec![format!("{name}.example.com")]).map_err(|one| one.to_string())?;
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {
            "tls.crt": BASE64_STANDARD.encode(made.cert.pem()),
            "tls.key": BASE64_STANDARD.encode(made.signing_key.serialize_pem()),
        },
    }))
}

/// Returns the Secret with an answer to a challenge of ACME by HTTP, and the certificate of one by TLS.
fn challenge(host: &str, token: &str) -> Value {
    let http = HttpChallenge { host: host.to_owned(), token: token.to_owned(), answer: "answer".to_owned() };
    let tls = TlsChallenge { host: host.to_owned(), certificate: String::new(), key: String::new() };
    let challenges = Challenges { version: 7, http: vec![http], tls: vec![tls] };
    let text = serde_json::to_string(&challenges).unwrap_or_default();
    let key = Challenges::secret();
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": key.name, "namespace": key.namespace},
        "data": {CHALLENGES_ENTRY: BASE64_STANDARD.encode(text)},
    })
}

testkit_fixture::scripts!(Scene::default, run;
    annotations attachment certificates challenges gateways http ingress ingress_conformance listener_sets references
    route_policies streams tls_policies);
