//! The flags of the endpoint of a component that runs alone.

use std::path::PathBuf;

use clap::Args;

use crate::pki::Identity;

/// Health checks and metrics of a component that runs alone.
#[derive(Debug, Clone, Args)]
pub struct Serving {
    /// The IP address that serves health checks and metrics.
    #[arg(long, default_value = "0.0.0.0", value_name = "ADDRESS")]
    pub bind_address: std::net::IpAddr,
    /// The port that serves health checks and metrics; defaults to upstream's port for the component, 0 disables it.
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,
    /// The serving certificate; defaults to a self-signed one.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// The private key of the serving certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

impl Serving {
    /// Returns the address to serve at, for a component with this port of upstream's.
    pub fn address(&self, default_port: u16) -> std::net::SocketAddr {
        (self.bind_address, self.secure_port.unwrap_or(default_port)).into()
    }

    /// Returns the certificate and key, if the flags name them.
    pub fn identity(&self) -> anyhow::Result<Option<Identity>> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))
        };
        let pair = self.tls_cert_file.as_ref().zip(self.tls_private_key_file.as_ref());
        pair.map(|(certificate, key)| Ok(Identity { certificate: read(certificate)?, key: read(key)? })).transpose()
    }
}
