//! The flags that make a machine one of several servers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::directories::absolute;

/// A server that shares its objects with others, over etcd.
#[derive(Debug, Clone, Default, Args)]
pub struct MembershipOptions {
    /// Start a cluster of several servers over etcd, with this machine as the first; the others join it by --join.
    #[arg(long, conflicts_with_all = ["join", "etcd_servers"])]
    pub cluster_init: bool,
    /// Join a cluster of several servers as another server: the URL of an API server of it. A machine that has joined
    /// needs no flag after a reboot.
    #[arg(long, value_name = "URL", requires = "token", conflicts_with = "etcd_servers")]
    pub join: Option<String>,
    /// The server token that `corten token create --server` printed; `-` reads it from standard input.
    #[arg(long, value_name = "TOKEN", requires = "join")]
    pub token: Option<String>,
    /// The hash of the cluster CA's public key, as sha256:<hex>; may be repeated.
    #[arg(long, value_name = "HASH", requires = "join")]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// Join without verifying the cluster CA: the machine that answers at the server's address is trusted.
    #[arg(long, requires = "join")]
    pub discovery_token_unsafe_skip_ca_verification: bool,
    /// The stable DNS name or address of all API servers, HOST[:PORT], such as that of a load balancer. Machines that join
    /// and kubeconfigs for other machines get it, certificates carry it, and servers that join take it over.
    #[arg(long, value_name = "ENDPOINT")]
    pub control_plane_endpoint: Option<String>,
    /// The etcd binary; defaults to the first `etcd` in PATH.
    #[arg(long, value_name = "FILE")]
    pub etcd_binary: Option<PathBuf>,
}

impl MembershipOptions {
    /// Returns the flags as another process's command line takes them. That process reads the token from its standard
    /// input.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut list: Vec<OsString> = Vec::new();
        if let Some(path) = &self.etcd_binary {
            list.extend(["--etcd-binary".into(), absolute(path).into()]);
        }
        if let Some(endpoint) = &self.control_plane_endpoint {
            list.extend(["--control-plane-endpoint".into(), endpoint.into()]);
        }
        if let Some(server) = &self.join {
            list.extend(["--join".into(), server.into(), "--token".into(), "-".into()]);
        }
        for hash in &self.discovery_token_ca_cert_hash {
            list.extend(["--discovery-token-ca-cert-hash".into(), hash.into()]);
        }
        if self.discovery_token_unsafe_skip_ca_verification {
            list.push("--discovery-token-unsafe-skip-ca-verification".into());
        }
        if self.cluster_init {
            list.push("--cluster-init".into());
        }
        list
    }
}
