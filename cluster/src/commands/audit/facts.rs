//! The facts of the checks. Plain data, so that a test can describe any cluster.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use corten_meta::Value;

use crate::cli;
use crate::directories::Directories;

/// A file or directory on disk.
#[derive(Clone, Debug)]
pub struct FileFact {
    pub path: PathBuf,
    pub is_directory: bool,
    /// The permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The outdated TLS that a server offers.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsFact {
    pub offers_tls_1_1: bool,
    pub offers_weak_ciphers: bool,
}

/// The answers of a listener of etcd to clients that it should refuse.
#[derive(Clone, Debug)]
pub struct ListenerFact {
    pub address: SocketAddr,
    pub answers_plain: bool,
    pub answers_without_certificate: bool,
    pub answers_self_signed: bool,
}

/// The etcd member of this machine.
#[derive(Clone, Debug)]
pub struct EtcdFact {
    pub clients: ListenerFact,
    pub peers: ListenerFact,
    /// Whether the member and this server accept each other's certificates.
    pub is_authenticated: bool,
    /// The names of other authorities of the cluster that have the same key.
    pub shared_authorities: Vec<String>,
}

/// A node and its kubelet.
#[derive(Clone, Debug)]
pub struct NodeFact {
    pub name: String,
    /// The kubelet's configuration, as `/configz` shows it through the API server.
    pub configuration: Value,
    /// The HTTP status of `/pods` without a credential.
    pub anonymous_status: Option<u16>,
    pub tls: TlsFact,
    /// Whether the certificate is signed by itself.
    pub is_self_signed: bool,
    /// The days until the certificate expires.
    pub certificate_days: i64,
}

/// The answers of the API server to requests that prove a setting.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// The HTTP status by path, without a credential.
    pub anonymous: BTreeMap<&'static str, u16>,
    /// The HTTP status of a request with an invalid token.
    pub wrong_token: u16,
    /// The HTTP status of `/debug/pprof/` for the administrator.
    pub profiling: u16,
    /// The ServiceAccount of a pod that was created without one, in a dry run.
    pub default_account: Option<String>,
    /// The HTTP status of a create in a namespace that does not exist, in a dry run.
    pub absent_namespace: u16,
    /// The HTTP status of a change of a Node by another node, in a dry run.
    pub foreign_node: u16,
    /// The HTTP status of a Service with an external IP, in a dry run.
    pub external_ips: u16,
    pub tls: TlsFact,
}

/// The objects of the policies in section 5.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub namespaces: Vec<Value>,
    pub pods: Vec<Value>,
    pub services: Vec<Value>,
    pub roles: Vec<Value>,
    pub cluster_roles: Vec<Value>,
    pub role_bindings: Vec<Value>,
    pub cluster_role_bindings: Vec<Value>,
    pub service_accounts: Vec<Value>,
    pub network_policies: Vec<Value>,
    pub flow_schemas: Vec<Value>,
    pub secrets: Vec<Value>,
}

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    pub directories: Directories,
    /// The flags that the server runs with.
    pub flags: cli::Server,
    pub files: Vec<FileFact>,
    /// The TCP addresses that processes of this machine listen on.
    pub listening: Vec<SocketAddr>,
    pub nodes: Vec<NodeFact>,
    /// The member of a server that is one of several.
    pub etcd: Option<EtcdFact>,
    pub probes: Probes,
    pub objects: Objects,
    /// The audit policy in force.
    pub audit_policy: Option<Value>,
    /// The EncryptionConfiguration in force; none is the built-in encryption of Secrets.
    pub encryption: Option<Value>,
    /// The tables of nf_tables in the kernel.
    pub tables: Vec<String>,
    /// Whether the value of a Secret that the audit knows is found in the store's files as plain text.
    pub has_plain_secret: bool,
}

impl Facts {
    /// Returns the files at or below a path.
    pub fn below(&self, path: &std::path::Path) -> Vec<&FileFact> {
        self.files.iter().filter(|file| file.path.starts_with(path)).collect()
    }

    /// Returns the files of the store: embedded, or of the etcd member.
    pub fn store_files(&self) -> Vec<&FileFact> {
        [self.below(&self.directories.data.join("store")), self.below(&self.directories.data.join("etcd"))].concat()
    }

    /// Returns the addresses with this port that other machines can reach.
    pub fn reachable(&self, port: u16) -> Vec<IpAddr> {
        let open = self.listening.iter().filter(|address| address.port() == port && !address.ip().is_loopback());
        open.map(SocketAddr::ip).collect()
    }
}
