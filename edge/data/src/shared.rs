//! The parts that all listeners of an edge share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_routing::BackendKey;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::access_log::AccessLog;
use crate::backend::Backend;
use crate::lazy_timer::LazyTimer;
use crate::metrics::Metrics;
use crate::policy::rate::Limiters;
use crate::policy::unknown_keys::UnknownKeys;

/// The most copies of requests on their way to mirrors.
const MAX_MIRRORS: usize = 1024;

/// The bytes that a client may send ahead on a stream, and on a connection of HTTP/2.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) metrics: Metrics,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) limiters: Limiters,
    pub(crate) unknown_keys: Arc<UnknownKeys>,
    pub(crate) mirrors: Arc<Semaphore>,
    /// The settings of HTTP connections of clients.
    pub(crate) http: Builder<TokioExecutor>,
    /// The tasks of connections.
    pub(crate) tasks: TaskTracker,
    backends: Mutex<HashMap<BackendKey, Arc<Backend>>>,
}

/// Returns the settings of HTTP connections of clients. A client of HTTP/1 that closed its side for writing still gets its
/// answer. Its timeouts are late by some seconds. Bodies of HTTP/2 get more room than 64 KiB on their way.
fn http() -> Builder<TokioExecutor> {
    let mut builder = corten_listen::http();
    builder.http1().half_close(true).timer(LazyTimer);
    builder.http2().timer(LazyTimer);
    builder.http2().initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

impl Shared {
    pub(crate) fn new(access_log: Option<AccessLog>) -> Shared {
        Shared {
            metrics: Metrics::new(),
            access_log,
            limiters: Limiters::default(),
            unknown_keys: Arc::default(),
            mirrors: Arc::new(Semaphore::new(MAX_MIRRORS)),
            http: http(),
            tasks: TaskTracker::new(),
            backends: Mutex::default(),
        }
    }

    fn backends(&self) -> MutexGuard<'_, HashMap<BackendKey, Arc<Backend>>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the backend of a key; a new one has no endpoints.
    pub(crate) fn backend(&self, key: &BackendKey) -> Arc<Backend> {
        let mut backends = self.backends();
        let backend = backends.entry(key.clone()).or_insert_with(|| Arc::new(Backend::new(key.clone())));
        Arc::clone(backend)
    }

    /// Forgets backends that left the configuration, and returns those that a table or request still has.
    pub(crate) fn forget(&self, left: Vec<BackendKey>) -> Vec<BackendKey> {
        let mut backends = self.backends();
        let is_used = |key: &BackendKey| backends.get(key).is_some_and(|backend| Arc::strong_count(backend) > 1);
        let (used, unused): (Vec<BackendKey>, Vec<BackendKey>) = left.into_iter().partition(is_used);
        for key in &unused {
            backends.remove(key);
        }
        used
    }

    /// Closes idle connections to endpoints.
    pub(crate) fn sweep(&self) {
        let backends: Vec<Arc<Backend>> = self.backends().values().map(Arc::clone).collect();
        backends.iter().for_each(|backend| backend.sweep());
    }
}
