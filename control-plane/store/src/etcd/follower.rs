//! The task of a watch: it follows a stream of one member, and resumes after the last delivered revision on another.

use std::sync::Arc;
use std::time::Duration;

use corten_etcd::mvccpb;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failure::{Failure, Refusal};
use super::members::{Members, TOTAL};
use super::messages::{event, unsigned};
use super::stream::{Message, Selection, Stream};
use crate::watch::Feed;
use crate::{Batch, Error, Event};

/// The time in which a stream answers a request for progress, or delivers anything else. One that does not may be
/// connected to a member that is stopped.
const SILENCE: Duration = Duration::from_secs(2);
/// The pause before a watch is resumed.
const PAUSE: Duration = Duration::from_millis(50);

/// The task of one watch.
pub(super) struct Follower {
    pub members: Arc<Members>,
    /// The keys, and the revision after the last delivered one.
    pub selection: Selection,
    pub feed: Feed,
    /// Notified when a reader waits for progress.
    pub wanted: Arc<Notify>,
    pub shutdown: CancellationToken,
}

/// The end of a stream.
enum End {
    /// The stream broke; the watch can be resumed.
    Lost(String),
    /// The watch is over, for this reason.
    Failed(Error),
    /// The watcher is gone.
    Closed,
}

impl Follower {
    /// Follows until the watcher or the store is gone, or the watch cannot be resumed.
    pub async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        loop {
            let end = tokio::select! {
                () = shutdown.cancelled() => return,
                end = self.follow() => end,
            };
            match end {
                End::Closed => return,
                End::Failed(error) => return self.feed.end(error),
                End::Lost(reason) => tracing::info!(from = self.selection.from, reason, "a watch of etcd is resumed"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.feed.closed() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    /// Delivers the messages of one stream.
    async fn follow(&mut self) -> End {
        let members = Arc::clone(&self.members);
        let member = match members.ready(Instant::now() + TOTAL).await {
            Ok(member) => member,
            Err(error) => return End::Lost(error.to_string()),
        };
        let mut stream = match Stream::open(&member, &self.selection).await {
            Ok(stream) => stream,
            Err(failure) => return self.failed(failure, || members.lost(&member)),
        };
        // The first message comes at once, or the member is stopped.
        let mut silent_until = Some(Instant::now() + SILENCE);
        loop {
            let silence = async {
                match silent_until {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                () = self.feed.closed() => return End::Closed,
                () = self.wanted.notified() => {
                    stream.request_progress();
                    silent_until.get_or_insert(Instant::now() + SILENCE);
                    continue;
                }
                () = silence => Err(Failure::timed_out()),
                () = member.removed() => return End::Lost("its endpoint was removed".to_owned()),
                message = stream.next(&members) => message,
            };
            silent_until = None;
            let delivered = match message {
                Ok(message) => self.deliver(message).await,
                Err(failure) => Some(self.failed(failure, || members.lost(&member))),
            };
            if let Some(end) = delivered {
                return end;
            }
        }
    }

    /// Returns the end that a failure means, and reports the loss of a member.
    fn failed(&self, failure: Failure, lost: impl FnOnce()) -> End {
        match failure {
            Failure::Refused(Refusal::Compacted) => End::Failed(Error::Compacted { compacted: self.selection.from }),
            Failure::Refused(refusal) => End::Failed(refusal.error()),
            Failure::NotDone(reason) | Failure::Lost(reason) => {
                lost();
                End::Lost(reason)
            }
        }
    }

    /// Delivers one message; returns the end of the watch, if it is one.
    async fn deliver(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Created => None,
            Message::Compacted(compacted) => Some(End::Failed(Error::Compacted { compacted })),
            Message::Progress(revision) => self.send(Batch { revision, events: Arc::default() }).await,
            Message::Events(events) => {
                for batch in batches(events) {
                    if let Some(end) = self.send(batch).await {
                        return Some(end);
                    }
                }
                None
            }
        }
    }

    /// Queues a batch, and waits for room. A batch that was delivered before is dropped.
    async fn send(&mut self, batch: Batch) -> Option<End> {
        if batch.revision < self.selection.from {
            return None;
        }
        self.selection.from = batch.revision + 1;
        if self.feed.deliver(batch).await { None } else { Some(End::Closed) }
    }
}

/// Groups events by their revisions.
fn batches(events: Vec<mvccpb::Event>) -> Vec<Batch> {
    let revision_of = |event: &mvccpb::Event| event.kv.as_ref().map_or(0, |kv| unsigned(kv.mod_revision));
    let groups = events.chunk_by(|a, b| revision_of(a) == revision_of(b));
    let batch = |group: &[mvccpb::Event]| Batch {
        revision: group.first().map_or(0, revision_of),
        events: group.iter().cloned().map(event).collect::<Vec<Event>>().into(),
    };
    groups.map(batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_of_a_revision_stay_together() {
        let put = |key: &'static str, mod_revision| mvccpb::Event {
            kv: Some(mvccpb::KeyValue { key: key.into(), mod_revision, ..mvccpb::KeyValue::default() }),
            ..mvccpb::Event::default()
        };
        let batches = batches(vec![put("a", 4), put("b", 4), put("a", 5), put("a", 7), put("c", 7)]);
        let shape: Vec<_> = batches.iter().map(|batch| (batch.revision, batch.events.len())).collect();
        assert_eq!(shape, [(4, 2), (5, 1), (7, 2)]);
    }
}
