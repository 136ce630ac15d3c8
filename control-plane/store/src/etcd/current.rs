//! The last committed revision, by a quorum read that all callers of the same moment share.
//!
//! A caller never gets the result of a read that began before it called: a commit that was acknowledged in between
//! could be missing from it.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use corten_etcd::etcdserverpb::RangeRequest;
use corten_etcd::etcdserverpb::kv_client::KvClient;
use tokio::sync::oneshot;

use super::members::Members;
use super::messages::revision;
use crate::{Error, Revision};

type Waiter = oneshot::Sender<Result<Revision, Error>>;

/// The callers that wait for a read.
#[derive(Default)]
pub(super) struct Current {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_reading: bool,
    /// The callers of the next read.
    waiting: Vec<Waiter>,
}

impl Current {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the last revision that was committed when this was called, or a later one.
    pub async fn get(self: &Arc<Self>, members: &Arc<Members>, key: &Bytes) -> Result<Revision, Error> {
        let (waiter, answer) = oneshot::channel();
        let begins = {
            let mut state = self.state();
            state.waiting.push(waiter);
            !std::mem::replace(&mut state.is_reading, true)
        };
        if begins {
            // A task, because a caller that is cancelled must not take the others with it.
            tokio::spawn(Arc::clone(self).run(Arc::clone(members), key.clone()));
        }
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Reads for all that wait, until no caller does.
    async fn run(self: Arc<Self>, members: Arc<Members>, key: Bytes) {
        loop {
            let waiting = {
                let mut state = self.state();
                let waiting = std::mem::take(&mut state.waiting);
                state.is_reading = !waiting.is_empty();
                waiting
            };
            if waiting.is_empty() {
                return;
            }
            let read = read(&members, &key).await;
            for waiter in waiting {
                // A caller that was cancelled does not wait any more.
                let _ = waiter.send(read.clone());
            }
        }
    }
}

/// Returns the last committed revision, by a linearizable read of one key.
pub(super) async fn read(members: &Members, key: &Bytes) -> Result<Revision, Error> {
    let request = RangeRequest { key: key.clone(), limit: 1, count_only: true, ..RangeRequest::default() };
    let called = members.call(|channel| {
        let request = request.clone();
        async move { KvClient::new(channel).range(request).await }
    });
    Ok(revision(called.await.answer()?.header.as_ref()))
}
