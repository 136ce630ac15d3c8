//! How a backend's endpoints are spoken to, with its TLS settings made once.

use corten_routing::{BackendProtocol, ProxyVersion};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::sync::Arc;

use crate::tls;

#[derive(Debug)]
pub(crate) struct Settings {
    described: corten_routing::Backend,
    pub(crate) protocol: BackendProtocol,
    pub(crate) tls: BackendTls,
    pub(crate) proxy_protocol: Option<ProxyVersion>,
}

/// TLS to endpoints.
#[derive(Debug)]
pub(crate) enum BackendTls {
    Plain,
    Tls {
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    },
    /// The policy has no usable certificates or names: no connection is made.
    Invalid,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::new(&corten_routing::Backend::plain(BackendProtocol::Http1))
    }
}

impl Settings {
    pub(super) fn new(described: &corten_routing::Backend) -> Settings {
        let tls = match &described.tls {
            None => BackendTls::Plain,
            Some(policy) => match tls::backend_config(policy, described.protocol) {
                Ok(backend) => BackendTls::Tls { config: backend.config, name: backend.name },
                Err(error) => {
                    tracing::warn!(%error, hostname = %policy.hostname, "TLS to a backend is not possible");
                    BackendTls::Invalid
                }
            },
        };
        Settings {
            described: described.clone(),
            protocol: described.protocol,
            tls,
            proxy_protocol: described.proxy_protocol,
        }
    }

    pub(super) fn describes(&self, described: &corten_routing::Backend) -> bool {
        self.described == *described
    }
}
