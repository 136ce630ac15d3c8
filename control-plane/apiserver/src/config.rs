//! The settings of the API server, as plain values with their defaults in one place.
//!
//! Nothing here reads a file, a flag or the environment: the binary does, and hands over the contents.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corten_api::MinorVersion;
use tokio::sync::watch;

use corten_admission::Adviser;

use crate::site::{ObjectMetrics, Site};

/// The settings of the API server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that the `kubernetes` Service's endpoints carry.
    pub advertise_address: IpAddr,
    /// The name of this machine. With it, the server keeps a Lease that shows that it is alive.
    pub hostname: Option<String>,
    /// The port the API is served on.
    pub port: u16,
    /// The range that Service cluster addresses are taken from.
    pub service_cidr: String,
    /// The range that node ports are taken from, both ends included.
    pub node_port_range: (u16, u16),
    /// The `iss` of ServiceAccount tokens.
    pub issuer: String,
    /// The audiences of a token that requests none, and of which a token must carry one to be accepted.
    pub audiences: Vec<String>,
    /// PEM private keys of ServiceAccount tokens (ECDSA P-256 or RSA). The first signs, all verify.
    pub service_account_keys: Vec<String>,
    /// PEM bundle of the CAs that sign client certificates.
    pub client_ca: String,
    /// PEM bundle of the CAs that the serving certificate chains to; pods get it as `kube-root-ca.crt`.
    pub serving_ca: String,
    /// PEM bundle of the CA of the front proxy; published for extension API servers.
    pub requestheader_ca: Option<String>,
    /// The names that a front proxy's certificate may carry; empty allows any.
    pub requestheader_allowed_names: Vec<String>,
    /// The client identity towards aggregated API servers.
    pub proxy_client: Option<ProxyClient>,
    /// PEM bundle of the CAs that this machine trusts, for webhooks without a CA bundle of their own.
    pub trusted_roots: String,
    /// The client identity towards kubelets. Without it, logs, exec, attach, port-forward and proxy answer 503.
    pub kubelet: Option<KubeletClient>,
    /// The cluster's own keys, which encrypt Secrets at rest (by secretbox), unless an EncryptionConfiguration sets
    /// another provider. The first encrypts, all decrypt, also then. Without any, Secrets are stored in plain text.
    pub encryption_keys: Vec<EncryptionKey>,
    /// An EncryptionConfiguration of apiserver.config.k8s.io, in YAML; a new value after each change.
    pub encryption_configuration: Option<watch::Receiver<String>>,
    /// An AuthenticationConfiguration of apiserver.config.k8s.io, in YAML; a new value after each change. It lists the
    /// trusted token issuers and the paths that need no credential.
    pub authentication_configuration: Option<watch::Receiver<String>>,
    /// The authorizers. Without it, they are the Node authorizer and RBAC.
    pub authorization: Option<Authorization>,
    /// The names of the disabled admission plugins.
    pub disabled_admission_plugins: Vec<String>,
    /// A server that reviews the tokens that no other authenticator knows.
    pub token_webhook: Option<RemoteServer>,
    /// The audit policy and its backends. Without it, no audit event is written.
    pub audit: Option<Audit>,
    /// The time after which an Event expires.
    pub event_ttl: Duration,
    /// The form in which built-in kinds are written to the store.
    pub storage_media_type: StorageMediaType,
    /// The root of all keys in the store.
    pub etcd_prefix: String,
    /// The time for which the server still serves after it announced its shutdown.
    pub shutdown_delay: Duration,
    /// The time over which watches end at shutdown, one after another; zero ends them together.
    pub shutdown_watch_termination_grace_period: Duration,
    /// The biggest request body that the server reads, in bytes.
    pub max_body_bytes: usize,
    /// Read requests that may be in flight at once; watches do not count.
    pub max_requests_inflight: usize,
    /// Mutating requests that may be in flight at once.
    pub max_mutating_requests_inflight: usize,
    /// Static pages beside the API.
    pub site: Option<Arc<dyn Site>>,
    /// The metrics of the state of objects, `/metrics/state`.
    pub object_metrics: Option<Arc<dyn ObjectMetrics>>,
    /// The tracer of requests, if there is a collector.
    pub tracer: Option<corten_spans::Tracer>,
    /// A component that warns the authors of objects.
    pub adviser: Option<Arc<dyn Adviser>>,
    /// The gitVersion of `/version`.
    pub git_version: String,
    /// The gitCommit of `/version`.
    pub git_commit: String,
    /// The version of Kubernetes whose kinds, fields and rules are served.
    pub emulated_version: MinorVersion,
}

/// The form in which built-in kinds are written to the store. Custom resources are JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageMediaType {
    Json,
    Protobuf,
}

/// A key of the cluster's own that encrypts Secrets at rest.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey {
    /// The name in front of every value that the key encrypts.
    pub name: String,
    pub key: [u8; 32],
}

impl EncryptionKey {
    /// The name of the key that a cluster generates at its first start.
    pub const FIRST: &'static str = "corten";

    /// Returns the key that a cluster generates at its first start.
    pub fn first(key: [u8; 32]) -> EncryptionKey {
        EncryptionKey { name: EncryptionKey::FIRST.to_owned(), key }
    }
}

impl std::fmt::Debug for EncryptionKey {
    /// Hides the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptionKey").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The authorities and keys that a running server replaces when they are rotated.
#[derive(Clone, Debug)]
pub struct Trust {
    /// PEM bundle of the CAs that sign client certificates.
    pub client_ca: String,
    /// PEM bundle of the CA of the front proxy.
    pub requestheader_ca: Option<String>,
    /// PEM private keys of ServiceAccount tokens. The first signs, all verify.
    pub service_account_keys: Vec<String>,
    /// The cluster's own keys of Secrets. The first encrypts, all decrypt.
    pub encryption_keys: Vec<EncryptionKey>,
}

/// The client identity towards kubelets.
#[derive(Clone, Debug)]
pub struct KubeletClient {
    /// PEM bundle that kubelets' serving certificates chain to.
    pub ca: String,
    /// The CA that signed them before.
    pub retired: Option<RetiredAuthority>,
    /// PEM client certificate chain.
    pub certificate: String,
    /// PEM private key of the certificate.
    pub key: String,
}

/// A CA that no longer signs kubelets' serving certificates, while its certificates are still in use.
#[derive(Clone, Debug)]
pub struct RetiredAuthority {
    /// PEM bundle.
    pub ca: String,
    /// The CA is trusted for certificates whose notBefore is earlier than this.
    pub signed_before: jiff::Timestamp,
}

/// The configuration of the authorizers.
#[derive(Clone, Debug)]
pub struct Authorization {
    /// An AuthorizationConfiguration of apiserver.config.k8s.io, in YAML; a new value after each change.
    pub configuration: watch::Receiver<String>,
    /// Reads the kubeconfig files that the configuration names.
    pub kubeconfig: KubeconfigReader,
}

type ReadKubeconfig = dyn Fn(&Path) -> Result<RemoteServer, String> + Send + Sync;

/// Reads the server that a kubeconfig file describes.
#[derive(Clone)]
pub struct KubeconfigReader(pub Arc<ReadKubeconfig>);

impl std::fmt::Debug for KubeconfigReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KubeconfigReader")
    }
}

/// The audit log.
#[derive(Clone, Debug)]
pub struct Audit {
    /// A Policy of audit.k8s.io/v1, in YAML.
    pub policy: String,
    pub log: Option<AuditLog>,
    pub webhook: Option<AuditWebhook>,
}

/// A file of audit events, one a line.
#[derive(Clone, Debug)]
pub struct AuditLog {
    /// `-` is standard output.
    pub path: PathBuf,
    /// The size at which a file is rotated; zero is never.
    pub max_size_bytes: u64,
    /// The number of rotated files that are kept; zero is all.
    pub max_backups: usize,
    /// The age at which rotated files are removed; zero is never.
    pub max_age: Duration,
}

/// A server that audit events are sent to.
#[derive(Clone, Debug)]
pub struct AuditWebhook {
    pub server: RemoteServer,
}

/// A server that this one calls, as a kubeconfig file describes it.
#[derive(Clone, Debug)]
pub struct RemoteServer {
    pub url: String,
    /// PEM bundle that its certificate chains to.
    pub ca: String,
    /// The client identity towards it.
    pub identity: Option<ProxyClient>,
    pub token: Option<String>,
}

/// The client identity towards aggregated API servers, signed by the front proxy's CA.
#[derive(Clone, Debug)]
pub struct ProxyClient {
    /// PEM client certificate chain.
    pub certificate: String,
    /// PEM private key of the certificate.
    pub key: String,
}

impl Config {
    /// Returns the address and port where other machines reach this server.
    pub fn host_port(&self) -> String {
        std::net::SocketAddr::new(self.advertise_address, self.port).to_string()
    }
}

impl Default for Config {
    fn default() -> Self {
        let issuer = "https://kubernetes.default.svc.cluster.local".to_owned();
        Config {
            advertise_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            hostname: None,
            port: 6443,
            service_cidr: "10.96.0.0/12".to_owned(),
            node_port_range: (30000, 32767),
            audiences: vec![issuer.clone()],
            issuer,
            service_account_keys: Vec::new(),
            client_ca: String::new(),
            serving_ca: String::new(),
            requestheader_ca: None,
            requestheader_allowed_names: vec!["front-proxy-client".to_owned()],
            proxy_client: None,
            trusted_roots: String::new(),
            kubelet: None,
            encryption_keys: Vec::new(),
            encryption_configuration: None,
            authentication_configuration: None,
            authorization: None,
            disabled_admission_plugins: Vec::new(),
            token_webhook: None,
            audit: None,
            event_ttl: Duration::from_secs(3600),
            storage_media_type: StorageMediaType::Json,
            etcd_prefix: "/registry".to_owned(),
            shutdown_delay: Duration::ZERO,
            shutdown_watch_termination_grace_period: Duration::ZERO,
            max_body_bytes: 3 * 1024 * 1024,
            max_requests_inflight: 400,
            max_mutating_requests_inflight: 200,
            site: None,
            object_metrics: None,
            tracer: None,
            adviser: None,
            git_version: "v1.36.4+corten".to_owned(),
            git_commit: "0000000000000000000000000000000000000000".to_owned(),
            emulated_version: MinorVersion::NEWEST,
        }
    }
}
