//! Writes Ingresses of ingress-nginx as objects of Gateway API, with RoutePolicies for what Gateway API lacks.
//!
//! Pure: objects in, objects and notes out. A note names an Ingress and an annotation or field that has no equivalent.
//! The defaults are those of ingress-nginx: an Ingress with TLS redirects to HTTPS unless `ssl-redirect` says no.

mod route;
mod tls;

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::{Key, Value};
use serde_json::json;

use crate::annotations::{self, Https, IngressOptions, PREFIX};
use crate::crds::{GROUP, POLICY_GROUP, POLICY_VERSION};
use crate::objects::{IngressBackend, IngressSpec, Resource, ServiceSpec, Store, decode};
use crate::policy_spec::BackendSpec;
use crate::resolve::CLASS;

/// The Gateway that routes are attached to.
#[derive(Clone, Debug)]
pub struct Config {
    pub gateway: Key,
    /// The class of the Ingresses to import; all without one.
    pub ingress_class: Option<String>,
}

/// Objects of Gateway API, and the parts of Ingresses that they lack.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    pub objects: Vec<Value>,
    pub notes: Vec<Note>,
}

/// A part of an Ingress without an equivalent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub ingress: Key,
    pub message: String,
}

impl std::fmt::Display for Note {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Ingress {}: {}", self.ingress, self.message)
    }
}

/// An Ingress with its settings.
struct Source {
    object: Resource<IngressSpec>,
    options: IngressOptions,
}

/// The state of an import.
struct Importer {
    config: Config,
    services: Store<ServiceSpec>,
    sources: Vec<Source>,
    /// The hosts whose paths are regular expressions.
    regex_hosts: BTreeSet<String>,
    /// The listeners of the Gateway by name.
    listeners: BTreeMap<String, Value>,
    /// The grants by the namespace that gives them.
    grants: BTreeMap<String, BTreeSet<Grant>>,
    imported: Imported,
}

/// A reference across namespaces that a ReferenceGrant must allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    group: &'static str,
    kind: &'static str,
    namespace: String,
    to: &'static str,
    name: String,
}

/// Imports the Ingresses among objects. Services among them give numbers to ports that Ingresses name.
pub fn import(objects: &[Value], config: &Config) -> Imported {
    let mut importer = Importer {
        config: config.clone(),
        services: Store::new(),
        sources: Vec::new(),
        regex_hosts: BTreeSet::new(),
        listeners: BTreeMap::new(),
        grants: BTreeMap::new(),
        imported: Imported::default(),
    };
    objects.iter().for_each(|object| importer.take(object));
    importer.sources.sort_by_cached_key(|source| source.object.metadata.age());
    let with_regex = importer.sources.iter().filter(|source| source.options.regex);
    importer.regex_hosts =
        with_regex.flat_map(|source| &source.object.spec.rules).filter_map(|rule| rule.host.clone()).collect();
    importer.run();
    importer.finish()
}

impl Importer {
    fn take(&mut self, object: &Value) {
        for item in object["items"].as_array().into_iter().flatten() {
            self.take(item);
        }
        let mut object = object.clone();
        if object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = json!("default");
        }
        match (object["apiVersion"].as_str(), object["kind"].as_str()) {
            (Some("v1"), Some("Service")) => {
                if let Some(service) = decode::<ServiceSpec>(object) {
                    self.services.insert(service.metadata.key(), service.into());
                }
            }
            (Some("networking.k8s.io/v1"), Some("Ingress")) => {
                if let Some(ingress) = decode::<IngressSpec>(object) {
                    self.take_ingress(ingress);
                }
            }
            _ => {}
        }
    }

    fn take_ingress(&mut self, object: Resource<IngressSpec>) {
        let metadata = &object.metadata;
        let class = object.spec.ingress_class_name.as_ref();
        let class = class.or_else(|| metadata.annotations.get("kubernetes.io/ingress.class"));
        if self.config.ingress_class.is_some() && class != self.config.ingress_class.as_ref() {
            return;
        }
        let mut options = annotations::options(annotations::read(&metadata.annotations), &metadata.namespace);
        let is_silent = !metadata.annotations.contains_key(&format!("{PREFIX}ssl-redirect"));
        if options.https == Https::None && is_silent {
            options.https = Https::IfTls;
        }
        self.sources.push(Source { object, options });
    }

    fn run(&mut self) {
        let sources = std::mem::take(&mut self.sources);
        for source in &sources {
            for problem in &source.options.problems {
                self.note(source, problem.to_string().split("; the Ingress").next().unwrap_or_default());
            }
            if source.options.canary.is_none() {
                self.add_routes(source, &sources);
            }
        }
    }

    fn note(&mut self, source: &Source, message: impl Into<String>) {
        let note = Note { ingress: source.object.metadata.key(), message: message.into() };
        if !self.imported.notes.contains(&note) {
            self.imported.notes.push(note);
        }
    }

    /// Returns the port of a backend by number.
    fn backend(&mut self, source: &Source, backend: &IngressBackend) -> Option<BackendSpec> {
        let Some(service) = &backend.service else {
            self.note(source, "a backend is no Service");
            return None;
        };
        let key = Key::new(source.object.metadata.namespace.clone(), service.name.clone());
        let known = self.services.get(&key).map(|service| service.spec.ports.as_slice()).unwrap_or_default();
        let named = known.iter().find(|port| service.port.name.as_ref() == Some(&port.name)).map(|port| port.port);
        let Some(port) = service.port.number.or(named) else {
            let message = format!("the number of port {:?} of Service {key} is not known", service.port.name);
            self.note(source, message);
            return None;
        };
        Some(BackendSpec { name: service.name.clone(), namespace: None, port })
    }

    fn grant(&mut self, of: &str, grant: Grant) {
        if of != grant.namespace {
            self.grants.entry(of.to_owned()).or_default().insert(grant);
        }
    }

    fn push(&mut self, object: Value) {
        self.imported.objects.push(object);
    }

    /// Adds the Gateway and the grants, which are known last, before everything else.
    fn finish(mut self) -> Imported {
        if self.imported.objects.is_empty() {
            return self.imported;
        }
        let gateway = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "Gateway",
            "metadata": {"name": self.config.gateway.name, "namespace": self.config.gateway.namespace},
            "spec": {
                "gatewayClassName": CLASS,
                "listeners": self.listeners.values().cloned().collect::<Vec<_>>(),
            },
        });
        let grants = self.grants.iter().map(|(namespace, grants)| grant_object(namespace, grants));
        self.imported.objects = [gateway].into_iter().chain(grants).chain(self.imported.objects).collect();
        self.imported
    }
}

fn grant_object(namespace: &str, grants: &BTreeSet<Grant>) -> Value {
    let from: BTreeSet<(&str, &str, &str)> =
        grants.iter().map(|grant| (grant.group, grant.kind, grant.namespace.as_str())).collect();
    let to: BTreeSet<(&str, &str)> = grants.iter().map(|grant| (grant.to, grant.name.as_str())).collect();
    let from =
        from.iter().map(|(group, kind, namespace)| json!({"group": group, "kind": kind, "namespace": namespace}));
    let to = to.iter().map(|(kind, name)| json!({"group": "", "kind": kind, "name": name}));
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ReferenceGrant",
        "metadata": {"name": "ingress-import", "namespace": namespace},
        "spec": {"from": from.collect::<Vec<_>>(), "to": to.collect::<Vec<_>>()},
    })
}

/// Returns a policy for targets of one namespace.
fn policy_object(namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{POLICY_GROUP}/{POLICY_VERSION}"),
        "kind": "RoutePolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    })
}
