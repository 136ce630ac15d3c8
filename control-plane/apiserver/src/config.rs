//! The settings of the API server, as plain values with their defaults in one place.
//!
//! Nothing here reads a file, a flag or the environment: the binary does, and hands over the contents.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Everything the API server must be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that the `kubernetes` Service's endpoints carry.
    pub advertise_address: IpAddr,
    /// The name of this machine. With it, the server tells by a Lease that it lives.
    pub hostname: Option<String>,
    /// The port the API is served on.
    pub port: u16,
    /// The range that Service cluster addresses are taken from.
    pub service_cidr: String,
    /// The range that node ports are taken from, both ends included.
    pub node_port_range: (u16, u16),
    /// The `iss` of ServiceAccount tokens.
    pub issuer: String,
    /// The audiences that a token without any asks for, and that a token must carry to be accepted.
    pub audiences: Vec<String>,
    /// PEM private keys of ServiceAccount tokens (ECDSA P-256 or RSA). The first signs, all verify.
    pub service_account_keys: Vec<String>,
    /// PEM bundle of the CAs that sign client certificates.
    pub client_ca: String,
    /// PEM bundle of the CAs that the serving certificate chains to; pods get it as `kube-root-ca.crt`.
    pub serving_ca: String,
    /// PEM bundle of the CA of the front proxy; published for extension API servers.
    pub requestheader_ca: Option<String>,
    /// The names that a front proxy's certificate may carry; any, if there are none.
    pub requestheader_allowed_names: Vec<String>,
    /// Who this server is towards aggregated API servers.
    pub proxy_client: Option<ProxyClient>,
    /// PEM bundle of the authorities that this machine trusts: of webhooks that bring none of their own.
    pub trusted_roots: String,
    /// How to reach kubelets. Without it, logs, exec, attach, port-forward and proxy answer 503.
    pub kubelet: Option<KubeletClient>,
    /// The key that Secrets are encrypted with at rest (by secretbox, under the name `corten`), unless a configuration
    /// says otherwise; it opens what it sealed also then. Without it they are stored in the clear.
    pub encryption_key: Option<[u8; 32]>,
    /// An EncryptionConfiguration of apiserver.config.k8s.io, in YAML, whenever it changes.
    pub encryption_configuration: Option<watch::Receiver<String>>,
    /// An AuthenticationConfiguration of apiserver.config.k8s.io, in YAML, whenever it changes: issuers of tokens that
    /// are trusted, and where no credential is needed.
    pub authentication_configuration: Option<watch::Receiver<String>>,
    /// Who decides what users may do. Without it, the Node authorizer and RBAC do.
    pub authorization: Option<Authorization>,
    /// The admission plugins that are left out, by name.
    pub disabled_admission_plugins: Vec<String>,
    /// A server that judges the tokens that nobody else knows.
    pub token_webhook: Option<RemoteServer>,
    /// What is written about requests, and where to. Without it, nothing is.
    pub audit: Option<Audit>,
    /// How long an Event lives.
    pub event_ttl: Duration,
    /// The biggest request body that is read.
    pub max_body_bytes: usize,
    /// Reading requests that may be in flight at once; watches do not count.
    pub max_requests_inflight: usize,
    /// Writing requests that may be in flight at once.
    pub max_mutating_requests_inflight: usize,
    /// What `/version` answers as gitVersion.
    pub git_version: String,
    /// The commit that `/version` names.
    pub git_commit: String,
}

/// The client identity towards kubelets.
#[derive(Clone, Debug)]
pub struct KubeletClient {
    /// PEM bundle that kubelets' serving certificates chain to.
    pub ca: String,
    /// The authority that signed them before.
    pub retired: Option<RetiredAuthority>,
    /// PEM client certificate chain.
    pub certificate: String,
    /// PEM private key of the certificate.
    pub key: String,
}

/// An authority that no longer signs kubelets' serving certificates, while certificates of its own are in use.
#[derive(Clone, Debug)]
pub struct RetiredAuthority {
    /// PEM bundle.
    pub ca: String,
    /// It is believed for certificates that are valid from an earlier time than this.
    pub signed_before: jiff::Timestamp,
}

/// Who decides what users may do.
#[derive(Clone, Debug)]
pub struct Authorization {
    /// An AuthorizationConfiguration of apiserver.config.k8s.io, in YAML, whenever it changes.
    pub configuration: watch::Receiver<String>,
    /// Reads the kubeconfig files that it names.
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
    /// A file that would grow beyond this is put aside; zero is never.
    pub max_size_bytes: u64,
    /// How many files that were put aside are kept; zero is all.
    pub max_backups: usize,
    /// How long they are kept; zero is for ever.
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
    /// Who this server is towards it.
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
    /// Where other machines reach this server.
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
            encryption_key: None,
            encryption_configuration: None,
            authentication_configuration: None,
            authorization: None,
            disabled_admission_plugins: Vec::new(),
            token_webhook: None,
            audit: None,
            event_ttl: Duration::from_secs(3600),
            max_body_bytes: 3 * 1024 * 1024,
            max_requests_inflight: 400,
            max_mutating_requests_inflight: 200,
            git_version: "v1.36.4+corten".to_owned(),
            git_commit: "0000000000000000000000000000000000000000".to_owned(),
        }
    }
}
