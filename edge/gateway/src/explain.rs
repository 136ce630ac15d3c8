//! Explains the routes of an Ingress or route: what follows from it, why a part is not served, and the way of a request.
//!
//! The objects are read with the rights of the user who asks, and resolved by the same function as on every node.

use std::sync::Arc;

use corten_client::{Change, Client, Error, ListOptions};
use corten_meta::{Key, Object, Value};
use corten_routing::{BackendKey, BackendRef, Endpoints, Hosts, HttpHost, HttpRule, ListenerKey, ListenerProtocol};
use corten_routing::{TlsHost, TlsUse};

use crate::data;
use crate::objects::Objects;
use crate::resolve::{self, Resolved};
use crate::trace::{self, Hit, Outcome, Question};
use crate::world;

/// The most rules that are printed.
const MAX_RULES: usize = 200;
/// The most rounds in which Secrets are read that others name.
const ROUNDS: usize = 3;

/// The object to explain.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Ingress, HTTPRoute or GRPCRoute.
    pub kind: &'static str,
    pub key: Key,
}

impl Subject {
    /// Returns the subject of a resource; None if it has no rules.
    pub fn new(group: &str, plural: &str, key: Key) -> Option<Subject> {
        let kind = match (group, plural) {
            ("networking.k8s.io", "ingresses") => "Ingress",
            (crate::crds::GROUP, "httproutes") => "HTTPRoute",
            (crate::crds::GROUP, "grpcroutes") => "GRPCRoute",
            _ => return None,
        };
        Some(Subject { kind, key })
    }

    fn plural(&self) -> &'static str {
        match self.kind {
            "Ingress" => "ingresses",
            "HTTPRoute" => "httproutes",
            _ => "grpcroutes",
        }
    }

    fn is_route_of(&self, rule: &HttpRule) -> bool {
        rule.route.kind == self.kind
            && *rule.route.namespace == *self.key.namespace
            && *rule.route.name == *self.key.name
    }
}

/// The objects of the cluster, resolved.
pub struct World {
    client: Client,
    objects: Objects,
    resolved: Resolved,
}

impl World {
    /// Reads the objects that routes depend on. Secrets that the user may not read count as missing.
    pub async fn load(client: Client) -> Result<World, Error> {
        let mut objects = Objects::default();
        for kind in world::kinds() {
            let list = match client.dynamic(&kind).list("", &ListOptions::default()).await {
                Err(error) if error.is_not_found() => continue,
                list => list?,
            };
            for item in list.items {
                world::keep_by_plural(&mut objects, &kind.plural, &change(item));
            }
        }
        let mut resolved = resolve::resolve(&objects, "");
        for _ in 0..ROUNDS {
            let before = resolved.references.clone();
            for (plural, keys) in [("secrets", &before.secrets), ("configmaps", &before.config_maps)] {
                let kind = corten_client::Resource::new("", "v1", plural, true);
                for key in keys {
                    if let Ok(object) = client.dynamic(&kind).get(&key.namespace, &key.name).await {
                        world::keep_by_plural(&mut objects, plural, &change(object));
                    }
                }
            }
            resolved = resolve::resolve(&objects, "");
            if resolved.references == before {
                break;
            }
        }
        Ok(World { client, objects, resolved })
    }

    /// Returns the rules that follow from an object, and the reasons for what does not.
    pub fn routes(&self, subject: &Subject) -> Vec<String> {
        let mut lines = Vec::new();
        for (key, listener) in &self.resolved.configuration.listeners {
            let mut at = |hosts: &Hosts<Arc<HttpHost>>| lines.extend(rules_at(subject, key, hosts));
            match &listener.protocol {
                ListenerProtocol::Http(hosts) => at(hosts),
                ListenerProtocol::Tls(names) => {
                    // All names of the socket may share one table.
                    let mut seen = Vec::new();
                    for name in names.values() {
                        if let TlsHost::Terminate { then: TlsUse::Http(hosts), .. } = &**name {
                            let of = rules_at(subject, key, hosts);
                            if !seen.contains(&of) {
                                lines.extend(of.clone());
                                seen.push(of);
                            }
                        }
                    }
                }
                ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => {}
            }
        }
        lines.truncate(MAX_RULES);
        if lines.is_empty() {
            lines.push("No rule follows from it.".to_owned());
        }
        lines.extend(self.reasons(subject));
        lines
    }

    /// Returns the conditions of the object that do not hold, its events, and those of its policies.
    fn reasons(&self, subject: &Subject) -> Vec<String> {
        let mut lines = Vec::new();
        let own = self.resolved.statuses.iter().find(|one| one.plural == subject.plural() && one.key == subject.key);
        if let Some(status) = own {
            lines.extend(false_conditions(&status.status["parents"], "parentRef"));
        } else if subject.kind == "Ingress" {
            lines.push("No IngressClass of this controller is its class.".to_owned());
        }
        let events = self.resolved.events.iter().filter(|one| one.kind == subject.kind && one.key == subject.key);
        lines.extend(events.map(|event| event.message.clone()));
        let is_target = |policy: &crate::objects::RoutePolicySpec| {
            policy.target_refs.iter().any(|target| target.kind == subject.kind && target.name == subject.key.name)
        };
        for (key, policy) in &self.objects.route_policies {
            if key.namespace != subject.key.namespace || !is_target(&policy.spec) {
                continue;
            }
            let status = self.resolved.statuses.iter().find(|one| one.plural == "routepolicies" && one.key == *key);
            let wrong = status.map(|one| false_conditions(&one.status["ancestors"], "ancestorRef"));
            lines.extend(wrong.unwrap_or_default().iter().map(|line| format!("RoutePolicy {}: {line}", key.name)));
        }
        lines
    }

    /// Returns the way of a request at the listeners that the object could have rules at.
    pub async fn request(&self, subject: &Subject, question: &Question) -> Vec<String> {
        let mut lines = Vec::new();
        let hits = trace::follow(&self.resolved.configuration, question);
        let is_ingress = |hit: &Hit<'_>| hit.listener.owner.kind == "IngressClass";
        for hit in hits.iter().filter(|hit| is_ingress(hit) == (subject.kind == "Ingress")) {
            lines.push(format!("listener: {}", listener_name(hit.listener)));
            match &hit.outcome {
                Outcome::OtherProtocol => lines.push("  it speaks another protocol".to_owned()),
                Outcome::NoHost => lines.push("  no host matches: 404, or no TLS handshake".to_owned()),
                Outcome::NoRule(host) => {
                    lines.push(format!("  host {}: no rule matches: 404", trace::host_name(host)));
                }
                Outcome::Passthrough(host) => {
                    lines.push(format!("  host {}: TLS goes on to the backend", trace::host_name(host)));
                }
                Outcome::Rule { host, rule } => {
                    lines.push(format!("  host: {}", trace::host_name(host)));
                    let route = &rule.route;
                    lines.push(format!("  rule: {} {}/{}: {}", route.kind, route.namespace, route.name, matched(rule)));
                    lines.extend(rule.filters.iter().map(|filter| format!("  it {}", trace::filter(filter))));
                    for backend in rule.backends.iter() {
                        lines.extend(self.backend(backend).await);
                    }
                }
            }
        }
        if lines.is_empty() {
            lines.push(format!("No listener has port {}.", question.port));
        }
        lines
    }

    async fn backend(&self, backend: &BackendRef) -> Vec<String> {
        let Some(key) = &backend.key else {
            return vec![format!("  backend of weight {}: the reference is invalid: 500", backend.weight)];
        };
        let mut lines = vec![format!("  backend of weight {}: {}", backend.weight, backend_name(key))];
        lines.extend(backend.filters.iter().map(|filter| format!("    it {}", trace::filter(filter))));
        match self.endpoints(key).await {
            Err(error) => lines.push(format!("    its endpoints cannot be read: {error}")),
            Ok(endpoints) if endpoints.ready.is_empty() && endpoints.terminating.is_empty() => {
                lines.push("    no endpoint is ready: 503".to_owned());
            }
            Ok(endpoints) => {
                let ready = endpoints.ready.iter().map(|one| format!("    endpoint {}", one.address));
                let ending = endpoints.terminating.iter().map(|one| format!("    endpoint {} ends", one.address));
                lines.extend(ready.chain(ending));
            }
        }
        lines
    }

    async fn endpoints(&self, key: &BackendKey) -> Result<Endpoints, Error> {
        let service = Key::new(key.namespace.to_string(), key.service.to_string());
        let ports = self.objects.services.get(&service).map(|service| service.spec.ports.as_slice());
        let Some(port) = ports.unwrap_or_default().iter().find(|port| port.port == key.port) else {
            return Ok(Endpoints::default());
        };
        let options = ListOptions::labels(format!("{}={}", data::SERVICE_NAME, key.service));
        let slices = self.client.dynamic(&world::endpoint_slices()).list(&key.namespace, &options).await?;
        let mut endpoints = Endpoints::default();
        slices.items.iter().for_each(|slice| data::add_slice(slice, port, &mut endpoints));
        Ok(endpoints)
    }
}

fn change(value: Value) -> Change {
    let key = Key::new(corten_meta::namespace(&value), corten_meta::name(&value));
    Change { key, old: None, new: Object::from_value(&value, 0).ok().map(Arc::new) }
}

fn listener_name(key: &ListenerKey) -> String {
    match key.owner.namespace.is_empty() {
        true => format!("{} {}, port {}", key.owner.kind, key.owner.name, key.port),
        false => format!("{} {}/{}, port {}", key.owner.kind, key.owner.namespace, key.owner.name, key.port),
    }
}

fn backend_name(key: &BackendKey) -> String {
    format!("Service {}/{}:{}", key.namespace, key.service, key.port)
}

fn matched(rule: &HttpRule) -> String {
    match &rule.rule_name {
        Some(name) => format!("{name}: {}", trace::matched(rule)),
        None => trace::matched(rule),
    }
}

fn rules_at(subject: &Subject, key: &ListenerKey, hosts: &Hosts<Arc<HttpHost>>) -> Vec<String> {
    let mut lines = Vec::new();
    for (pattern, host) in hosts.entries() {
        for rule in host.rules().filter(|rule| subject.is_route_of(rule)) {
            let backends: Vec<String> = rule
                .backends
                .iter()
                .map(|backend| backend.key.as_ref().map_or_else(|| "an invalid backend".to_owned(), backend_name))
                .collect();
            let place = format!("{}, host {}", listener_name(key), trace::host_name(&pattern));
            lines.push(format!("{place}: {} -> {}", matched(rule), backends.join(", ")));
        }
    }
    lines
}

/// Returns the conditions of parents or ancestors that do not hold.
fn false_conditions(list: &Value, reference: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in list.as_array().into_iter().flatten() {
        let name = entry[reference]["name"].as_str().unwrap_or_default();
        for condition in entry["conditions"].as_array().into_iter().flatten().filter(|one| one["status"] == "False") {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            lines.push(format!("At {name} it is not {}: {}: {}.", text("type"), text("reason"), text("message")));
        }
    }
    lines
}
