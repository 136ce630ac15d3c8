//! The configuration of the data half, from Gateways and the routes attached to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_routing::{
    Backend, BackendKey, BackendProtocol, BackendRef, HostPattern, Hosts, ListenerKey, ListenerOptions,
    ListenerProtocol, ObjectName, TlsHost, TlsUse, Transport,
};

use super::addresses::{self, WantedPort};
use super::gateways::Gateway;
use super::listeners::Listener;
use super::live::Live;
use super::policies;
use super::route_policies::RoutePolicies;
use super::routes::{Attached, Attachment, ListenerPlace, Route};
use super::{Resolved, backends, hosts};
use crate::objects::Objects;

/// The policies of the cluster.
pub struct Policies<'a> {
    pub tls: &'a policies::Policies<'a>,
    pub routes: &'a RoutePolicies<'a>,
}

/// Adds the sockets and backends of all Gateways, and their Services.
pub fn build(
    objects: &Objects,
    gateways: &[Gateway<'_>],
    attached: &[Attached<'_>],
    policies: &Policies<'_>,
    live: &Live,
    resolved: &mut Resolved,
) {
    let routes = by_listener(attached);
    for (number, gateway) in gateways.iter().enumerate() {
        resolved.gateway_references.insert(gateway.key(), gateway.references.clone());
        let Some(service) = addresses::of_gateway(gateway) else {
            resolved.complete.insert(gateway.key(), gateway.object.metadata.generation);
            continue;
        };
        let bound = addresses::bind_ports(&objects.services, &service.key);
        let mut is_complete = true;
        for port in &service.ports {
            let place = GatewayRoutes { gateway, number, routes: &routes, live };
            let Some(protocol) = place.protocol(*port) else { continue };
            let Some(bind_port) = bound.get(port).copied() else {
                is_complete = false;
                continue;
            };
            let key = listener_key(gateway, port.port, port.transport);
            let listener = corten_routing::Listener { bind_port, protocol, options: ListenerOptions::default() };
            resolved.configuration.listeners.insert(key, Arc::new(listener));
        }
        if is_complete {
            resolved.complete.insert(gateway.key(), gateway.object.metadata.generation);
        }
        resolved.services.push(service);
    }
    for one in attached.iter().filter(|one| !one.listeners.is_empty()) {
        add_backends(objects, gateways, one, policies, resolved);
    }
}

/// Returns the name of a port of a Gateway.
pub fn listener_key(gateway: &Gateway<'_>, port: u16, transport: Transport) -> ListenerKey {
    let metadata = &gateway.object.metadata;
    let namespace = metadata.namespace.as_str().into();
    let owner = ObjectName { kind: "Gateway", namespace, name: metadata.name.as_str().into() };
    ListenerKey { owner, port, transport }
}

/// A route at a listener.
#[derive(Clone, Copy)]
struct AtListener<'a> {
    route: &'a Route<'a>,
    attachment: &'a Attachment,
}

/// The routes of each listener, the oldest first, by Gateway and number.
type ByListener<'a> = BTreeMap<(usize, usize), Vec<AtListener<'a>>>;

fn by_listener<'a>(attached: &'a [Attached<'a>]) -> ByListener<'a> {
    let mut routes = ByListener::new();
    for one in attached {
        for attachment in &one.listeners {
            let place = (attachment.gateway, attachment.listener);
            routes.entry(place).or_default().push(AtListener { route: one.route, attachment });
        }
    }
    routes
}

/// A Gateway with the routes of its listeners and their policies.
#[derive(Clone, Copy)]
struct GatewayRoutes<'a> {
    gateway: &'a Gateway<'a>,
    number: usize,
    routes: &'a ByListener<'a>,
    live: &'a Live,
}

impl GatewayRoutes<'_> {
    /// Returns what a socket serves; None if no listener of the port is valid.
    fn protocol(&self, port: WantedPort) -> Option<ListenerProtocol> {
        let GatewayRoutes { gateway, number, routes, .. } = *self;
        let at_port =
            |listener: &Listener<'_>| listener.spec.port == port.port && listener.transport() == port.transport;
        let listeners: Vec<(usize, &Listener<'_>)> = gateway
            .listeners
            .iter()
            .enumerate()
            .filter(|(_, listener)| listener.is_valid() && at_port(listener))
            .collect();
        let (_, first) = listeners.first()?;
        let of = |place: usize| routes.get(&(number, place)).map(Vec::as_slice).unwrap_or_default();
        Some(match first.spec.protocol.as_str() {
            "HTTP" => {
                let mut table = Hosts::default();
                for (place, listener) in &listeners {
                    for (host, rules) in self.live.hosts(ListenerPlace { gateway: number, listener: *place }) {
                        if is_own(host, gateway, listener) {
                            table.insert(host.clone(), Arc::clone(rules));
                        }
                    }
                }
                ListenerProtocol::Http(table)
            }
            "TCP" => ListenerProtocol::Tcp(oldest(of(listeners.first()?.0))),
            "UDP" => ListenerProtocol::Udp(oldest(of(listeners.first()?.0))),
            _ => {
                let mut table = Hosts::default();
                for (place, listener) in &listeners {
                    self.tls_hosts(*place, listener, of(*place), &mut table);
                }
                ListenerProtocol::Tls(table)
            }
        })
    }

    /// Adds the server names of a listener of TLS or HTTPS.
    fn tls_hosts(
        &self,
        place: usize,
        listener: &Listener<'_>,
        routes: &[AtListener<'_>],
        table: &mut Hosts<Arc<TlsHost>>,
    ) {
        let terminate = |then: TlsUse| TlsHost::Terminate {
            certificates: listener.certificates.clone().into(),
            client_validation: listener.client_validation.clone(),
            then,
        };
        if listener.spec.protocol == "HTTPS" {
            let mut names = Hosts::default();
            for (host, rules) in self.live.hosts(ListenerPlace { gateway: self.number, listener: place }) {
                names.insert(host.clone(), Arc::clone(rules));
            }
            let host = hosts::pattern(listener.spec.hostname.as_deref());
            table.insert(host, Arc::new(terminate(TlsUse::Http(names))));
            return;
        }
        let mut seen = Vec::new();
        for at in routes {
            for host in &at.attachment.hosts {
                // Of two routes with one host the older has it.
                if seen.contains(host) || !is_own(host, self.gateway, listener) {
                    continue;
                }
                seen.push(host.clone());
                let stream = at.route.stream.clone();
                let entry = if listener.is_passthrough() {
                    TlsHost::Passthrough(stream)
                } else {
                    terminate(TlsUse::Tcp(stream))
                };
                table.insert(host.clone(), Arc::new(entry));
            }
        }
    }
}

/// Reports whether a host belongs to a listener, and not to a valid one of its port with a narrower host name.
pub fn is_own(host: &HostPattern, gateway: &Gateway<'_>, listener: &Listener<'_>) -> bool {
    let own = hosts::pattern(listener.spec.hostname.as_deref());
    let at_port = |other: &&Listener<'_>| {
        other.is_valid() && other.spec.port == listener.spec.port && other.transport() == listener.transport()
    };
    let narrower = gateway.listeners.iter().filter(at_port);
    let mut narrower = narrower.map(|other| hosts::pattern(other.spec.hostname.as_deref()));
    !narrower.any(|other| other != own && hosts::covers(&own, &other) && hosts::covers(&other, host))
}

/// Returns the backends of the oldest route; the others of a TCP or UDP listener get no connections.
fn oldest(routes: &[AtListener<'_>]) -> Arc<[BackendRef]> {
    routes.first().map(|at| at.route.stream.clone()).unwrap_or_else(|| Arc::new([backends::invalid(1)]))
}

/// Adds the backends of a route. A certificate for backends is that of the first Gateway with one.
fn add_backends(
    objects: &Objects,
    gateways: &[Gateway<'_>],
    attached: &Attached<'_>,
    policies: &Policies<'_>,
    resolved: &mut Resolved,
) {
    let parents = attached.listeners.iter().filter_map(|place| gateways.get(place.gateway));
    let certificate = parents.into_iter().find_map(|gateway| gateway.client_certificate.clone().ok().flatten());
    let default = match attached.route.kind {
        "GRPCRoute" => BackendProtocol::Http2,
        _ => BackendProtocol::Http1,
    };
    for key in policies::backends(attached.route) {
        let known = resolved.configuration.backends.get(key);
        let known_certificate = known.and_then(|backend| backend.tls.as_ref()?.client_certificate.clone());
        let was_http2 = known.is_some_and(|backend| backend.protocol == BackendProtocol::Http2);
        let mut backend = backend(objects, key, default);
        if was_http2 {
            backend.protocol = BackendProtocol::Http2;
        }
        backend.tls = policies.tls.tls(objects, key);
        if let Some(tls) = &mut backend.tls {
            tls.client_certificate = known_certificate.or_else(|| certificate.clone());
        }
        resolved.configuration.backends.insert(key.clone(), Arc::new(backend));
    }
}

/// Adds the backends that policies send requests to.
pub fn add_policy_backends(objects: &Objects, policies: &Policies<'_>, resolved: &mut Resolved) {
    for key in policies.routes.backends() {
        let add = || {
            Arc::new(Backend { tls: policies.tls.tls(objects, key), ..backend(objects, key, BackendProtocol::Http1) })
        };
        resolved.configuration.backends.entry(key.clone()).or_insert_with(add);
    }
}

/// Returns a backend without TLS, with the protocol of the Service's port.
pub fn backend(objects: &Objects, key: &BackendKey, default: BackendProtocol) -> Backend {
    let service = corten_meta::Key::new(key.namespace.to_string(), key.service.to_string());
    let ports = objects.services.get(&service).map(|service| service.spec.ports.as_slice()).unwrap_or_default();
    let port = ports.iter().find(|port| port.port == key.port);
    let protocol = port.and_then(|port| backends::protocol_of(port).ok().flatten()).unwrap_or(default);
    Backend::plain(protocol)
}

/// The transport of sockets for HTTP and TLS.
pub const TCP: Transport = Transport::Tcp;
