//! The events of a watch, and their encoding as frames.

use std::sync::Arc;

use bytes::Bytes;
use corten_meta::{Object, Status};

use super::resource::Change;

#[derive(Clone, Debug)]
pub enum WatchEvent {
    Added(Arc<Object>),
    Modified(Arc<Object>),
    Deleted(Arc<Object>),
    Bookmark { revision: u64, initial_events_end: bool },
    Error(Status),
}

/// An event for one watcher.
pub struct Delivery {
    pub event: WatchEvent,
    /// The change of the event, if the event has the change's own type: then its frame is the same for all watchers.
    pub change: Option<Arc<Change>>,
}

impl From<WatchEvent> for Delivery {
    fn from(event: WatchEvent) -> Delivery {
        Delivery { event, change: None }
    }
}

/// Encodes one event as its frame, newline included.
pub type EventEncoder = Arc<dyn Fn(&Delivery) -> Bytes + Send + Sync>;
