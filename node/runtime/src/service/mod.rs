//! The gRPC services: each method translates a request and calls the daemon.

mod image;
mod runtime;

use std::sync::Arc;

pub(crate) use image::Images;
pub(crate) use runtime::Runtime;

use crate::daemon::Daemon;
use crate::streaming::StreamingServer;

/// What both services share.
#[derive(Clone)]
pub(crate) struct Services {
    pub daemon: Arc<Daemon>,
    pub streaming: StreamingServer,
}
