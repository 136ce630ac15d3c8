//! Backends: where requests go.

use std::net::SocketAddr;
use std::sync::Arc;

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    pub namespace: Arc<str>,
    pub service: Arc<str>,
    pub port: u16,
}

/// A rule's reference to a backend.
#[derive(Clone, Debug)]
pub struct BackendRef {
    pub weight: u32,
    /// None if the reference is invalid: requests of its weight are answered with 500, connections are closed.
    pub key: Option<BackendKey>,
    /// Filters of this reference alone, after those of the rule.
    pub filters: Arc<[crate::Filter]>,
}

/// How to speak to the endpoints of a Service's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub protocol: BackendProtocol,
    pub tls: Option<BackendTls>,
    /// The PROXY protocol that tells endpoints the client's address. A connection with it serves one client alone.
    pub proxy_protocol: Option<ProxyVersion>,
}

impl Backend {
    /// Returns a backend of plain connections.
    pub fn plain(protocol: BackendProtocol) -> Backend {
        Backend { protocol, tls: None, proxy_protocol: None }
    }
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// A binary header.
    V2,
}

/// The Service port's appProtocol, or the route's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendProtocol {
    Http1,
    /// HTTP/2 with prior knowledge, or by ALPN over TLS; gRPC is this.
    Http2,
}

/// The settings of a BackendTLSPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// The server name that is sent, and verified unless `subject_alt_names` has entries.
    pub hostname: Arc<str>,
    pub subject_alt_names: Arc<[Arc<str>]>,
    pub trusted: TrustedCertificates,
    /// The certificate that the Gateway shows to backends.
    pub client_certificate: Option<Arc<crate::ServerCertificate>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustedCertificates {
    System,
    /// Certificates in PEM.
    Pem(Arc<[u8]>),
    /// Every certificate is accepted: the connection is private to those who cannot change it.
    Unverified,
    /// The policy is invalid: every request is answered with 502.
    Invalid,
}

/// The endpoints of a Service's port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Endpoints that take new requests.
    pub ready: Vec<Endpoint>,
    /// Endpoints that end and still serve: taken when none is ready.
    pub terminating: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub node: Option<Arc<str>>,
}
