//! A pod in the queue.

use std::sync::Arc;

use jiff::Timestamp;

use crate::rows::PodRow;

/// A queued pod, and its attempts so far.
#[derive(Clone, Debug)]
pub struct Entry {
    pub pod: Arc<PodRow>,
    pub queued_at: Timestamp,
    pub attempts: u32,
    pub first_attempt: Option<Timestamp>,
    pub last_attempt: Timestamp,
    /// Whether it is tried only because it has waited for long.
    pub flushed: bool,
    /// The plugins that rejected the pod; empty after an error, for which only the backoff helps.
    pub rejected_by: Vec<&'static str>,
}

impl Entry {
    pub fn new(pod: Arc<PodRow>, now: Timestamp) -> Entry {
        Entry {
            pod,
            queued_at: now,
            attempts: 0,
            first_attempt: None,
            last_attempt: now,
            flushed: false,
            rejected_by: Vec::new(),
        }
    }
}
