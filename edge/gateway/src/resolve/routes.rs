//! Routes of all kinds: which listeners they attach to, and their statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::{Key, Value};
use corten_routing::{BackendRef, HostPattern, ObjectName};
use serde_json::json;

use super::certificates::Problem;
use super::gateways::{self, Gateway};
use super::http::{self, Rules, Source};
use super::references::From;
use super::{CONTROLLER, WantedStatus, backends, hosts};
use crate::crds::GROUP;
use crate::objects::{GrpcRouteSpec, HttpRouteSpec, Metadata, Objects, Reference, Resource, StreamRouteSpec};
use crate::status::{self, Condition, conditions};

/// The routes of HTTP and gRPC that have changed, by kind and key.
pub type ChangedRoutes = BTreeSet<RouteName>;

/// A route of HTTP or gRPC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteName {
    /// HTTPRoute or GRPCRoute.
    pub kind: &'static str,
    pub key: Key,
}

impl RouteName {
    /// Returns the name as rules have it.
    pub fn object_name(&self) -> ObjectName {
        ObjectName {
            kind: self.kind,
            namespace: self.key.namespace.as_str().into(),
            name: self.key.name.as_str().into(),
        }
    }
}

/// A route of any kind.
pub struct Route<'a> {
    pub kind: &'static str,
    pub metadata: &'a Metadata,
    pub hostnames: &'a [String],
    plural: &'static str,
    parents: &'a [Reference],
    status: &'a Value,
    pub rules: Arc<Rules>,
    /// The backends of a TLSRoute, TCPRoute or UDPRoute.
    pub stream: Arc<[BackendRef]>,
}

/// A route with its parents of ours.
pub struct Attached<'a> {
    pub route: &'a Route<'a>,
    parents: Vec<Parent<'a>>,
    has_rival: bool,
    /// The listeners that the route is attached to, by Gateway and number, with the hosts in common.
    pub listeners: Vec<Attachment>,
}

/// A listener that a route is attached to.
#[derive(Clone, Debug)]
pub struct Attachment {
    pub gateway: usize,
    pub listener: usize,
    pub hosts: Box<[HostPattern]>,
}

impl Attachment {
    /// Returns the listener.
    pub fn place(&self) -> ListenerPlace {
        ListenerPlace { gateway: self.gateway, listener: self.listener }
    }
}

impl Route<'_> {
    /// Returns the name of a route of HTTP or gRPC; None for other kinds.
    pub fn http_name(&self) -> Option<ObjectName> {
        let is_http = ["HTTPRoute", "GRPCRoute"].contains(&self.kind);
        is_http.then(|| object_name(self.kind, self.metadata))
    }
}

impl Attached<'_> {
    /// Reports whether a route of another kind has one of the hosts.
    pub fn has_rival(&self) -> bool {
        self.has_rival
    }
}

/// A parent of a route, and the reason why the route is not attached.
struct Parent<'a> {
    reference: &'a Reference,
    refused: Option<Problem>,
}

/// Returns all routes, the oldest first.
pub fn collect(objects: &Objects) -> Vec<Route<'_>> {
    let mut routes: Vec<Route<'_>> = objects.http_routes.values().map(|route| http_route(objects, route)).collect();
    routes.extend(objects.grpc_routes.values().map(|route| grpc_route(objects, route)));
    let streams = [
        (&objects.tls_routes, "TLSRoute", "tlsroutes"),
        (&objects.tcp_routes, "TCPRoute", "tcproutes"),
        (&objects.udp_routes, "UDPRoute", "udproutes"),
    ];
    for (store, kind, plural) in streams {
        for route in store.values() {
            let spec = &route.spec;
            let mut wanted = new(route, kind, plural, &spec.parent_refs, &spec.hostnames);
            read_stream(objects, &mut wanted, spec);
            routes.push(wanted);
        }
    }
    routes.sort_by_cached_key(|route| route.metadata.age());
    routes
}

/// Returns a route of HTTP or gRPC; None if there is none.
pub fn read<'a>(objects: &'a Objects, name: &RouteName) -> Option<Route<'a>> {
    match name.kind {
        "GRPCRoute" => objects.grpc_routes.get(&name.key).map(|route| grpc_route(objects, route)),
        _ => objects.http_routes.get(&name.key).map(|route| http_route(objects, route)),
    }
}

fn http_route<'a>(objects: &'a Objects, route: &'a Resource<HttpRouteSpec>) -> Route<'a> {
    let spec = &route.spec;
    let rules = Arc::new(http::http(&source(objects, "HTTPRoute", &route.metadata), spec));
    Route { rules, ..new(route, "HTTPRoute", "httproutes", &spec.parent_refs, &spec.hostnames) }
}

fn grpc_route<'a>(objects: &'a Objects, route: &'a Resource<GrpcRouteSpec>) -> Route<'a> {
    let spec = &route.spec;
    let rules = Arc::new(http::grpc(&source(objects, "GRPCRoute", &route.metadata), spec));
    Route { rules, ..new(route, "GRPCRoute", "grpcroutes", &spec.parent_refs, &spec.hostnames) }
}

fn object_name(kind: &'static str, metadata: &Metadata) -> ObjectName {
    ObjectName { kind, namespace: metadata.namespace.as_str().into(), name: metadata.name.as_str().into() }
}

fn new<'a, S>(
    object: &'a Resource<S>,
    kind: &'static str,
    plural: &'static str,
    parents: &'a [Reference],
    hostnames: &'a [String],
) -> Route<'a> {
    Route {
        kind,
        plural,
        metadata: &object.metadata,
        hostnames,
        parents,
        status: &object.status,
        rules: Arc::default(),
        stream: Arc::new([]),
    }
}

fn source<'a>(objects: &'a Objects, kind: &'static str, metadata: &'a Metadata) -> Source<'a> {
    Source { objects, from: From::gateway_api(kind, &metadata.namespace), route: object_name(kind, metadata) }
}

fn read_stream(objects: &Objects, route: &mut Route<'_>, spec: &StreamRouteSpec) {
    let from = From::gateway_api(route.kind, &route.metadata.namespace);
    let mut references = Vec::new();
    let mut rules = Rules::default();
    for backend in spec.rules.iter().flat_map(|rule| &rule.backend_refs) {
        let weight = backend.weight.unwrap_or(1);
        references.push(match backends::resolve(objects, from, &backend.target) {
            Ok(key) => backends::reference(weight, Some(key), Vec::new()),
            Err(problem) => {
                rules.unresolved.get_or_insert(Box::new(problem));
                backends::invalid(weight)
            }
        });
    }
    route.stream = references.into();
    route.rules = Arc::new(rules);
}

/// Attaches routes to listeners, and counts them there.
pub fn attach<'a>(objects: &Objects, gateways: &mut [Gateway<'_>], routes: &'a [Route<'a>]) -> Vec<Attached<'a>> {
    let mut all = Vec::new();
    let mut taken = TakenHosts::default();
    for (number, route) in routes.iter().enumerate() {
        let attached = attach_one(objects, gateways, route, Rivals { routes, taken: &taken });
        attached.listeners.iter().for_each(|attachment| taken.add(route.kind, attachment, number));
        all.push(attached);
    }
    all
}

/// Attaches a route that competes with no other for its hosts.
pub fn attach_alone<'a>(objects: &Objects, gateways: &mut [Gateway<'_>], route: &'a Route<'a>) -> Attached<'a> {
    attach_one(objects, gateways, route, Rivals { routes: &[], taken: &TakenHosts::default() })
}

fn attach_one<'a>(
    objects: &Objects,
    gateways: &mut [Gateway<'_>],
    route: &'a Route<'a>,
    rivals: Rivals<'_>,
) -> Attached<'a> {
    let mut attached = Attached { route, parents: Vec::new(), has_rival: false, listeners: Vec::new() };
    for reference in route.parents {
        let Some(place) = find_parent(gateways, route, reference) else { continue };
        let refused = attach_to(objects, gateways, reference, place, rivals, &mut attached).err();
        let refused = refused.or_else(|| route.rules.unsupported.as_deref().cloned());
        attached.parents.push(Parent { reference, refused });
    }
    attached
}

/// A Gateway, or one of its ListenerSets.
#[derive(Clone, Copy)]
struct Place {
    gateway: usize,
    set: Option<usize>,
}

/// Returns the Gateway or ListenerSet that a reference names, if it is one of ours.
fn find_parent(gateways: &[Gateway<'_>], route: &Route<'_>, reference: &Reference) -> Option<Place> {
    if !reference.group.is_empty() && reference.group != GROUP {
        return None;
    }
    let namespace = reference.namespace.clone().unwrap_or_else(|| route.metadata.namespace.clone());
    let key = Key::new(namespace, reference.name.clone());
    match reference.kind.as_str() {
        "" | "Gateway" => {
            let gateway = gateways.iter().position(|gateway| gateway.key() == key)?;
            Some(Place { gateway, set: None })
        }
        "ListenerSet" => gateways.iter().enumerate().find_map(|(gateway, one)| {
            let set = one.sets.iter().position(|set| set.object.metadata.key() == key)?;
            Some(Place { gateway, set: Some(set) })
        }),
        _ => None,
    }
}

fn attach_to(
    objects: &Objects,
    gateways: &mut [Gateway<'_>],
    reference: &Reference,
    place: Place,
    rivals: Rivals<'_>,
    attached: &mut Attached<'_>,
) -> Result<(), Problem> {
    let route = attached.route;
    let Some(gateway) = gateways.get_mut(place.gateway) else { return Ok(()) };
    let mut is_named = false;
    let mut is_allowed = false;
    let mut is_attached = false;
    let mut rival = None;
    for (number, listener) in gateway.listeners.iter_mut().enumerate() {
        let section = reference.section_name.as_deref().is_none_or(|name| name == listener.spec.name);
        let port = reference.port.is_none_or(|port| port == listener.spec.port);
        if listener.set != place.set || !section || !port {
            continue;
        }
        is_named = true;
        let namespaces = &listener.spec.allowed_routes.namespaces;
        let from = &route.metadata.namespace;
        if !listener.kinds.contains(&route.kind) || !gateways::allows(objects, namespaces, listener.namespace, from) {
            continue;
        }
        is_allowed = true;
        let hosts = match route.kind {
            "TCPRoute" | "UDPRoute" => vec![HostPattern::Any],
            _ => hosts::intersect(listener.spec.hostname.as_deref(), route.hostnames),
        };
        if hosts.is_empty() {
            continue;
        }
        let at = ListenerPlace { gateway: place.gateway, listener: number };
        if let Some(other) = rivals.find(route.kind, at, &hosts) {
            rival = Some(other);
            attached.has_rival = true;
            continue;
        }
        is_attached = true;
        let known = |one: &Attachment| one.gateway == place.gateway && one.listener == number;
        if !attached.listeners.iter().any(known) {
            listener.attached += 1;
            attached.listeners.push(Attachment { gateway: place.gateway, listener: number, hosts: hosts.into() });
        }
    }
    if let Some(rival) = rival.filter(|_| !is_attached) {
        let message = format!("the older {} {} has one of the host names", rival.kind, rival.metadata.key());
        return Err(Problem::new("Conflicted", message));
    }
    match (is_named, is_allowed, is_attached) {
        (_, _, true) => Ok(()),
        (false, _, _) => Err(Problem::new("NoMatchingParent", "no listener has this name and port")),
        (_, false, _) => Err(Problem::new("NotAllowedByListeners", "no listener allows this route")),
        _ => Err(Problem::new("NoMatchingListenerHostname", "no listener has one of the host names")),
    }
}

/// A listener by the numbers of its Gateway and its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenerPlace {
    pub gateway: usize,
    pub listener: usize,
}

/// The hosts of routes at listeners, with the numbers of the oldest route that has each.
#[derive(Default)]
struct TakenHosts {
    http: BTreeMap<ListenerPlace, BTreeMap<HostPattern, usize>>,
    grpc: BTreeMap<ListenerPlace, BTreeMap<HostPattern, usize>>,
}

impl TakenHosts {
    fn add(&mut self, kind: &str, attachment: &Attachment, number: usize) {
        let taken = match kind {
            "HTTPRoute" => &mut self.http,
            "GRPCRoute" => &mut self.grpc,
            _ => return,
        };
        let hosts = taken.entry(attachment.place()).or_default();
        for host in &attachment.hosts {
            hosts.entry(host.clone()).or_insert(number);
        }
    }
}

/// The older routes.
#[derive(Clone, Copy)]
struct Rivals<'a> {
    routes: &'a [Route<'a>],
    taken: &'a TakenHosts,
}

impl<'a> Rivals<'a> {
    /// Returns the oldest route of the other kind that has one of the hosts at a listener: HTTPRoutes and GRPCRoutes are
    /// never merged.
    fn find(&self, kind: &str, place: ListenerPlace, hosts: &[HostPattern]) -> Option<&'a Route<'a>> {
        let taken = match kind {
            "HTTPRoute" => self.taken.grpc.get(&place)?,
            "GRPCRoute" => self.taken.http.get(&place)?,
            _ => return None,
        };
        let number = hosts.iter().filter_map(|own| oldest_in_common(taken, own)).min()?;
        self.routes.get(number)
    }
}

/// Returns the number of the oldest route with a host that covers another one, or is covered by it.
fn oldest_in_common(taken: &BTreeMap<HostPattern, usize>, own: &HostPattern) -> Option<usize> {
    let wider = hosts::wider(own).into_iter().chain([own.clone()]);
    let above = wider.filter_map(|pattern| taken.get(&pattern).copied()).min();
    if let HostPattern::Exact(_) = own {
        return above;
    }
    let below = taken.iter().filter(|(pattern, _)| hosts::covers(own, pattern)).map(|(_, number)| *number).min();
    above.into_iter().chain(below).min()
}

/// Adds the statuses of routes. Parents of other controllers keep theirs.
pub fn statuses(attached: &[Attached<'_>], now: &str, statuses: &mut Vec<WantedStatus>) {
    for one in attached {
        let route = one.route;
        let current = &route.status["parents"];
        let entries = current.as_array().into_iter().flatten();
        let is_ours = |entry: &&Value| entry["controllerName"] == CONTROLLER;
        let had_ours = entries.clone().any(|entry| is_ours(&entry));
        if one.parents.is_empty() && !had_ours {
            continue;
        }
        let mut parents: Vec<Value> = entries.filter(|entry| !is_ours(entry)).cloned().collect();
        parents.extend(one.parents.iter().map(|parent| parent_status(route, parent, current, now)));
        let status = json!({"parents": parents});
        statuses.push(WantedStatus { plural: route.plural, key: route.metadata.key(), status });
    }
}

fn parent_status(route: &Route<'_>, parent: &Parent<'_>, current: &Value, now: &str) -> Value {
    let reference = parent_reference(parent.reference);
    let current = status::find(current, &[("parentRef", &reference), ("controllerName", &json!(CONTROLLER))]);
    let accepted = match &parent.refused {
        None => Condition::is_true("Accepted", "Accepted", "the route is attached"),
        Some(problem) => Condition::is_false("Accepted", problem.reason, problem.message.clone()),
    };
    let resolved = match &route.rules.unresolved {
        None => Condition::is_true("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        Some(problem) => Condition::is_false("ResolvedRefs", problem.reason, problem.message.clone()),
    };
    let all = [accepted, resolved];
    json!({
        "parentRef": reference,
        "controllerName": CONTROLLER,
        "conditions": conditions(&all, route.metadata.generation, &current["conditions"], now),
    })
}

/// Returns a reference to a parent as the API has it.
pub fn parent_reference(reference: &Reference) -> Value {
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    let mut value = json!({
        "group": or(&reference.group, GROUP),
        "kind": or(&reference.kind, "Gateway"),
        "name": reference.name,
    });
    if let Some(namespace) = &reference.namespace {
        value["namespace"] = json!(namespace);
    }
    if let Some(section) = &reference.section_name {
        value["sectionName"] = json!(section);
    }
    if let Some(port) = reference.port {
        value["port"] = json!(port);
    }
    value
}
