//! Whether a store takes writes: health checks, metrics and the supervisor of the process ask for it.
//!
//! Reads go on in every state, so nothing else would show that a disk is full or has failed.

use std::sync::Arc;

use crate::Error;

/// The state of a store, as its last write found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Writable,
    /// Writes fail, most likely for want of space, and work again once the cause is gone.
    Failing { reason: Arc<str> },
    /// The log failed. Writes are refused until the store is opened again.
    Broken { reason: Arc<str> },
}

impl Health {
    /// Returns the state that the outcome of a write to the log shows.
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
