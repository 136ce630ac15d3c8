//! The errors of the pod network.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// An error of this package.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a CIDR")]
    InvalidCidr(String),
    #[error("{0} cannot hold pods: a range of at least four addresses is needed")]
    UnusableCidr(String),
    #[error("{0:?} cannot hold pods: one CIDR, or one per IP family, is needed")]
    UnusableCidrs(String),
    #[error("no free address in {0}")]
    AddressesExhausted(String),
    #[error("cannot open a netlink socket: {0}")]
    Netlink(#[source] io::Error),
    #[error("cannot {action}: {source}")]
    Link { action: String, source: rtnetlink::Error },
    #[error("{0} is missing")]
    NoLink(String),
    #[error("no route to {0}")]
    NoRoute(IpAddr),
    #[error("cannot enter the network namespace {path}: {source}")]
    Namespace { path: PathBuf, source: io::Error },
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot set {name}={value}: {source}")]
    Sysctl { name: String, value: String, source: io::Error },
    #[error("host port {port}/{protocol} is in use by another pod of this node")]
    HostPortInUse { port: u16, protocol: &'static str },
    #[error("{annotation}: {reason}")]
    Bandwidth { annotation: String, reason: String },
    #[error("this kernel has no WireGuard (CONFIG_WIREGUARD)")]
    NoWireguard(#[source] io::Error),
    #[error("cannot speak with the kernel's WireGuard: {0}")]
    Wireguard(io::Error),
    #[error("cannot publish the node's key: {0}")]
    Publish(corten_client::Error),
    #[error(transparent)]
    Cni(#[from] CniError),
    #[error(transparent)]
    Firewall(#[from] corten_nftables::Error),
    #[error("the network policies of the pod are not in force yet")]
    PoliciesUnknown,
    #[error("the blocking part of {0} was cancelled")]
    Cancelled(&'static str),
}

impl Error {
    pub(crate) fn link(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Error {
        let action = action.into();
        move |source| Error::Link { action, source }
    }

    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { action, path, source }
    }
}

/// An error between a runtime and its plugins.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error("no network configuration in {0}")]
    NoConfiguration(PathBuf),
    #[error("the network configuration {path}: {reason}")]
    Configuration { path: PathBuf, reason: String },
    #[error("the CNI plugin {0:?} is in none of the plugin directories")]
    NoPlugin(String),
    #[error("the CNI plugin {plugin:?} cannot be run: {source}")]
    Run { plugin: String, source: io::Error },
    #[error("the CNI plugin {plugin:?} took longer than {seconds} s for {command}")]
    Timeout { plugin: String, command: &'static str, seconds: u64 },
    #[error("the CNI plugin {plugin:?} failed ({command}): {message}")]
    Failed { plugin: String, command: &'static str, message: String, code: Option<u64> },
    #[error("the CNI plugin {plugin:?} answered what is no result: {reason}")]
    Answer { plugin: String, reason: String },
}
