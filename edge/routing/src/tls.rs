//! TLS at listeners.

use crate::{BackendRef, Hosts, HttpHost};
use std::sync::Arc;

/// A server name of a TLS port.
#[derive(Clone, Debug)]
pub enum TlsHost {
    /// The handshake is ours; `then` gets the plain bytes.
    Terminate {
        certificates: Arc<[Arc<ServerCertificate>]>,
        client_validation: Option<Arc<ClientValidation>>,
        then: TlsUse,
    },
    /// The bytes go on as they are.
    Passthrough(Arc<[BackendRef]>),
}

/// Two hosts are equal if they are one: configurations share the hosts that stay.
impl PartialEq for TlsHost {
    fn eq(&self, other: &TlsHost) -> bool {
        std::ptr::eq(self, other)
    }
}

#[derive(Clone, Debug)]
pub enum TlsUse {
    /// HTTP/1.1 or HTTP/2 by ALPN. A request whose host belongs to another server name of the same port is answered
    /// with 421.
    Http(Hosts<Arc<HttpHost>>),
    Tcp(Arc<[BackendRef]>),
}

/// A certificate chain and its key, from a Secret of type kubernetes.io/tls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCertificate {
    pub chain_pem: Arc<[u8]>,
    pub key_pem: Arc<[u8]>,
}

/// How client certificates are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientValidation {
    pub trusted_pem: Arc<[u8]>,
    /// The connection goes on without a valid certificate (AllowInsecureFallback).
    pub optional: bool,
}
