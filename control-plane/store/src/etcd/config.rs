//! The settings of the etcd engine with their defaults.

use std::time::Duration;

/// The settings of a store in etcd.
#[derive(Clone, Debug)]
pub struct Config {
    /// The client URLs of the members: `https://host:port`, `http://host:port` or `unix:///path`.
    pub endpoints: Vec<String>,
    /// Whether calls go to the first endpoint while it answers, as to a member on the same machine. Without it, several
    /// clients begin at different members, and each stays with a member that answers.
    pub prefers_first: bool,
    /// The identity of this client and the CA of the members, for `https`.
    pub tls: Option<Tls>,
    /// The interval of compactions; zero means that other clients compact.
    pub compaction_interval: Duration,
    /// The key that health checks read.
    pub health_key: Vec<u8>,
    /// The number of batches that a watcher may lag behind before its stream waits for it.
    pub watch_buffer: usize,
    /// The time within which one of the members must answer at the start.
    pub dial_timeout: Duration,
}

/// The PEM strings of a TLS client.
#[derive(Clone)]
pub struct Tls {
    /// The CAs that sign the members' certificates.
    pub ca: String,
    /// The client certificate chain; empty for none.
    pub certificate: String,
    /// The private key of the certificate.
    pub key: String,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Config {
    /// Returns the defaults, for members at these URLs.
    pub fn new(endpoints: Vec<String>) -> Config {
        Config {
            endpoints,
            prefers_first: false,
            tls: None,
            compaction_interval: Duration::from_secs(300),
            health_key: b"/registry/health".to_vec(),
            watch_buffer: 10_000,
            dial_timeout: Duration::from_secs(20),
        }
    }
}
