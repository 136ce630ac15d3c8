//! The interface of a cloud: instances, load balancers and routes.
//!
//! Contract: every call may be repeated. `ensure_balancer` and `create_route` find what an earlier call left, also one
//! whose answer was lost; `delete_balancer` and `delete_route` succeed if there is nothing to delete. A provider never
//! changes or deletes anything that does not carry this cluster's mark.

use std::net::IpAddr;
use std::time::Duration;

use corten_meta::Key;
use futures::future::BoxFuture;

/// The interval at which load balancers are compared with their Services, also where nothing has changed.
pub const COMPARE_INTERVAL: Duration = Duration::from_secs(600);

/// The answer of a provider.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// An error of a provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the cloud does not accept the credentials: {0}")]
    Denied(String),
    /// The cloud wants fewer requests; the time is the one that it named.
    #[error("the cloud asks to wait: {message}")]
    Throttled { message: String, after: Option<Duration> },
    /// The request has no meaning for this cloud; repeating it does not help.
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Failed(String),
}

/// A cloud.
pub trait Provider: Send + Sync + 'static {
    /// Returns the provider's name, with which the domain of its annotations begins.
    fn name(&self) -> &'static str;

    /// Forgets what it knows of the cloud: another process may have changed it.
    fn forget(&self) {}

    /// Returns the instance of a node; `None` if the cloud has none: existence, power state and metadata in one call.
    fn instance<'a>(&'a self, node: &'a NodeReference) -> Answer<'a, Option<Instance>>;

    /// Returns the load balancers; `None` if this cloud has none.
    fn balancers(&self) -> Option<&dyn Balancers> {
        None
    }

    /// Returns the routes; `None` if this cloud has none.
    fn routes(&self) -> Option<&dyn Routes> {
        None
    }
}

/// The load balancers of a cloud.
pub trait Balancers: Send + Sync {
    fn balancer<'a>(&'a self, name: &'a str) -> Answer<'a, Option<BalancerStatus>>;
    /// Creates a load balancer, or changes it to the wanted one. One that differs in its nodes alone, and that was
    /// compared within [`COMPARE_INTERVAL`], may get those alone.
    fn ensure_balancer<'a>(&'a self, wanted: &'a Balancer) -> Answer<'a, BalancerStatus>;
    fn delete_balancer<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
}

/// The routes of a cloud's network to the pods of nodes.
pub trait Routes: Send + Sync {
    /// Lists the routes of this cluster.
    fn list_routes(&self) -> Answer<'_, Vec<Route>>;
    fn create_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()>;
    fn delete_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()>;
}

/// The names by which a cloud finds the instance of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReference {
    pub name: String,
    /// Empty until the node is initialized, unless the kubelet was given it.
    pub provider_id: String,
}

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub provider_id: String,
    pub is_shut_down: bool,
    pub instance_type: String,
    pub zone: String,
    pub region: String,
    pub addresses: Vec<NodeAddress>,
}

/// An address of a node, with its type in the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// InternalIP, ExternalIP, Hostname, InternalDNS or ExternalDNS.
    pub kind: &'static str,
    pub address: String,
}

/// A load balancer, as a Service asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// The name in the cloud, made of the Service's uid.
    pub name: String,
    pub service: Key,
    pub ports: Vec<BalancerPort>,
    pub nodes: Vec<BalancerNode>,
    pub source_ranges: Vec<String>,
    /// The port at which every node reports whether it has endpoints, with `externalTrafficPolicy: Local`.
    pub health_check_port: Option<u16>,
    /// The address that the Service asks for.
    pub requested_address: Option<IpAddr>,
    /// The Service's annotations with the provider's prefix.
    pub annotations: Vec<Annotation>,
}

/// An annotation of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub name: String,
    pub value: String,
}

/// A port of a load balancer and the node port that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerPort {
    /// The port's name in the Service; may be empty.
    pub name: String,
    pub protocol: String,
    pub port: u16,
    pub node_port: u16,
}

/// A node behind a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BalancerNode {
    pub name: String,
    pub provider_id: String,
    pub internal_addresses: Vec<IpAddr>,
}

/// The addresses of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalancerStatus {
    pub ingress: Vec<Ingress>,
    /// Sentences about parts of the Service that have no effect; each becomes an event.
    pub warnings: Vec<String>,
}

/// An address of a load balancer: an IP address or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// The address, and whether the load balancer delivers packets with it as their destination.
    Ip {
        address: IpAddr,
        is_proxy: bool,
    },
    Hostname(String),
}

/// A route to the pods of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub node: BalancerNode,
    pub cidr: String,
}
