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
mod listeners;
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

use std::collections::BTreeSet;

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
    /// The Gateways whose sockets are all in the configuration, with their generations. A data node reports them.
    pub complete: std::collections::BTreeMap<Key, i64>,
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
}

/// Resolves all objects. `now` is the time of conditions that change.
pub fn resolve(objects: &Objects, now: &str) -> Resolved {
    let mut resolved = Resolved::default();
    let mut gateways = gateways::collect(objects, &mut resolved.references);
    let routes = routes::collect(objects);
    let attached = routes::attach(objects, &mut gateways, &routes);
    let policies = policies::apply(objects, &gateways, &attached, &mut resolved.references);
    let route_policies = route_policies::collect(objects, &gateways, &attached, &mut resolved.references);
    let all = table::Policies { tls: &policies, routes: &route_policies };
    table::build(objects, &gateways, &attached, &all, &mut resolved);
    ingress::resolve(objects, &all, &mut resolved);
    table::add_policy_backends(objects, &all, &mut resolved);
    challenges::add(objects, &mut resolved);

    classes::statuses(objects, now, &mut resolved.statuses);
    gateways::statuses(objects, &gateways, now, &mut resolved);
    routes::statuses(&attached, now, &mut resolved.statuses);
    policies::statuses(&policies, now, &mut resolved.statuses);
    route_policies::statuses(&route_policies, now, &mut resolved.statuses);
    resolved
}
