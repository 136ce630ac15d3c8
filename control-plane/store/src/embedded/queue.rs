//! The bounded queue from the callers to the committer, which takes all requests at once.
//!
//! All queued requests become the committer's next group, so the load sets the number of commits per sync. The first
//! caller wakes the committer, but first lets the tasks run that are ready as well: a busy server has dozens of them,
//! and many are about to write, while an idle one has none. The committer sleeps on a condition variable with a
//! timeout, which no async channel offers to a thread.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};

use super::transaction::Transaction;
use crate::{Error, LeaseId, Op, Outcome, Revision};

/// The sender of the answer to a request. A caller that no longer waits is not an error.
pub type Reply<T> = oneshot::Sender<Result<T, Error>>;

#[derive(Debug)]
pub enum Request {
    Commit {
        ops: Vec<Op>,
        reply: Reply<Outcome>,
    },
    Transact(Transaction),
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
    /// Check the clock, and answer after acting on it.
    Tick {
        reply: Reply<()>,
    },
    /// The checkpoint thread has ended.
    CheckpointEnded,
}

#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// Wakes a committer that is a thread,
    changed: Condvar,
    /// or a task.
    notify: Notify,
    capacity: Semaphore,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<Request>,
    /// Whether the requests may be taken: the first caller has woken the committer.
    rung: bool,
    closed: bool,
}

impl Waiting {
    fn is_ready(&self) -> bool {
        self.rung || self.closed
    }
}

/// Wakes the committer when it is dropped, also if its owner gave up its request.
struct Bell<'q>(&'q Queue);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        // The committer may have been woken and have taken the requests since.
        waiting.rung = !waiting.requests.is_empty();
        drop(waiting);
        self.0.wake();
    }
}

/// The requests that the committer takes at once.
#[derive(Debug)]
pub struct Taken {
    pub requests: Vec<Request>,
    /// Whether no more requests will come.
    pub closed: bool,
}

impl Queue {
    pub fn new(capacity: usize) -> Queue {
        let capacity = Semaphore::new(capacity.max(1));
        Queue { waiting: Mutex::default(), changed: Condvar::new(), notify: Notify::new(), capacity }
    }

    /// Waits for capacity, then queues the request.
    pub async fn push(&self, request: Request) -> Result<(), Error> {
        let permit = self.capacity.acquire().await.map_err(|_| Error::Closed)?;
        let bell = self.add(request)?;
        // The capacity is given back when the request is taken.
        permit.forget();
        if bell.is_some() {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Queues a request; the first caller must wake the committer.
    fn add(&self, request: Request) -> Result<Option<Bell<'_>>, Error> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Error::Closed);
        }
        waiting.requests.push(request);
        Ok((waiting.requests.len() == 1).then(|| Bell(self)))
    }

    /// Queues a request from the store's own threads, of which there are few.
    pub fn notify(&self, request: Request) {
        let _bell = Bell(self);
        self.lock().requests.push(request);
    }

    /// Takes all requests once the committer is woken; waits for that, at most for `timeout`.
    pub fn take(&self, timeout: Option<Duration>) -> Taken {
        let idle = |waiting: &mut Waiting| !waiting.is_ready();
        let waiting = self.lock();
        let waiting = match timeout {
            None => self.changed.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                self.changed.wait_timeout_while(waiting, time, idle).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        self.take_ready(waiting)
    }

    /// Does the same for a committer that is a task.
    pub async fn taken(&self, timeout: Option<Duration>) -> Taken {
        let woken = async {
            while !self.lock().is_ready() {
                self.notify.notified().await;
            }
        };
        match timeout {
            None => woken.await,
            Some(time) => tokio::time::timeout(time, woken).await.unwrap_or_default(),
        }
        self.take_ready(self.lock())
    }

    fn take_ready(&self, mut waiting: MutexGuard<'_, Waiting>) -> Taken {
        let closed = waiting.closed;
        let is_ready = std::mem::take(&mut waiting.rung) || closed;
        let requests = if is_ready { std::mem::take(&mut waiting.requests) } else { Vec::new() };
        drop(waiting);
        let capacity = requests.iter().filter(|request| !matches!(request, Request::CheckpointEnded)).count();
        self.capacity.add_permits(capacity);
        Taken { requests, closed }
    }

    /// Refuses all further requests.
    pub fn close(&self) {
        self.lock().closed = true;
        self.capacity.close();
        self.wake();
    }

    fn wake(&self) {
        self.changed.notify_one();
        self.notify.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A push or a swap cannot leave the list inconsistent.
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

    /// Returns the number of requests that can be taken now.
    fn ready(queue: &Queue) -> Option<usize> {
        let rung = queue.lock().rung;
        rung.then(|| queue.take(None).requests.len())
    }

    #[tokio::test]
    async fn requests_of_ready_tasks_share_the_group() {
        let queue = Queue::new(8);
        let pushes = (0..3).map(async |_| queue.push(tick()).await.expect("the queue is open"));
        let waits = async { assert_eq!(ready(&queue), None, "the first still waits for others") };
        futures::join!(futures::future::join_all(pushes), waits);
        assert_eq!(ready(&queue), Some(3));
        assert_eq!(ready(&queue), None);
    }

    #[tokio::test]
    async fn a_dropped_caller_still_wakes_the_committer() {
        let queue = Queue::new(8);
        assert!(queue.push(tick()).now_or_never().is_none());
        assert_eq!(ready(&queue), Some(1));
    }

    #[test]
    fn a_request_of_the_store_itself_wakes_the_committer_at_once() {
        let queue = Queue::new(1);
        queue.notify(Request::CheckpointEnded);
        assert_eq!(ready(&queue), Some(1));
    }
}
