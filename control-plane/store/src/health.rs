//! The health of a store: whether it takes writes. Health checks, metrics and the supervisor of the process read it.
//!
//! Reads work in every state, so nothing else would show that a disk is full or has failed.

use std::sync::Arc;

use tokio::sync::watch;

use crate::Error;

/// The state of a store, as of its last write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Writable,
    /// Writes fail, most likely because the disk is full, and work again once the cause is gone.
    Failing { reason: Arc<str> },
    /// The log failed. Writes are refused until the store is opened again.
    Broken { reason: Arc<str> },
}

impl Health {
    /// Returns the state after a write to the log.
    pub(crate) fn of(written: &Result<(), Error>) -> Health {
        match written {
            Ok(()) => Health::Writable,
            Err(Error::Broken { reason }) => Health::Broken { reason: reason.clone() },
            Err(error) => Health::Failing { reason: error.to_string().into() },
        }
    }

    /// Returns the name of the state.
    pub fn name(&self) -> &'static str {
        match self {
            Health::Writable => "writable",
            Health::Failing { .. } => "failing",
            Health::Broken { .. } => "broken",
        }
    }
}

/// Resolves with the reason once the store is broken.
pub(crate) async fn broken(mut health: watch::Receiver<Health>) -> Arc<str> {
    loop {
        if let Health::Broken { reason } = &*health.borrow_and_update() {
            return reason.clone();
        }
        // A closed store is not broken and never will be.
        if health.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
