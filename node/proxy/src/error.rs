//! The errors of the proxy.

/// An error of this package.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Firewall(#[from] corten_nftables::Error),
    #[error(transparent)]
    Client(#[from] corten_client::Error),
    #[error("{program}: {source}")]
    Program { program: String, source: std::io::Error },
    #[error("this kernel has no IPVS (CONFIG_IP_VS)")]
    NoIpvs(#[source] std::io::Error),
    #[error("cannot speak with the kernel's IPVS: {0}")]
    Ipvs(std::io::Error),
    #[error("the kernel refuses the programs of sockets: {0}")]
    Sockets(std::io::Error),
    #[error("the work of a sync was cancelled")]
    Cancelled,
}
