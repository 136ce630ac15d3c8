//! The limits of requests in flight: the last guard, behind priority and fairness.

use std::sync::atomic::{AtomicUsize, Ordering};

use corten_meta::Status;

use crate::config::Config;
use crate::context::Context;

/// The multiple of the limits at which the last guard refuses requests.
const GUARD: usize = 4;

/// The requests that may be in flight at once: the last guard, behind priority and fairness.
pub struct Limits {
    reading: AtomicUsize,
    writing: AtomicUsize,
    max_reading: usize,
    max_writing: usize,
}

/// A slot among the requests in flight; dropping it frees the slot.
pub struct InFlight<'a>(Option<&'a AtomicUsize>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.0 {
            counter.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Limits {
    pub fn new(config: &Config) -> Limits {
        Limits {
            reading: AtomicUsize::new(0),
            writing: AtomicUsize::new(0),
            max_reading: config.max_requests_inflight,
            max_writing: config.max_mutating_requests_inflight,
        }
    }

    /// Returns how many read and mutating requests are in flight.
    pub fn current(&self) -> (usize, usize) {
        (self.reading.load(Ordering::Acquire), self.writing.load(Ordering::Acquire))
    }

    /// Takes a slot for a request, or refuses it.
    pub fn enter(&self, context: &Context) -> Result<InFlight<'_>, Status> {
        // Health checks must answer under load, long-running requests would hold their slot for ever, and the cluster's
        // masters must be able to repair an overloaded cluster.
        let exempt =
            context.info.is_long_running() || !context.info.is_resource || context.user.is_in("system:masters");
        if exempt {
            return Ok(InFlight(None));
        }
        let (counter, max) = if context.info.is_mutating() {
            (&self.writing, self.max_writing)
        } else {
            (&self.reading, self.max_reading)
        };
        let slot = InFlight(Some(counter));
        // Priority and fairness has let it in; this only keeps a bug there from taking the server down.
        if counter.fetch_add(1, Ordering::AcqRel) >= max * GUARD {
            return Err(Status::too_many_requests("Too many requests, please try again later.", 1));
        }
        Ok(slot)
    }
}
