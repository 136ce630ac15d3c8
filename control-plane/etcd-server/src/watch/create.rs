//! The watches of a stream and their creation.

use bytes::Bytes;
use corten_etcd::etcdserverpb::WatchCreateRequest;
use corten_etcd::etcdserverpb::watch_create_request::FilterType;
use corten_store::{EventKind, Revision};
use futures::stream::AbortHandle;

use crate::execute::Span;

/// One watch of a stream.
#[derive(Debug)]
pub struct Watched {
    pub span: Span,
    /// The prefix that the store watches: the longest that all keys of the span have.
    pub prefix: Bytes,
    /// The kinds of events that the client does not want.
    pub filters: Vec<EventKind>,
    pub with_previous: bool,
    pub with_fragments: bool,
    /// The first revision of the watch.
    pub from: Revision,
    /// The revision up to which everything was sent.
    pub seen: Revision,
    /// The state of progress notifications; `None` if the client wants none.
    pub notify: Option<Notify>,
    /// The end of the store's watch.
    pub feed: AbortHandle,
}

/// The progress notifications of a watch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notify {
    /// Whether an event was sent since the last tick, which makes a notification needless.
    pub is_recent: bool,
    /// The revision to notify of once everything up to it was sent.
    pub due: Option<Revision>,
}

impl Watched {
    pub fn new(request: &WatchCreateRequest, from: Revision, feed: AbortHandle) -> Watched {
        let span = span(request);
        let filters = request.filters().map(|filter| match filter {
            FilterType::Noput => EventKind::Put,
            FilterType::Nodelete => EventKind::Delete,
        });
        Watched {
            prefix: prefix(&span),
            filters: filters.collect(),
            with_previous: request.prev_kv,
            with_fragments: request.fragment,
            from,
            seen: from.saturating_sub(1),
            notify: request.progress_notify.then(Notify::default),
            feed,
            span,
        }
    }

    /// Takes the notification that is due at `seen`.
    pub fn take_due(&mut self) -> Option<Revision> {
        let notify = self.notify.as_mut()?;
        let due = notify.due.filter(|revision| *revision <= self.seen)?;
        notify.due = None;
        Some(due)
    }
}

/// Returns the keys of a watch; an empty key is the smallest one.
pub fn span(request: &WatchCreateRequest) -> Span {
    let key = if request.key.is_empty() { Bytes::from_static(b"\0") } else { request.key.clone() };
    Span::new(&key, &request.range_end)
}

/// Reports whether no key can be in the span.
pub fn is_empty(span: &Span) -> bool {
    !span.end.is_empty() && span.start >= span.end
}

/// Returns the longest prefix that all keys of a span have.
pub fn prefix(span: &Span) -> Bytes {
    // The last key below the end differs from it in its last byte at most, and then goes on in any way.
    let Some((last, rest)) = span.end.split_last() else { return Bytes::new() };
    let common = span.start.iter().zip(span.end.iter()).take_while(|(left, right)| left == right).count();
    let is_prefix_end =
        common == rest.len() && span.start.len() > common && span.start[common].checked_add(1) == Some(*last);
    let length = if is_prefix_end { common + 1 } else { common };
    span.start.slice(..length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix_of(key: &'static str, end: &'static str) -> Bytes {
        prefix(&Span::new(&Bytes::from_static(key.as_bytes()), &Bytes::from_static(end.as_bytes())))
    }

    #[test]
    fn the_store_watches_the_longest_common_prefix() {
        assert_eq!(prefix_of("/registry/pods/", "/registry/pods0"), "/registry/pods/");
        assert_eq!(prefix_of("/registry/pods/a", ""), "/registry/pods/a");
        assert_eq!(prefix_of("/registry/a", "/registry/q"), "/registry/");
        assert_eq!(prefix_of("a", "c"), "");
        assert_eq!(prefix_of("a", "b"), "a");
        assert_eq!(prefix_of("a", "\0"), "");
        assert_eq!(prefix_of("ab", "ac1"), "a");
        assert_eq!(prefix_of("a1", "b"), "a");
    }

    #[test]
    fn every_key_of_a_span_has_the_prefix() {
        let keys: Vec<Bytes> = ["a", "ab", "aa", "b", "ba", "a\0", "a\u{1}", "abb", "ac"].map(Bytes::from).to_vec();
        for start in &keys {
            for end in &keys {
                let span = Span { start: start.clone(), end: end.clone() };
                let prefix = prefix(&span);
                for key in keys.iter().filter(|key| span.contains(key)) {
                    assert!(key.starts_with(&prefix), "{span:?} has {key:?}, and the prefix is {prefix:?}");
                }
            }
        }
    }
}
