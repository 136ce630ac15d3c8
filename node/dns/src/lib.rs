//! Cluster DNS: the names of Services and pods, and a cache in front of the node's resolvers.
//!
//! It answers by the Kubernetes DNS specification (schema version 1.1.0) for the cluster domain and for the reverse
//! names of the cluster's ranges; everything else is forwarded. There is one on every node, fed by watches, so a pod's
//! query for a cluster name never leaves its node.
//!
//! Reading order: [`Zone`] is the data and its pure lookup; `respond` turns a query into a response; `forward` queries
//! upstream resolvers, with a cache; `server` has the sockets; [`run`] wires the watches.
//!
//! Nothing here holds a lock across an await, and nothing waits for a slow client. Hosts outside of the cluster are
//! never answered (`clients`).

mod cache;
mod clients;
mod error;
mod forward;
#[doc(hidden)]
pub mod fuzz;
mod metrics;
mod respond;
mod run;
mod server;
mod zone;

pub use error::Error;
pub use metrics::FAMILIES as METRICS;
pub use run::run;
pub use server::{Ready, Server};
pub use zone::{Endpoints, Service, Zone};

use std::net::{IpAddr, SocketAddr};

/// The settings of a node's DNS.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses to listen at, for UDP and TCP each: the pods' gateway, port 53.
    pub listen: Vec<SocketAddr>,
    /// The pod CIDRs, whose clients are answered; beside them only this node itself is. Default none.
    pub clients: Vec<(IpAddr, u8)>,
    /// The addresses where metrics are served to the same clients, over HTTP at `/metrics`. Default none.
    pub metrics: Vec<SocketAddr>,
    /// The cluster domain. Default `cluster.local`.
    pub domain: String,
    /// Resolvers for other names, best first. Our own addresses among them are ignored.
    pub upstreams: Vec<SocketAddr>,
    /// Domains with resolvers of their own: `corp.example` → its name servers.
    pub stub_domains: Vec<(String, Vec<SocketAddr>)>,
    /// Further addresses that lead back here, such as that of the Service kube-dns; never upstreams.
    pub own_addresses: Vec<IpAddr>,
    /// The ranges whose reverse names are answered here alone: those of Services and pods.
    pub reverse_ranges: Vec<(IpAddr, u8)>,
    /// Seconds that clients may keep answers of the cluster domain. Default 5.
    pub ttl: u32,
    /// The most cached external answers. Default 10,000.
    pub cache_size: usize,
}

impl Config {
    /// Returns the defaults for a node that listens at these addresses.
    pub fn new(listen: Vec<SocketAddr>, upstreams: Vec<SocketAddr>) -> Config {
        Config {
            listen,
            clients: Vec::new(),
            metrics: Vec::new(),
            domain: "cluster.local".to_owned(),
            upstreams,
            stub_domains: Vec::new(),
            own_addresses: Vec::new(),
            reverse_ranges: Vec::new(),
            ttl: 5,
            cache_size: 10_000,
        }
    }
}
