//! The parts of the server that every request works with: configuration, objects, authorization and metrics.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::authorization::Authorization;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::registry::Registry;

/// The core of the server. It knows nothing of verbs, admission or HTTP.
pub struct Core {
    pub config: Config,
    pub registry: Arc<Registry>,
    pub authorization: Authorization,
    pub metrics: Arc<Metrics>,
    pub started: jiff::Timestamp,
    /// Cancelled when the shutdown begins: the server is not ready any more, but still serves.
    pub stopping: CancellationToken,
    /// Cancelled when no new client is sent to this server any more.
    pub left: CancellationToken,
    /// Cancelled at shutdown; every watch, stream and task ends with it.
    pub shutdown: CancellationToken,
}
