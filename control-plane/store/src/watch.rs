//! The receiving end of a watch, the same for every engine.
//!
//! An engine passes the changes before the watch began (the backlog) and then feeds a bounded channel. A watch must
//! never skip: if its channel is full the engine ends it, and it reports [`Error::Lagged`] after delivering everything
//! that was queued before.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;

use crate::{Batch, Error};

/// A stream of [`Batch`]es in order of revision. It ends after an error, or when the store closes.
#[derive(Debug)]
pub struct Watch {
    backlog: VecDeque<Batch>,
    live: mpsc::Receiver<Batch>,
    end: Arc<OnceLock<Error>>,
    ended: bool,
}

/// The engine's end of a watch.
#[derive(Debug)]
pub(crate) struct Feed {
    live: mpsc::Sender<Batch>,
    end: Arc<OnceLock<Error>>,
}

impl Watch {
    /// Makes a watch that delivers `backlog` first and may then lag by at most `buffer` batches.
    pub(crate) fn new(backlog: VecDeque<Batch>, buffer: usize) -> (Feed, Watch) {
        let (sender, receiver) = mpsc::channel(buffer);
        let end = Arc::new(OnceLock::new());
        let feed = Feed { live: sender, end: end.clone() };
        (feed, Watch { backlog, live: receiver, end, ended: false })
    }

    /// Returns the next batch; `None` once the watch has ended. It is cancel safe.
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        std::future::poll_fn(|context| self.poll_batch(context)).await
    }

    fn poll_batch(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Batch, Error>>> {
        if let Some(batch) = self.backlog.pop_front() {
            return Poll::Ready(Some(Ok(batch)));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match std::task::ready!(self.live.poll_recv(context)) {
            Some(batch) => Poll::Ready(Some(Ok(batch))),
            None => {
                self.ended = true;
                Poll::Ready(self.end.get().cloned().map(Err))
            }
        }
    }
}

impl Stream for Watch {
    type Item = Result<Batch, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_batch(context)
    }
}

impl Feed {
    /// Queues a batch. `false` means that the watch is over and the feed is useless.
    pub(crate) fn send(&self, batch: Batch) -> bool {
        match self.live.try_send(batch) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                // Only the first reason counts.
                let _ = self.end.set(Error::Lagged);
                false
            }
        }
    }

    /// Queues a batch, and waits for room. `false` means that the watcher is gone.
    pub(crate) async fn deliver(&self, batch: Batch) -> bool {
        self.live.send(batch).await.is_ok()
    }

    /// Waits until the watcher is gone.
    pub(crate) async fn closed(&self) {
        self.live.closed().await;
    }

    /// Ends the watch with an error, which the watcher gets after the queued batches.
    pub(crate) fn end(self, error: Error) {
        // Only the first reason counts.
        let _ = self.end.set(error);
    }

    /// Reports whether the watcher is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.live.is_closed()
    }
}
