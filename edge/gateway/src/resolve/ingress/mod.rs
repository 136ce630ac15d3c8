//! Ingresses: all of one class share a Service, and its ports 80 and 443.
//!
//! Annotations of ingress-nginx are read into the settings of a RoutePolicy (`crate::annotations`), so that rules of both
//! are made by one code. A canary is an Ingress whose backends its main Ingress takes over.

mod backend;
mod rules;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::Key;
use corten_routing::{
    BackendKey, Filter, HostPattern, Hosts, HttpHost, HttpRule, ListenerKey, ListenerOptions, ListenerProtocol,
    ObjectName, Redirect,
};
use serde_json::{Value, json};

use super::addresses::{self, WantedPort};
use super::policy::{self, Source};
use super::references::From;
use super::settings::{Canary, Settings};
use super::table::Policies;
use super::{CLASS, INGRESS_CONTROLLER, Resolved, WantedEvent, WantedStatus, hosts, table};
use crate::annotations::{self, IngressOptions};
use crate::objects::{IngressSpec, Objects, Resource};
use tls::ServerNames;

/// The annotation that named the class before Ingresses had a field for it.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;
/// The status of redirects to HTTPS.
const HTTPS_STATUS: u16 = 308;

/// An Ingress of ours, with its settings.
struct Ours<'a> {
    object: &'a Resource<IngressSpec>,
    options: IngressOptions,
    settings: Settings,
}

impl Ours<'_> {
    fn from(&self) -> From<'_> {
        From { group: "networking.k8s.io", kind: "Ingress", namespace: &self.object.metadata.namespace }
    }
}

/// A path of a host, as an Ingress writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    host: HostPattern,
    path: String,
}

/// Everything that the rules of one Ingress depend on beside itself.
struct Context<'a> {
    objects: &'a Objects,
    policies: &'a Policies<'a>,
    /// The hosts whose paths are all regular expressions.
    regex_hosts: BTreeSet<HostPattern>,
    canaries: BTreeMap<Place, Canary>,
    /// The rules of all hosts without settings, by which paths of a host that decide on requests are found.
    plain: Hosts<Arc<HttpHost>>,
}

/// A rule, and whether requests without TLS are redirected.
struct Collected {
    rule: HttpRule,
    https_only: bool,
}

type Rules = BTreeMap<HostPattern, Vec<Collected>>;

/// Adds the sockets, backends, Service, statuses and events of Ingresses.
pub fn resolve(objects: &Objects, policies: &Policies<'_>, resolved: &mut Resolved) {
    let mut objects_of_ours: Vec<&Resource<IngressSpec>> = objects.ingresses.values().map(|one| &**one).collect();
    objects_of_ours.retain(|ingress| is_ours(objects, ingress));
    objects_of_ours.sort_by_cached_key(|ingress| ingress.metadata.age());
    if objects_of_ours.is_empty() {
        return;
    }
    let mut ours: Vec<Ours<'_>> = objects_of_ours.iter().map(|ingress| read(objects, ingress, resolved)).collect();
    let mut context = Context {
        objects,
        policies,
        regex_hosts: regex_hosts(&ours),
        canaries: BTreeMap::new(),
        plain: Hosts::default(),
    };
    context.plain = context.plain_table(&ours);
    context.canaries = context.read_canaries(&mut ours, resolved);
    let mut collected = Rules::new();
    let mut names = ServerNames::default();
    for one in ours.iter_mut().filter(|one| one.options.canary.is_none()) {
        context.collect(one, &mut collected, resolved);
        context.add_names(one, &mut names, resolved);
    }
    rules::add_www_redirects(&ours, &mut collected);
    serve(objects, &collected, &names, resolved);
    report(objects, &ours, resolved);
}

/// Adds the statuses of Ingresses, and events about annotations without effect.
fn report(objects: &Objects, ours: &[Ours<'_>], resolved: &mut Resolved) {
    let addresses = addresses::of_service(objects, &addresses::ingress_service());
    let entries: Vec<Value> = addresses.iter().map(|address| json!({"ip": address.to_string()})).collect();
    for one in ours {
        let status = json!({"loadBalancer": {"ingress": entries}});
        resolved.statuses.push(WantedStatus { plural: "ingresses", key: one.object.metadata.key(), status });
        resolved.events.extend(one.options.problems.iter().map(|problem| WantedEvent {
            api_version: "networking.k8s.io/v1",
            kind: "Ingress",
            key: one.object.metadata.key(),
            uid: one.object.metadata.uid.clone(),
            reason: if problem.closes { "InvalidAnnotation" } else { "IgnoredAnnotation" },
            message: problem.to_string(),
        }));
    }
}

/// Reports whether an Ingress has a class of this controller.
fn is_ours(objects: &Objects, ingress: &Resource<IngressSpec>) -> bool {
    let annotation = ingress.metadata.annotations.get(CLASS_ANNOTATION);
    let Some(name) = ingress.spec.ingress_class_name.as_ref().or(annotation) else { return false };
    let class = objects.ingress_classes.get(&Key::new(String::new(), name.clone()));
    class.is_some_and(|class| class.spec.controller == INGRESS_CONTROLLER)
}

/// Reads the annotations of an Ingress.
fn read<'a>(objects: &'a Objects, object: &'a Resource<IngressSpec>, resolved: &mut Resolved) -> Ours<'a> {
    let metadata = &object.metadata;
    let options = annotations::options(annotations::read(&metadata.annotations), &metadata.namespace);
    let mut one = Ours { object, options, settings: Settings::default() };
    if let Some(pages) = one.options.error_service.clone() {
        match backend::first_port(objects, &metadata.namespace, &pages.name) {
            Some(backend_ref) => {
                let statuses = pages.statuses;
                one.options.policy.error_pages = Some(crate::policy_spec::ErrorPagesSpec { backend_ref, statuses });
            }
            None => one.options.refuse("default-backend", format!("there is no Service {}", pages.name), false),
        }
    }
    let name = format!("ingress/{}/{}", metadata.namespace, metadata.name);
    let from = From { group: "networking.k8s.io", kind: "Ingress", namespace: &metadata.namespace };
    let source = Source { objects, from, name: &name };
    let read = policy::read(source, &one.options.policy, &mut resolved.references);
    one.settings = read.settings;
    for key in read.backends {
        let backend = table::backend(objects, &key, corten_routing::BackendProtocol::Http1);
        resolved.configuration.backends.entry(key).or_insert_with(|| Arc::new(backend));
    }
    if let Some(problem) = read.invalid.or(read.unresolved) {
        one.options.refuse(culprit(&one.options), problem.message, true);
        one.settings.limits = vec![rules::closed()];
    } else if one.options.is_closed() {
        one.settings.limits.insert(0, rules::closed());
    }
    one
}

/// Returns the annotation whose reference cannot be resolved.
fn culprit(options: &IngressOptions) -> &'static str {
    let policy = &options.policy;
    match (&policy.basic_auth, &policy.forward_auth, &policy.error_pages) {
        (Some(_), _, _) => "auth-secret",
        (None, Some(_), _) => "auth-url",
        _ => "default-backend",
    }
}

/// Returns the hosts that an Ingress has rules for.
fn hosts_of(ingress: &Resource<IngressSpec>) -> impl Iterator<Item = HostPattern> {
    ingress.spec.rules.iter().map(|rule| hosts::ingress_pattern(rule.host.as_deref()))
}

/// Returns the hosts with an Ingress whose paths are regular expressions: those of all others are too.
fn regex_hosts(ours: &[Ours<'_>]) -> BTreeSet<HostPattern> {
    let with_regex = ours.iter().filter(|one| one.options.regex);
    with_regex.flat_map(|one| hosts_of(one.object)).collect()
}

impl Context<'_> {
    /// Returns the rules of all hosts, with nothing but their backends.
    fn plain_table(&self, ours: &[Ours<'_>]) -> Hosts<Arc<HttpHost>> {
        let mut plain: BTreeMap<HostPattern, Vec<HttpRule>> = BTreeMap::new();
        if ours.iter().all(|one| one.options.auth_path.is_none()) {
            return Hosts::default();
        }
        for one in ours.iter().filter(|one| one.options.canary.is_none()) {
            for rule in &one.object.spec.rules {
                let host = hosts::ingress_pattern(rule.host.as_deref());
                let paths = rule.http.paths.iter().filter_map(|path| self.plain_rule(one, &host, path).ok());
                plain.entry(host.clone()).or_default().extend(paths);
            }
        }
        table_of(&plain)
    }

    /// Reads the canaries, by the place whose requests they share. Of two for one place the older counts.
    fn read_canaries(&self, ours: &mut [Ours<'_>], resolved: &mut Resolved) -> BTreeMap<Place, Canary> {
        let mains: BTreeSet<Place> =
            ours.iter().filter(|one| one.options.canary.is_none()).flat_map(|one| places(one.object)).collect();
        let mut canaries = BTreeMap::new();
        for one in ours.iter_mut() {
            let Some(role) = one.options.canary.clone() else { continue };
            for rule in &one.object.spec.rules {
                for path in &rule.http.paths {
                    let host = hosts::ingress_pattern(rule.host.as_deref());
                    let place = Place { host, path: path.path.clone().unwrap_or_default() };
                    if !mains.contains(&place) {
                        let message = format!("no other Ingress has the path {:?} of the host", place.path);
                        one.options.refuse("canary", message, false);
                        continue;
                    }
                    let backend = self.backend(one, &path.backend, resolved).key;
                    if let Ok(canary) = rules::canary(&role, backend) {
                        canaries.entry(place).or_insert(canary);
                    }
                }
            }
        }
        canaries
    }

    /// Collects the rules of an Ingress.
    fn collect(&self, one: &mut Ours<'_>, collected: &mut Rules, resolved: &mut Resolved) {
        let spec = &one.object.spec;
        for rule in &spec.rules {
            let host = hosts::ingress_pattern(rule.host.as_deref());
            let mut rules = Vec::new();
            if let Some(root) = &one.options.app_root {
                rules.push(rules::app_root(one, root));
            }
            for path in &rule.http.paths {
                rules.extend(self.rules(one, &host, path, resolved));
            }
            // A rule without paths, or a path that no rule matches, goes to the default backend.
            if let Some(default) = &spec.default_backend {
                rules.extend(self.rules(one, &host, &rules::everything(default), resolved));
            }
            let aliases = one.options.aliases.iter().filter(|_| rule.host.is_some());
            let aliases = aliases.map(|alias| hosts::ingress_pattern(Some(alias)));
            for pattern in [host].into_iter().chain(aliases) {
                let https_only = tls::is_https_only(one, &pattern);
                let rules = rules.iter().cloned().map(|rule| Collected { rule, https_only });
                collected.entry(pattern).or_default().extend(rules);
            }
        }
        if let Some(default) = &spec.default_backend {
            let rules = self.rules(one, &HostPattern::Any, &rules::everything(default), resolved);
            let https_only = tls::is_https_only(one, &HostPattern::Any);
            let rules = rules.into_iter().map(|rule| Collected { rule, https_only });
            collected.entry(HostPattern::Any).or_default().extend(rules);
        }
    }
}

/// Returns the paths of an Ingress.
fn places(ingress: &Resource<IngressSpec>) -> impl Iterator<Item = Place> {
    ingress.spec.rules.iter().flat_map(|rule| {
        let host = hosts::ingress_pattern(rule.host.as_deref());
        let place = move |path: &crate::objects::IngressPath| Place {
            host: host.clone(),
            path: path.path.clone().unwrap_or_default(),
        };
        rule.http.paths.iter().map(place)
    })
}

/// Adds the sockets of all Ingresses, and their Service.
fn serve(objects: &Objects, collected: &Rules, names: &ServerNames, resolved: &mut Resolved) {
    let plain = by_host(collected, |one| match one.https_only {
        true => redirected(&one.rule),
        false => one.rule.clone(),
    });
    let mut sockets = vec![(HTTP_PORT, ListenerProtocol::Http(table_of(&plain)))];
    if !names.is_empty() {
        let hosts = table_of(&by_host(collected, |one| one.rule.clone()));
        sockets.push((HTTPS_PORT, ListenerProtocol::Tls(names.table(&hosts))));
    }
    let bound = addresses::bind_ports(&objects.services, &addresses::ingress_service());
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

fn by_host(collected: &Rules, rule: impl Fn(&Collected) -> HttpRule) -> BTreeMap<HostPattern, Vec<HttpRule>> {
    collected.iter().map(|(host, rules)| (host.clone(), rules.iter().map(&rule).collect())).collect()
}

/// Returns a rule that redirects to HTTPS first. It keeps its backends for requests whose TLS a trusted proxy ended.
fn redirected(rule: &HttpRule) -> HttpRule {
    let redirect =
        Redirect { scheme: Some("https".into()), hostname: None, path: None, port: None, status: HTTPS_STATUS };
    let filters = [Filter::Redirect(redirect)].into_iter().chain(rule.filters.iter().cloned());
    HttpRule { filters: filters.collect(), ..rule.clone() }
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

/// Returns the backend of a request for a path of a host.
fn backend_at(plain: &Hosts<Arc<HttpHost>>, host: &HostPattern, path: &str) -> Option<BackendKey> {
    let name = match host {
        HostPattern::Exact(name) => name.clone(),
        HostPattern::OneLabel(suffix) | HostPattern::Wildcard(suffix) => format!("any.{suffix}"),
        HostPattern::Any => String::new(),
    };
    let headers = http::HeaderMap::new();
    let path = path.split('?').next().unwrap_or_default();
    let request = corten_routing::Request { method: "GET", path, query: None, headers: &headers };
    let found = plain.find(&name)?.find(&request)?;
    found.rule.backends.first()?.key.clone()
}
