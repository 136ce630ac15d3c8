//! Resolves all objects to the configuration of the data half, to statuses and to Services.
//!
//! One pure function, [`resolve`], which both halves run: the leader writes the statuses and Services, every data node
//! serves the configuration. So a status never promises what a node understands differently.
//!
//! Invariant: the result depends on the objects alone; the order of lists does not matter, ages and names decide.

mod addresses;
mod backends;
mod certificates;
mod challenges;
mod classes;
mod gateways;
mod hosts;
mod http;
mod ingress;
mod key_sets;
mod listeners;
mod live;
mod policies;
mod policy;
mod references;
mod route_policies;
mod routes;
mod settings;
mod table;

pub use addresses::{Allocated, OWNED_LABEL, WantedPort, WantedService, allocate, bind_ports, is_owned, slices};
pub use challenges::{Challenges, ENTRY as CHALLENGES_ENTRY, HttpChallenge, ISSUER_ANNOTATION, TlsChallenge};
pub use classes::FEATURES;
pub use key_sets::{
    ENTRY as KEYS_ENTRY, KeySource, LABEL as KEYS_LABEL, MAX_KEYS, PROBLEM_ANNOTATION, URI_ANNOTATION, is_key_set,
};
pub use live::{Live, Update};
pub use routes::{ChangedRoutes, RouteName};

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::{Key, Value};
use corten_routing::Configuration;

use crate::objects::Objects;

/// The name by which GatewayClasses, IngressClasses and statuses name this controller.
pub const CONTROLLER: &str = "corten.dev/gateway";
/// The controller's name in IngressClasses.
pub const INGRESS_CONTROLLER: &str = "corten.dev/ingress";
/// The name of the GatewayClass and of the IngressClass that every cluster has.
pub const CLASS: &str = "corten";
/// The namespace of the Leases of data nodes, and of the Service of Ingresses.
pub const NAMESPACE: &str = "corten-edge";

/// The ports that the data half may bind on nodes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl Default for PortRange {
    /// Below the node ports, and below the ports that kernels give to clients.
    fn default() -> PortRange {
        PortRange { first: 28000, last: 29999 }
    }
}

/// Everything that follows from the objects.
#[derive(Debug, Default)]
pub struct Resolved {
    pub configuration: Configuration,
    pub statuses: Vec<WantedStatus>,
    pub services: Vec<WantedService>,
    pub references: References,
    /// Events about objects whose authors meant something else.
    pub events: Vec<WantedEvent>,
    /// The Gateways whose sockets are all in the configuration, with their generations. A data node reports them once it
    /// has read what they name.
    pub complete: BTreeMap<Key, i64>,
    /// The Secrets and ConfigMaps that the listeners of each Gateway name.
    pub gateway_references: BTreeMap<Key, References>,
}

/// The status that an object should have.
#[derive(Debug, PartialEq)]
pub struct WantedStatus {
    pub plural: &'static str,
    pub key: Key,
    pub status: Value,
}

/// A warning about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedEvent {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub key: Key,
    pub uid: String,
    pub reason: &'static str,
    pub message: String,
}

/// The Secrets and ConfigMaps that are read, whether or not they exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub secrets: BTreeSet<Key>,
    pub config_maps: BTreeSet<Key>,
    /// The ConfigMaps with keys of tokens, and the URLs that they are fetched from.
    pub key_sets: BTreeMap<Key, KeySource>,
}

impl References {
    fn extend(&mut self, other: &References) {
        self.secrets.extend(other.secrets.iter().cloned());
        self.config_maps.extend(other.config_maps.iter().cloned());
        self.key_sets.extend(other.key_sets.iter().map(|(key, source)| (key.clone(), source.clone())));
    }
}

/// Resolves all objects. `now` is the time of conditions that change.
pub fn resolve(objects: &Objects, now: &str) -> Resolved {
    resolve_for(objects, Some(now)).resolved
}

/// Everything that follows from the objects, and what updates need of it.
#[derive(Debug)]
pub struct Resolution {
    pub resolved: Resolved,
    pub live: Live,
}

/// Resolves all objects. `now` is the time of conditions that change, and None for data nodes, which write no statuses.
pub fn resolve_for(objects: &Objects, now: Option<&str>) -> Resolution {
    let mut resolved = Resolved::default();
    let mut gateways = gateways::collect(objects, &mut resolved.references);
    let routes = routes::collect(objects);
    let attached = routes::attach(objects, &mut gateways, &routes);
    let policies = policies::apply(objects, &gateways, &attached, &mut resolved.references);
    let route_policies = route_policies::collect(objects, &gateways, &attached, &mut resolved.references);
    let all = table::Policies { tls: &policies, routes: &route_policies };
    let mut live = Live::new(&live::Context { gateways: &gateways, policies: &route_policies }, &attached);
    table::build(objects, &gateways, &attached, &all, &live, &mut resolved);
    add_others(objects, &all, &mut live, &mut resolved);
    challenges::add(objects, &mut resolved);

    if let Some(now) = now {
        classes::statuses(objects, now, &mut resolved.statuses);
        gateways::statuses(objects, &gateways, now, &mut resolved);
        routes::statuses(&attached, now, &mut resolved.statuses);
        policies::statuses(&policies, now, &mut resolved.statuses);
        route_policies::statuses(&route_policies, now, &mut resolved.statuses);
    }
    Resolution { resolved, live }
}

/// Adds Ingresses, and the backends of policies. A backend that a route names too has the settings of the route.
fn add_others(objects: &Objects, policies: &table::Policies<'_>, live: &mut Live, resolved: &mut Resolved) {
    let of_routes = std::mem::take(&mut resolved.configuration.backends);
    ingress::resolve(objects, policies, resolved);
    table::add_policy_backends(objects, policies, resolved);
    let others = std::mem::take(&mut resolved.configuration.backends);
    resolved.configuration.backends = of_routes.union(others.clone());
    live.keep(&resolved.configuration, others);
}
