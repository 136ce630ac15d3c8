//! The way from the callers to the committer: a bounded queue that is taken whole.
//!
//! Whatever has queued up while the committer was waiting for the disk becomes its next group, so
//! the load itself sets how many commits share a sync. The committer sleeps on a condition variable
//! with a timeout, which no async channel offers to a thread.

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
    closed: bool,
}

impl Waiting {
    /// Queues a request, and tells whether it is the first: only then can the committer be asleep, and waking it is a
    /// call to the system also when it is awake.
    fn add(&mut self, request: Request) -> bool {
        self.requests.push(request);
        self.requests.len() == 1
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
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Error::Closed);
        }
        let was_idle = waiting.add(request);
        drop(waiting);
        // The place is given back when the request is taken.
        place.forget();
        if was_idle {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Queues a word from the store's own threads, of which there are few.
    pub fn notify(&self, request: Request) {
        let was_idle = self.lock().add(request);
        if was_idle {
            self.changed.notify_one();
        }
    }

    /// Takes everything there is; waits for something to come, at most for `patience`.
    pub fn take(&self, patience: Option<Duration>) -> Taken {
        let idle = |waiting: &mut Waiting| waiting.requests.is_empty() && !waiting.closed;
        let waiting = self.lock();
        let mut waiting = match patience {
            None => self.changed.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                self.changed.wait_timeout_while(waiting, time, idle).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        let requests = std::mem::take(&mut waiting.requests);
        let closed = waiting.closed;
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
