//! The routing configuration: everything that the data half needs to serve requests, resolved from Gateways, routes,
//! Ingresses and their policies. It names no Kubernetes object beyond what logs and metrics show, and it is immutable:
//! a change makes a new configuration. Endpoints change more often than routes, and so stand apart: a rule names a
//! [`BackendRef`], and the data half looks up its endpoints by [`BackendKey`].

mod backend;
mod filter;
mod host;
mod http;
mod index;
mod matching;
mod network;
mod path;
mod policy;
mod tls;

pub use backend::{
    Backend, BackendKey, BackendProtocol, BackendRef, BackendTls, Endpoint, Endpoints, ProxyVersion,
    TrustedCertificates,
};
pub use filter::{Cors, Filter, HeaderChange, Mirror, OriginChange, PathChange, Redirect, Replacement};
pub use host::{HostPattern, Hosts, MadeHosts};
pub use http::{HeaderMatch, HttpRule, PathMatch, QueryMatch, Request, Retry, StringMatch, Timeouts};
pub use index::{HttpHost, MatchedRule};
pub use network::{InvalidNetwork, Network};
pub use path::{UnsafePath, normalize};
pub use policy::{
    AddressPolicy, BasicAuth, ClaimHeader, ConcurrencyLimit, CookieAttributes, ErrorPages, FixedResponse, ForwardAuth,
    HashKey, Jwt, RateLimit, SameSite, SessionKind, SessionPersistence,
};
pub use tls::{ClientValidation, ServerCertificate, TlsHost, TlsUse};

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;

/// The name of an object, for access logs, metrics and conditions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    pub kind: &'static str,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// The whole configuration of one data node.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// One entry for each socket, by its key.
    pub listeners: BTreeMap<ListenerKey, Arc<Listener>>,
    /// Every backend that some rule names. Copies share their parts.
    pub backends: OrdMap<BackendKey, Arc<Backend>>,
}

/// A port of a Gateway. All listeners of the Gateway (and of its ListenerSets) with that port and transport share a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerKey {
    /// A Gateway, or the IngressClass for all of its Ingresses.
    pub owner: ObjectName,
    /// The port that clients connect to.
    pub port: u16,
    pub transport: Transport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    Tcp,
    Udp,
}

/// A socket and the way of its bytes.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The port that the data half binds on the node. The proxy sends connections for the Gateway's addresses there.
    pub bind_port: u16,
    pub protocol: ListenerProtocol,
    pub options: ListenerOptions,
}

/// Settings of a socket beyond its protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Proxies in front of the edge: their forwarding headers and PROXY protocol are believed, those of others are not.
    pub trusted_proxies: Arc<[Network]>,
    /// Connections of trusted proxies begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// The certificates of ACME's TLS-ALPN-01 by server name, for clients that speak `acme-tls/1` alone.
    pub challenges: Arc<BTreeMap<String, Arc<ServerCertificate>>>,
}

#[derive(Clone, Debug)]
pub enum ListenerProtocol {
    /// HTTP/1.1 and HTTP/2 with prior knowledge.
    Http(Hosts<Arc<HttpHost>>),
    /// TLS: the server name of the ClientHello chooses. A name without an entry is refused.
    Tls(Hosts<Arc<TlsHost>>),
    /// Connections go to backends by weight.
    Tcp(Arc<[BackendRef]>),
    /// Datagrams go to backends by weight, those of one client to one endpoint.
    Udp(Arc<[BackendRef]>),
}
