//! The events of a watch as the API has them, and their fragments.

use corten_etcd::etcdserverpb::WatchResponse;
use corten_etcd::mvccpb::{self, event::EventType};
use corten_store::{Batch, Entry, Event, EventKind};
use prost::Message;

use super::create::Watched;
use crate::execute::key_value;

/// Returns the events of a batch that concern a watch.
pub fn of(batch: &Batch, watched: &Watched) -> Vec<mvccpb::Event> {
    let concerns = |event: &&Event| watched.span.contains(&event.entry.key) && !watched.filters.contains(&event.kind);
    batch.events.iter().filter(concerns).map(|event| convert(event, watched.with_previous)).collect()
}

fn convert(event: &Event, with_previous: bool) -> mvccpb::Event {
    let kind = match event.kind {
        EventKind::Put => EventType::Put,
        EventKind::Delete => EventType::Delete,
    };
    let previous = event.previous.as_ref().filter(|_| with_previous);
    mvccpb::Event {
        r#type: kind.into(),
        kv: Some(key_value(Entry::clone(&event.entry))),
        prev_kv: previous.map(|entry| key_value(Entry::clone(entry))),
    }
}

/// Splits an answer into fragments below `limit` bytes each, or of one event; all but the last are marked.
pub fn fragments(response: WatchResponse, limit: usize) -> Vec<WatchResponse> {
    if response.events.len() < 2 || response.encoded_len() < limit {
        return vec![response];
    }
    let head = WatchResponse { events: Vec::new(), fragment: true, ..response.clone() };
    let head_bytes = head.encoded_len();
    let mut parts = vec![head.clone()];
    let mut bytes = head_bytes;
    for event in response.events {
        // A tag and a length stand before each event.
        let size = event.encoded_len() + 6;
        let is_full = bytes + size >= limit && bytes > head_bytes;
        if is_full {
            parts.push(head.clone());
            bytes = head_bytes;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.events.push(event);
        }
    }
    if let Some(last) = parts.last_mut() {
        last.fragment = false;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(sizes: &[usize]) -> WatchResponse {
        let event = |size: &usize| mvccpb::Event {
            kv: Some(mvccpb::KeyValue { value: vec![0; *size].into(), ..Default::default() }),
            ..Default::default()
        };
        WatchResponse { watch_id: 7, events: sizes.iter().map(event).collect(), ..Default::default() }
    }

    /// Returns the events of each fragment, and whether more follow.
    fn split(sizes: &[usize], limit: usize) -> Vec<(usize, bool)> {
        let parts = fragments(response(sizes), limit);
        assert!(parts.iter().all(|part| part.watch_id == 7));
        parts.iter().map(|part| (part.events.len(), part.fragment)).collect()
    }

    #[test]
    fn fragments_are_small_and_complete() {
        assert_eq!(split(&[], 100), [(0, false)]);
        assert_eq!(split(&[10, 10], 1000), [(2, false)]);
        assert_eq!(split(&[60, 60, 60], 100), [(1, true), (1, true), (1, false)]);
        assert_eq!(split(&[500, 10, 10], 100), [(1, true), (2, false)]);
        assert_eq!(split(&[500], 100), [(1, false)]);
    }
}
