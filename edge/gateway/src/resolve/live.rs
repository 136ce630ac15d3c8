//! The result of the last resolution, kept so that a change of one route among thousands costs what that route costs.
//!
//! An update reads the routes that changed, builds the hosts that they have or had, and replaces these in the
//! configuration, whose other parts stay the same ones.
//!
//! Invariant: an update has the result of a resolution of everything. Where the consequences of a change may reach other
//! routes (HTTPRoutes and GRPCRoutes that compete for a host, certificates for backends) there is no update, and its
//! caller resolves everything.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use corten_routing::{
    Backend, BackendKey, BackendProtocol, Configuration, HostPattern, HttpHost, HttpRule, ListenerProtocol, ObjectName,
    TlsHost, TlsUse,
};
use imbl::OrdMap;

use super::gateways::{self, Gateway};
use super::http::Rules;
use super::listeners::Listener;
use super::route_policies::{self, RoutePolicies};
use super::routes::{self, Attached, Attachment, ChangedRoutes, ListenerPlace};
use super::table::{self, Policies};
use super::{References, Resolved, WantedStatus, challenges, hosts, policies};
use crate::objects::{Metadata, Objects};

/// The consequences of a change.
#[derive(Debug)]
pub struct Update {
    pub configuration: Configuration,
    /// The statuses of the routes that changed, and of Gateways. Empty for data nodes.
    pub statuses: Vec<WantedStatus>,
}

/// The result of the last resolution.
#[derive(Debug, Default)]
pub struct Live {
    routes: BTreeSet<ByName>,
    listeners: BTreeMap<ListenerPlace, ListenerHosts>,
    /// The numbers of routes of all kinds that are attached to listeners.
    attached: BTreeMap<ListenerPlace, u32>,
    users: HashMap<BackendKey, Users>,
    /// The backends that Ingresses and policies name.
    others: OrdMap<BackendKey, Arc<Backend>>,
    /// The configuration without answers to challenges.
    configuration: Configuration,
    /// Whether a route has lost a host to one of the other kind.
    has_rivals: bool,
}

/// A route of HTTP or gRPC that is attached to listeners.
#[derive(Debug)]
struct LiveRoute {
    name: ObjectName,
    created: Box<str>,
    rules: Arc<Rules>,
    attachments: Box<[Attachment]>,
}

/// A route in the order of names, which are read from the route itself to save a second copy as a key.
#[derive(Debug)]
struct ByName(Arc<LiveRoute>);

impl Borrow<ObjectName> for ByName {
    fn borrow(&self) -> &ObjectName {
        &self.0.name
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &ByName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &ByName) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl LiveRoute {
    fn new(metadata: &Metadata, name: ObjectName, attached: &Attached<'_>) -> LiveRoute {
        let first = attached.route.rules.rules.first();
        LiveRoute {
            name: first.map(|rule| rule.route.clone()).unwrap_or(name),
            created: metadata.creation_timestamp.as_str().into(),
            rules: Arc::clone(&attached.route.rules),
            attachments: attached.listeners.clone().into(),
        }
    }

    /// Returns the order of precedence: the oldest first, then by namespace and name.
    fn age(&self) -> (&str, &str, &str) {
        (&self.created, &self.name.namespace, &self.name.name)
    }
}

/// The numbers of references to a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Users {
    http: usize,
    grpc: usize,
}

impl Users {
    fn of(&mut self, kind: &str) -> &mut usize {
        if kind == "GRPCRoute" { &mut self.grpc } else { &mut self.http }
    }

    fn protocol(self) -> BackendProtocol {
        if self.grpc > 0 { BackendProtocol::Http2 } else { BackendProtocol::Http1 }
    }
}

/// The hosts of a listener.
#[derive(Debug, Default)]
struct ListenerHosts(BTreeMap<HostPattern, HostRoutes>);

/// The routes of a host, the oldest first, and its rules.
#[derive(Debug, Default)]
struct HostRoutes {
    routes: Vec<Arc<LiveRoute>>,
    host: Arc<HttpHost>,
}

/// Hosts whose rules are to be built, by listener.
type Stale = BTreeMap<ListenerPlace, BTreeSet<HostPattern>>;

/// The Gateways and policies that rules are built with.
pub struct Context<'a> {
    pub gateways: &'a [Gateway<'a>],
    pub policies: &'a RoutePolicies<'a>,
}

impl Live {
    /// Returns the hosts of all routes with their rules.
    pub fn new(context: &Context<'_>, attached: &[Attached<'_>]) -> Live {
        let mut live = Live::default();
        let mut stale = Stale::new();
        for (gateway, one) in context.gateways.iter().enumerate() {
            for (listener, one) in one.listeners.iter().enumerate() {
                let place = ListenerPlace { gateway, listener };
                // The listener's own host name is always there: a request for it that no rule matches is the listener's,
                // not that of a wider one.
                let own = hosts::pattern(one.spec.hostname.as_deref());
                live.listeners.entry(place).or_default().0.entry(own.clone()).or_default();
                stale.entry(place).or_default().insert(own);
            }
        }
        for one in attached {
            live.has_rivals |= one.has_rival();
            live.count(one.route.kind, &one.listeners, policies::backends(one.route));
            if let Some(name) = one.route.http_name() {
                live.join(Arc::new(LiveRoute::new(one.route.metadata, name, one)), &mut stale);
            }
        }
        live.build(context, stale);
        live
    }

    /// Returns the rules of each host of a listener.
    pub fn hosts(&self, place: ListenerPlace) -> impl Iterator<Item = (&HostPattern, &Arc<HttpHost>)> {
        self.listeners.get(&place).into_iter().flat_map(|hosts| &hosts.0).map(|(pattern, one)| (pattern, &one.host))
    }

    /// Keeps a configuration for updates, and the backends in it that are not those of routes.
    pub fn keep(&mut self, configuration: &Configuration, others: OrdMap<BackendKey, Arc<Backend>>) {
        self.configuration = configuration.clone();
        self.others = others;
    }

    /// Takes over the routes that changed; None if everything is to be resolved. `now` is the time of conditions that
    /// change, and None for data nodes, which write no statuses.
    pub fn update(&mut self, objects: &Objects, changed: &ChangedRoutes, now: Option<&str>) -> Option<Update> {
        let has_policies = !objects.policies.is_empty() || !objects.route_policies.is_empty();
        if self.has_rivals || (now.is_some() && has_policies) {
            return None;
        }
        let mut read = References::default();
        let mut gateways = gateways::collect(objects, &mut read);
        if gateways.iter().any(|gateway| matches!(gateway.client_certificate, Ok(Some(_)))) {
            return None;
        }
        let mut stale = Stale::new();
        let mut touched = BTreeSet::new();
        let mut resolved = Resolved::default();
        for name in changed {
            if let Some(ByName(known)) = self.routes.take(&name.object_name()) {
                touched.extend(policies::rule_backends(&known.rules.rules).cloned());
                self.leave(&known, &mut stale);
            }
            let Some(route) = routes::read(objects, name) else { continue };
            let attached = routes::attach_alone(objects, &mut gateways, &route);
            if self.has_rival(route.kind, &attached.listeners) {
                return None;
            }
            touched.extend(policies::backends(&route).cloned());
            self.count(route.kind, &attached.listeners, policies::backends(&route));
            self.join(Arc::new(LiveRoute::new(route.metadata, name.object_name(), &attached)), &mut stale);
            if let Some(now) = now {
                routes::statuses(&[attached], now, &mut resolved.statuses);
            }
        }
        self.set_attached(&mut gateways);
        let tls = policies::apply(objects, &gateways, &[], &mut read);
        let policies = route_policies::collect(objects, &gateways, &[], &mut read);
        let context = Context { gateways: &gateways, policies: &policies };
        let built = self.build(&context, stale);
        self.replace_hosts(&gateways, &built);
        self.replace_backends(objects, &Policies { tls: &tls, routes: &policies }, touched);
        resolved.configuration = self.configuration.clone();
        challenges::add(objects, &mut resolved);
        if let Some(now) = now {
            gateways::statuses(objects, &gateways, now, &mut resolved);
        }
        Some(Update { configuration: resolved.configuration, statuses: resolved.statuses })
    }

    /// Counts a route at its listeners, and its references to backends.
    fn count<'a>(&mut self, kind: &str, listeners: &[Attachment], backends: impl Iterator<Item = &'a BackendKey>) {
        for attachment in listeners {
            *self.attached.entry(attachment.place()).or_default() += 1;
        }
        if listeners.is_empty() {
            return;
        }
        for key in backends {
            *self.users.entry(key.clone()).or_default().of(kind) += 1;
        }
    }

    /// Adds a route to its hosts.
    fn join(&mut self, route: Arc<LiveRoute>, stale: &mut Stale) {
        for attachment in &route.attachments {
            let hosts = &mut self.listeners.entry(attachment.place()).or_default().0;
            for pattern in &attachment.hosts {
                let routes = &mut hosts.entry(pattern.clone()).or_default().routes;
                let at = routes.partition_point(|other| other.age() <= route.age());
                routes.insert(at, Arc::clone(&route));
                routes.shrink_to_fit();
                stale.entry(attachment.place()).or_default().insert(pattern.clone());
            }
        }
        self.routes.insert(ByName(route));
    }

    /// Takes a route out of its hosts.
    fn leave(&mut self, route: &Arc<LiveRoute>, stale: &mut Stale) {
        for attachment in &route.attachments {
            if let Some(count) = self.attached.get_mut(&attachment.place()) {
                *count = count.saturating_sub(1);
            }
            let Some(hosts) = self.listeners.get_mut(&attachment.place()) else { continue };
            for pattern in &attachment.hosts {
                if let Some(host) = hosts.0.get_mut(pattern) {
                    host.routes.retain(|other| !Arc::ptr_eq(other, route));
                }
                stale.entry(attachment.place()).or_default().insert(pattern.clone());
            }
        }
        if route.attachments.is_empty() {
            return;
        }
        for key in policies::rule_backends(&route.rules.rules) {
            let Some(users) = self.users.get_mut(key) else { continue };
            let count = users.of(route.name.kind);
            *count = count.saturating_sub(1);
            if *users == Users::default() {
                self.users.remove(key);
            }
        }
    }

    /// Reports whether a route of the other kind has a host in common with a route.
    fn has_rival(&self, kind: &str, attachments: &[Attachment]) -> bool {
        attachments.iter().any(|attachment| {
            let hosts = self.listeners.get(&attachment.place());
            hosts.is_some_and(|hosts| attachment.hosts.iter().any(|own| hosts.has_rival(kind, own)))
        })
    }

    /// Builds the rules of stale hosts, and returns them; None for a host that has gone.
    fn build(&mut self, context: &Context<'_>, stale: Stale) -> Vec<BuiltHost> {
        let mut built = Vec::new();
        for (place, patterns) in stale {
            let Some(gateway) = context.gateways.get(place.gateway) else { continue };
            let Some(listener) = gateway.listeners.get(place.listener) else { continue };
            let rules = |route: &LiveRoute| context.policies.rules(gateway, listener, &route.name, &route.rules.rules);
            let own = hosts::pattern(listener.spec.hostname.as_deref());
            let hosts = self.listeners.entry(place).or_default();
            for pattern in hosts.with_narrower(patterns) {
                let host = hosts.build(&pattern, pattern == own, &rules);
                built.push(BuiltHost { place, pattern, host });
            }
        }
        built
    }

    /// Replaces hosts in the configuration.
    fn replace_hosts(&mut self, gateways: &[Gateway<'_>], built: &[BuiltHost]) {
        for one in built {
            let Some(gateway) = gateways.get(one.place.gateway) else { continue };
            let Some(listener) = gateway.listeners.get(one.place.listener) else { continue };
            let key = table::listener_key(gateway, listener.spec.port, listener.transport());
            let Some(socket) = self.configuration.listeners.get_mut(&key) else { continue };
            if listener.is_valid() {
                one.replace(gateway, listener, &mut Arc::make_mut(socket).protocol);
            }
        }
    }

    /// Sets the backends whose users changed.
    fn replace_backends(&mut self, objects: &Objects, policies: &Policies<'_>, touched: BTreeSet<BackendKey>) {
        for key in touched {
            let of_routes = self.users.get(&key).map(|users| {
                let tls = policies.tls.tls(objects, &key);
                Arc::new(Backend { tls, ..table::backend(objects, &key, users.protocol()) })
            });
            match of_routes.or_else(|| self.others.get(&key).map(Arc::clone)) {
                Some(backend) => self.configuration.backends.insert(key, backend),
                None => self.configuration.backends.remove(&key),
            };
        }
    }

    fn set_attached(&self, gateways: &mut [Gateway<'_>]) {
        for (gateway, one) in gateways.iter_mut().enumerate() {
            for (listener, one) in one.listeners.iter_mut().enumerate() {
                one.attached = self.attached.get(&ListenerPlace { gateway, listener }).copied().unwrap_or_default();
            }
        }
    }
}

impl ListenerHosts {
    /// Reports whether a route of another kind than `kind` has a host that covers `own` or is covered by it.
    fn has_rival(&self, kind: &str, own: &HostPattern) -> bool {
        let is_rival = |host: &HostRoutes| host.routes.iter().any(|route| route.name.kind != kind);
        let wider = hosts::wider(own).into_iter().chain([own.clone()]);
        if wider.filter_map(|pattern| self.0.get(&pattern)).any(is_rival) {
            return true;
        }
        let is_exact = matches!(own, HostPattern::Exact(_));
        !is_exact && self.0.iter().any(|(pattern, host)| hosts::covers(own, pattern) && is_rival(host))
    }

    /// Returns patterns and those that they cover, the widest first: a narrower host has the rules of the wider one.
    fn with_narrower(&self, patterns: BTreeSet<HostPattern>) -> Vec<HostPattern> {
        let mut all = patterns;
        let is_wide = |pattern: &&HostPattern| !matches!(pattern, HostPattern::Exact(_));
        let wide: Vec<HostPattern> = all.iter().filter(is_wide).cloned().collect();
        if !wide.is_empty() && all.len() < self.0.len() {
            let is_covered = |pattern: &&HostPattern| wide.iter().any(|wide| hosts::covers(wide, pattern));
            all.extend(self.0.keys().filter(is_covered).cloned());
        }
        let mut sorted: Vec<HostPattern> = all.into_iter().collect();
        sorted.sort_by_key(|pattern| std::cmp::Reverse(hosts::specificity(pattern)));
        sorted
    }

    /// Builds the rules of a host. One without routes goes, unless it is the listener's own.
    fn build(
        &mut self,
        pattern: &HostPattern,
        is_own: bool,
        rules: &dyn Fn(&LiveRoute) -> Vec<Arc<HttpRule>>,
    ) -> Option<Arc<HttpHost>> {
        let is_empty = self.0.get(pattern).is_none_or(|host| host.routes.is_empty());
        if is_empty && !is_own {
            self.0.remove(pattern);
            return None;
        }
        let wider =
            hosts::wider(pattern).iter().find_map(|wider| self.0.get(wider)).map(|wider| Arc::clone(&wider.host));
        let host = self.0.entry(pattern.clone()).or_default();
        let own = HttpHost::build(host.routes.iter().flat_map(|route| rules(route)).collect());
        host.host = Arc::new(match wider {
            Some(wider) => own.with_fallback(wider),
            None => own,
        });
        Some(Arc::clone(&host.host))
    }
}

/// A host of a listener whose rules were built; None if the host has gone.
struct BuiltHost {
    place: ListenerPlace,
    pattern: HostPattern,
    host: Option<Arc<HttpHost>>,
}

impl BuiltHost {
    /// Replaces the host in the table of a socket.
    fn replace(&self, gateway: &Gateway<'_>, listener: &Listener<'_>, protocol: &mut ListenerProtocol) {
        match protocol {
            ListenerProtocol::Http(hosts) if table::is_own(&self.pattern, gateway, listener) => self.set(hosts),
            ListenerProtocol::Tls(names) => {
                let name = hosts::pattern(listener.spec.hostname.as_deref());
                let Some(TlsHost::Terminate { certificates, client_validation, then: TlsUse::Http(hosts) }) =
                    names.get(&name).map(Arc::as_ref)
                else {
                    return;
                };
                let mut hosts = hosts.clone();
                self.set(&mut hosts);
                let certificates = Arc::clone(certificates);
                let client_validation = client_validation.clone();
                let then = TlsUse::Http(hosts);
                names.insert(name, Arc::new(TlsHost::Terminate { certificates, client_validation, then }));
            }
            _ => {}
        }
    }

    fn set(&self, hosts: &mut corten_routing::Hosts<Arc<HttpHost>>) {
        match &self.host {
            Some(host) => hosts.insert(self.pattern.clone(), Arc::clone(host)),
            None => hosts.remove(&self.pattern),
        }
    }
}
