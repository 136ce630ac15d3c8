//! The changes of one key since a revision, read by a watch that ends at the present.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::Shared;
use super::failure::{Failure, Refusal};
use super::members::TOTAL;
use super::messages::event;
use super::stream::{Message, Selection, Stream};
use crate::{Error, Event, Revision};

/// The interval of requests for progress: etcd ignores one while the watch has not caught up.
const PROGRESS: Duration = Duration::from_millis(50);

/// Returns the changes of `key` at `from` and later.
pub(super) async fn history(shared: &Shared, key: &Bytes, from: Revision) -> Result<Vec<Event>, Error> {
    let deadline = Instant::now() + TOTAL;
    let until = super::current::read(&shared.members, &shared.health_key).await?;
    if until < from {
        return Ok(Vec::new());
    }
    let selection = Selection { key: key.clone(), range_end: Bytes::new(), from };
    loop {
        let member = shared.members.ready(deadline).await?;
        let failure = match Stream::open(&member, &selection).await {
            Ok(mut stream) => match read(shared, &mut stream, until, deadline).await {
                Ok(events) => return Ok(events),
                Err(failure) => failure,
            },
            Err(failure) => failure,
        };
        match failure {
            Failure::Refused(refusal) => return Err(refusal.error()),
            Failure::NotDone(reason) | Failure::Lost(reason) if Instant::now() >= deadline => {
                return Err(Error::Unavailable { reason: reason.into() });
            }
            Failure::NotDone(_) | Failure::Lost(_) => shared.members.lost(&member),
        }
    }
}

/// Reads a stream up to the revision `until`.
async fn read(shared: &Shared, stream: &mut Stream, until: Revision, deadline: Instant) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    let mut tick = tokio::time::interval(PROGRESS);
    loop {
        let message = tokio::select! {
            () = tokio::time::sleep_until(deadline) => return Err(Failure::timed_out()),
            _ = tick.tick() => {
                stream.request_progress();
                continue;
            }
            message = stream.next(&shared.members) => message?,
        };
        match message {
            Message::Created => {}
            Message::Events(more) => events.extend(more.into_iter().map(event)),
            Message::Progress(revision) if revision >= until => return Ok(events),
            Message::Progress(_) => {}
            Message::Compacted(_) => return Err(Failure::Refused(Refusal::Compacted)),
        }
    }
}

/// Returns the revision before which history is compacted: etcd reports it only to a watch that asks for older history.
pub(super) async fn compacted(shared: &Shared) -> Result<Revision, Error> {
    let member = shared.members.ready(Instant::now() + TOTAL).await?;
    let selection = Selection { key: shared.health_key.clone(), range_end: Bytes::new(), from: 1 };
    let read = async {
        let mut stream = Stream::open(&member, &selection).await?;
        let mut tick = tokio::time::interval(PROGRESS);
        loop {
            let message = tokio::select! {
                _ = tick.tick() => {
                    stream.request_progress();
                    continue;
                }
                message = stream.next(&shared.members) => message?,
            };
            match message {
                Message::Compacted(revision) => return Ok(revision),
                Message::Progress(_) => return Ok(0),
                Message::Created | Message::Events(_) => {}
            }
        }
    };
    let read = tokio::time::timeout(TOTAL, read).await.unwrap_or_else(|_| Err(Failure::timed_out()));
    read.map_err(|failure| match failure {
        Failure::Refused(refusal) => refusal.error(),
        Failure::NotDone(reason) | Failure::Lost(reason) => Error::Unavailable { reason: reason.into() },
    })
}
