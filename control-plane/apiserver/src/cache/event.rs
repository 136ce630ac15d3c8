//! The events of a watch, and how one becomes the frame that is sent.

use std::sync::Arc;

use bytes::Bytes;
use corten_meta::{Object, Status};

use super::resource::Change;

/// One event of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    Bookmark { revision: u64, initial_events_end: bool },
    Error(Status),
}

/// An event on its way to one watcher.
pub struct Delivery {
    pub event: WatchEvent,
    /// The change that the event tells, if it tells it as it happened: then its frame is the same for all.
    pub change: Option<Arc<Change>>,
}

impl From<WatchEvent> for Delivery {
    fn from(event: WatchEvent) -> Delivery {
        Delivery { event, change: None }
    }
}

/// Turns one event into its frame, newline included.
pub type EventEncoder = Arc<dyn Fn(&Delivery) -> Bytes + Send + Sync>;
