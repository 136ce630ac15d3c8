//! Ingresses: all of one class share a Service, and its ports 80 and 443.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::Key;
use corten_routing::{
    BackendKey, BackendProtocol, BackendRef, HostPattern, Hosts, HttpHost, HttpRule, ListenerKey, ListenerOptions,
    ListenerProtocol, ObjectName, PathMatch, ServerCertificate, Timeouts, TlsHost, TlsUse,
};
use serde_json::{Value, json};

use super::addresses::{self, WantedPort};
use super::references::From;
use super::route_policies::RoutePolicies;
use super::{CLASS, INGRESS_CONTROLLER, Resolved, WantedStatus, backends, certificates, hosts, table};
use crate::objects::{IngressBackend, IngressPath, IngressSpec, Objects, Reference, Resource};

/// The annotation that named the class before Ingresses had a field for it.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Rules and certificates of all Ingresses by host.
#[derive(Default)]
struct Collected {
    rules: BTreeMap<HostPattern, Vec<HttpRule>>,
    certificates: BTreeMap<HostPattern, Vec<Arc<ServerCertificate>>>,
}

/// Adds the sockets, backends, Service and statuses of Ingresses.
pub fn resolve(objects: &Objects, policies: &RoutePolicies<'_>, resolved: &mut Resolved) {
    let mut ours: Vec<&Resource<IngressSpec>> = objects.ingresses.values().map(|one| &**one).collect();
    ours.retain(|ingress| is_ours(objects, ingress));
    ours.sort_by_cached_key(|ingress| ingress.metadata.age());
    if ours.is_empty() {
        return;
    }
    let mut collected = Collected::default();
    for ingress in &ours {
        collect(objects, policies, ingress, &mut collected, resolved);
    }
    serve(objects, &collected, resolved);
    let key = addresses::ingress_service();
    let addresses = addresses::of_service(objects, &key);
    let entries: Vec<Value> = addresses.iter().map(|address| json!({"ip": address.to_string()})).collect();
    for ingress in &ours {
        let status = json!({"loadBalancer": {"ingress": entries}});
        resolved.statuses.push(WantedStatus { plural: "ingresses", key: ingress.metadata.key(), status });
    }
}

/// Reports whether an Ingress has a class of this controller.
fn is_ours(objects: &Objects, ingress: &Resource<IngressSpec>) -> bool {
    let annotation = ingress.metadata.annotations.get(CLASS_ANNOTATION);
    let Some(name) = ingress.spec.ingress_class_name.as_ref().or(annotation) else { return false };
    let class = objects.ingress_classes.get(&Key::new(String::new(), name.clone()));
    class.is_some_and(|class| class.spec.controller == INGRESS_CONTROLLER)
}

fn collect(
    objects: &Objects,
    policies: &RoutePolicies<'_>,
    ingress: &Resource<IngressSpec>,
    collected: &mut Collected,
    resolved: &mut Resolved,
) {
    let key = ingress.metadata.key();
    let spec = &ingress.spec;
    for rule in &spec.rules {
        let host = hosts::ingress_pattern(rule.host.as_deref());
        let rules: Vec<HttpRule> =
            rule.http.paths.iter().map(|path| http_rule(objects, ingress, path, resolved)).collect();
        let entry = collected.rules.entry(host).or_default();
        entry.extend(policies.ingress_rules(&key, rules));
        // A rule without paths, or a path that no rule matches, goes to the default backend.
        if let Some(default) = &spec.default_backend {
            let rule = everything(objects, ingress, default, resolved);
            entry.extend(policies.ingress_rules(&key, vec![rule]));
        }
    }
    if let Some(default) = &spec.default_backend {
        let rule = everything(objects, ingress, default, resolved);
        let rules = policies.ingress_rules(&key, vec![rule]);
        collected.rules.entry(HostPattern::Any).or_default().extend(rules);
    }
    for tls in &spec.tls {
        let Some(name) = &tls.secret_name else { continue };
        let from = From { group: "networking.k8s.io", kind: "Ingress", namespace: &ingress.metadata.namespace };
        let to = Reference { kind: "Secret".to_owned(), name: name.clone(), ..Reference::default() };
        let certificate =
            certificates::server_certificate(objects, from, &to, "InvalidCertificate", &mut resolved.references);
        let Ok(certificate) = certificate else { continue };
        let of_rules = spec.rules.iter().map(|rule| hosts::ingress_pattern(rule.host.as_deref()));
        let patterns: Vec<HostPattern> = match tls.hosts.is_empty() {
            true => of_rules.chain(spec.rules.is_empty().then_some(HostPattern::Any)).collect(),
            false => tls.hosts.iter().map(|host| hosts::ingress_pattern(Some(host))).collect(),
        };
        for pattern in patterns {
            collected.certificates.entry(pattern).or_default().push(certificate.clone());
        }
    }
}

fn everything(
    objects: &Objects,
    ingress: &Resource<IngressSpec>,
    backend: &IngressBackend,
    resolved: &mut Resolved,
) -> HttpRule {
    let path = IngressPath { path: None, path_type: "Prefix".to_owned(), backend: backend.clone() };
    http_rule(objects, ingress, &path, resolved)
}

fn http_rule(
    objects: &Objects,
    ingress: &Resource<IngressSpec>,
    path: &IngressPath,
    resolved: &mut Resolved,
) -> HttpRule {
    let metadata = &ingress.metadata;
    let text = path.path.clone().unwrap_or_default();
    let matched = match path.path_type.as_str() {
        "Exact" => PathMatch::Exact(text),
        // An implementation-specific path is a prefix here.
        _ => PathMatch::Prefix(text.trim_end_matches('/').to_owned()),
    };
    let backend: BackendRef = match backend_key(objects, ingress, &path.backend) {
        Some(key) => {
            let backend = table::backend(objects, &key, BackendProtocol::Http1);
            resolved.configuration.backends.entry(key.clone()).or_insert_with(|| Arc::new(backend));
            backends::reference(1, Some(key), Vec::new())
        }
        None => backends::invalid(1),
    };
    HttpRule {
        route: ObjectName {
            kind: "Ingress",
            namespace: metadata.namespace.as_str().into(),
            name: metadata.name.as_str().into(),
        },
        rule_name: None,
        path: matched,
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
        filters: Arc::new([]),
        backends: Arc::new([backend]),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        grpc: false,
    }
}

/// Returns the port of the Service that a backend names, by number or by name.
fn backend_key(objects: &Objects, ingress: &Resource<IngressSpec>, backend: &IngressBackend) -> Option<BackendKey> {
    let reference = backend.service.as_ref()?;
    let namespace = &ingress.metadata.namespace;
    let service = objects.services.get(&Key::new(namespace.clone(), reference.name.clone()))?;
    let port = service.spec.ports.iter().find(|port| match (&reference.port.number, &reference.port.name) {
        (Some(number), _) => port.port == *number,
        (None, Some(name)) => port.name == *name,
        (None, None) => false,
    })?;
    Some(BackendKey { namespace: namespace.as_str().into(), service: reference.name.as_str().into(), port: port.port })
}

/// Adds the sockets of all Ingresses, and their Service.
fn serve(objects: &Objects, collected: &Collected, resolved: &mut Resolved) {
    let hosts = table_of(&collected.rules);
    let bound = addresses::bind_ports(&objects.services, &addresses::ingress_service());
    let mut sockets = vec![(HTTP_PORT, ListenerProtocol::Http(hosts.clone()))];
    if !collected.certificates.is_empty() {
        let mut names = Hosts::default();
        for (host, certificates) in &collected.certificates {
            let then = TlsUse::Http(hosts.clone());
            let certificates: Arc<[Arc<ServerCertificate>]> = certificates.clone().into();
            let entry = TlsHost::Terminate { certificates, client_validation: None, then };
            names.insert(host.clone(), Arc::new(entry));
        }
        sockets.push((HTTPS_PORT, ListenerProtocol::Tls(names)));
    }
    let mut ports = BTreeSet::new();
    let mut is_complete = true;
    for (port, protocol) in sockets {
        let wanted = WantedPort { port, transport: table::TCP };
        ports.insert(wanted);
        let Some(bind_port) = bound.get(&wanted).copied() else {
            is_complete = false;
            continue;
        };
        let owner = ObjectName { kind: "IngressClass", namespace: "".into(), name: CLASS.into() };
        let key = ListenerKey { owner, port, transport: table::TCP };
        let listener = corten_routing::Listener { bind_port, protocol, options: ListenerOptions::default() };
        resolved.configuration.listeners.insert(key, Arc::new(listener));
    }
    if is_complete {
        resolved.complete.insert(Key::new(String::new(), CLASS.to_owned()), 1);
    }
    resolved.services.push(addresses::of_ingresses(ports));
}

/// Returns the table of all hosts. A host has its own rules, then those of wider hosts.
fn table_of(rules: &BTreeMap<HostPattern, Vec<HttpRule>>) -> Hosts<Arc<HttpHost>> {
    let mut patterns: Vec<&HostPattern> = rules.keys().collect();
    patterns.sort_by_key(|pattern| std::cmp::Reverse(hosts::specificity(pattern)));
    let mut built: Vec<(HostPattern, Arc<HttpHost>)> = Vec::new();
    let mut table = Hosts::default();
    for pattern in patterns {
        let own = HttpHost::build(rules.get(pattern).cloned().unwrap_or_default());
        let wider = built.iter().rev().find(|(wider, _)| hosts::covers(wider, pattern));
        let host = Arc::new(match wider {
            Some((_, wider)) => own.with_fallback(wider.clone()),
            None => own,
        });
        built.push((pattern.clone(), host.clone()));
        table.insert(pattern.clone(), host);
    }
    table
}
