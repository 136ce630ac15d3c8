//! The errors of the cluster DNS.

use std::io;
use std::net::SocketAddr;

/// An error of this package.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a domain name")]
    InvalidDomain(String),
    #[error("cannot listen for DNS at {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Client(#[from] corten_client::Error),
}
