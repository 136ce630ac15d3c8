//! The way from the callers to the committer: a bounded queue that is taken whole.
//!
//! Whatever has queued up becomes the committer's next group, so the load itself sets how many commits
//! share a sync. Whoever comes first rings for the committer, but lets the tasks run before that are
//! ready as well: a busy server has dozens of them, and many are about to write, while in an idle one
//! nobody is waited for. The committer sleeps on a condition variable with a timeout, which no async
//! channel offers to a thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::{Error, LeaseId, Op, Outcome, Revision};

/// Where the answer to a request goes. That nobody waits for it any more is not an error.
pub type Reply<T> = oneshot::Sender<Result<T, Error>>;

#[derive(Debug)]
pub enum Request {
    Commit {
        ops: Vec<Op>,
        reply: Reply<Outcome>,
    },
    Compact {
        revision: Revision,
        reply: Reply<()>,
    },
    Grant {
        id: LeaseId,
        ttl: Duration,
        reply: Reply<LeaseId>,
    },
    Revoke {
        id: LeaseId,
        reply: Reply<Revision>,
    },
    /// Look at the clock, and answer after acting on it.
    Tick {
        reply: Reply<()>,
    },
    /// The thread that writes a checkpoint is done.
    CheckpointEnded,
}

#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    places: Semaphore,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<Request>,
    /// Whether they may be taken: who came first has rung.
    rung: bool,
    closed: bool,
}

/// Rings for the committer when it is dropped, also if its owner is no longer interested in an answer.
struct Bell<'q>(&'q Queue);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        // Somebody else may have rung meanwhile.
        waiting.rung = !waiting.requests.is_empty();
        drop(waiting);
        self.0.changed.notify_one();
    }
}

/// What the committer takes at once.
#[derive(Debug)]
pub struct Taken {
    pub requests: Vec<Request>,
    /// Nothing will come any more.
    pub closed: bool,
}

impl Queue {
    pub fn new(places: usize) -> Queue {
        Queue { waiting: Mutex::default(), changed: Condvar::new(), places: Semaphore::new(places.max(1)) }
    }

    /// Waits for a place, then queues the request.
    pub async fn push(&self, request: Request) -> Result<(), Error> {
        let place = self.places.acquire().await.map_err(|_| Error::Closed)?;
        let bell = self.add(request)?;
        // The place is given back when the request is taken.
        place.forget();
        if bell.is_some() {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Queues a request; whoever comes first has to ring.
    fn add(&self, request: Request) -> Result<Option<Bell<'_>>, Error> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Error::Closed);
        }
        waiting.requests.push(request);
        Ok((waiting.requests.len() == 1).then(|| Bell(self)))
    }

    /// Queues a word from the store's own threads, of which there are few.
    pub fn notify(&self, request: Request) {
        let _bell = Bell(self);
        self.lock().requests.push(request);
    }

    /// Takes everything there is once somebody has rung; waits for that, at most for `patience`.
    pub fn take(&self, patience: Option<Duration>) -> Taken {
        let idle = |waiting: &mut Waiting| !waiting.rung && !waiting.closed;
        let waiting = self.lock();
        let mut waiting = match patience {
            None => self.changed.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                self.changed.wait_timeout_while(waiting, time, idle).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let closed = waiting.closed;
        let is_ready = std::mem::take(&mut waiting.rung) || closed;
        let requests = if is_ready { std::mem::take(&mut waiting.requests) } else { Vec::new() };
        drop(waiting);
        let places = requests.iter().filter(|request| !matches!(request, Request::CheckpointEnded)).count();
        self.places.add_permits(places);
        Taken { requests, closed }
    }

    /// Refuses whatever comes from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.places.close();
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A push or a swap cannot leave the list half done.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn tick() -> Request {
        Request::Tick { reply: oneshot::channel().0 }
    }

    /// How many requests can be taken at this moment.
    fn ready(queue: &Queue) -> Option<usize> {
        let rung = queue.lock().rung;
        rung.then(|| queue.take(None).requests.len())
    }

    #[tokio::test]
    async fn who_is_ready_too_shares_the_group() {
        let queue = Queue::new(8);
        let pushes = (0..3).map(async |_| queue.push(tick()).await.expect("the queue is open"));
        let waits = async { assert_eq!(ready(&queue), None, "the first still waits for others") };
        futures::join!(futures::future::join_all(pushes), waits);
        assert_eq!(ready(&queue), Some(3));
        assert_eq!(ready(&queue), None);
    }

    #[tokio::test]
    async fn who_gives_up_rings_all_the_same() {
        let queue = Queue::new(8);
        assert!(queue.push(tick()).now_or_never().is_none());
        assert_eq!(ready(&queue), Some(1));
    }

    #[test]
    fn a_word_of_the_store_itself_rings_at_once() {
        let queue = Queue::new(1);
        queue.notify(Request::CheckpointEnded);
        assert_eq!(ready(&queue), Some(1));
    }
}
