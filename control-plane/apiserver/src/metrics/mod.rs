//! `/metrics`: the metrics of the server, under upstream's names, in the Prometheus text format.
//!
//! Counting must cost next to nothing: a request finds its series once and adds to atomic counters. Labels come from
//! the table of resources and never from a client's input, so that the number of series is bounded.

mod access;
pub mod families;
pub mod process;
mod requests;
mod watches;

use std::sync::atomic::AtomicU64;

pub use access::*;
pub use corten_meta::metrics::{Exposition, Histogram};
use corten_meta::metrics::{HealthChecks, Registry};
pub use families::*;
pub use process::{render as process_metrics, started as process_started};
pub use requests::{Request, Requests};
pub use watches::WatchSeries;

/// All counters and histograms; gauges are read when they are rendered.
#[derive(Default)]
pub struct Metrics {
    /// The hash of this server's identity; empty without a hostname.
    id_hash: String,
    pub requests: Requests,
    pub authenticated: Attempts,
    pub authorized: Attempts,
    pub decisions: Decisions,
    pub tls_handshake_errors: AtomicU64,
    /// The remaining lifetime of client certificates.
    pub certificates: Histogram<{ CERTIFICATE_SECONDS.len() }, 1>,
    /// The rare series, and those of admission.
    pub rare: Registry,
    /// The results of health checks, which have an endpoint of their own.
    pub health: HealthChecks,
}

/// The metrics of the storage of one resource.
#[derive(Default)]
pub struct StorageSeries {
    pub operations: [Histogram<{ SECONDS.len() }>; OPERATIONS.len()],
    pub events_received: AtomicU64,
    pub terminated_watchers: AtomicU64,
    pub watches: WatchSeries,
}

/// An operation on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageOperation {
    Create,
    Update,
    Delete,
    Get,
    List,
}

pub const OPERATIONS: [(StorageOperation, &str); 5] = [
    (StorageOperation::Create, "create"),
    (StorageOperation::Update, "update"),
    (StorageOperation::Delete, "delete"),
    (StorageOperation::Get, "get"),
    (StorageOperation::List, "list"),
];

impl StorageSeries {
    /// Counts one operation that began at `began`.
    pub fn observe(&self, operation: StorageOperation, began: std::time::Instant) {
        self.operations[operation as usize].observe(began.elapsed().as_secs_f64(), SECONDS);
    }
}

impl Metrics {
    /// Makes the metrics of the server with this identity.
    pub fn new(name: Option<&str>) -> Metrics {
        Metrics { id_hash: hash(name.unwrap_or_default()), ..Metrics::default() }
    }
}
