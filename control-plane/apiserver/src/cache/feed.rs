//! The feed of one store: the revision that the caches of its resources have reached, and the wait for it.
//!
//! Each store counts revisions of its own, so the resourceVersions of a resource are those of its store. A reader waits
//! for the feed of the resource that it reads, and never compares revisions of two stores.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use corten_meta::Status;
use corten_store::{Revision, Store};
use tokio::sync::watch;

use super::too_large_resource_version;
use crate::error::store_status;

/// The time that a read waits for the feed before it fails with 504.
const FRESH_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval at which a waiting read requests the progress of a store: changes of other keys, by other processes or from
/// before a move into this store, raise its revision, and the feed hears nothing of them.
const PROGRESS: Duration = Duration::from_millis(100);
/// The time before the first request, in which nearly every change arrives by itself.
const FIRST_PROGRESS: Duration = Duration::from_millis(10);

/// A store, and the revision that the caches of its resources have reached.
pub struct Feed {
    pub store: Arc<dyn Store>,
    /// The prefix of the keys that it watches.
    pub(super) prefix: String,
    progress: watch::Sender<Revision>,
}

impl Feed {
    pub(super) fn new(store: Arc<dyn Store>, prefix: String) -> Feed {
        Feed { store, prefix, progress: watch::Sender::new(0) }
    }

    /// Notes that all caches of the store have the changes up to a revision.
    pub(super) fn reached(&self, revision: Revision) {
        self.progress.send_replace(revision);
    }

    /// Returns the revision that all caches of the store have reached.
    pub fn revision(&self) -> Revision {
        *self.progress.borrow()
    }

    /// Returns whether the caches have all writes that the store had acknowledged when this was called.
    pub fn is_fresh(&self) -> bool {
        // The store is read first: a cache that is read later may be newer, never older.
        let revision = self.store.revision();
        !self.store.is_shared() && self.revision() >= revision
    }

    /// Waits until the caches have the store's present state.
    pub async fn fresh(&self) -> Result<Revision, Status> {
        let store = &self.store;
        let revision = if store.is_shared() { store.current().await.map_err(store_status)? } else { store.revision() };
        self.reach(revision).await
    }

    /// Waits until the caches have reached `revision`.
    pub async fn reach(&self, revision: Revision) -> Result<Revision, Status> {
        let at = self.revision();
        if at >= revision {
            return Ok(at);
        }
        let mut progress = self.progress.subscribe();
        let reached = tokio::time::timeout(FRESH_TIMEOUT, async {
            tokio::select! {
                at = progress.wait_for(|at| *at >= revision) => at.ok().map(|at| *at),
                never = self.request_progress() => match never {},
            }
        });
        match reached.await {
            Ok(Some(at)) => Ok(at),
            _ => Err(too_large_resource_version(revision, self.revision())),
        }
    }

    /// Requests progress notifications of the feed's watch for as long as a read waits.
    async fn request_progress(&self) -> Infallible {
        tokio::time::sleep(FIRST_PROGRESS).await;
        loop {
            if let Err(error) = self.store.progress(self.prefix.as_bytes()).await {
                tracing::debug!(%error, "no progress of the store's watch");
            }
            tokio::time::sleep(PROGRESS).await;
        }
    }

    /// Waits until the feed has replayed the changes since the load, for as long as it advances: a busy machine may need
    /// longer for a whole window than a read may wait.
    pub(super) async fn caught_up(&self) -> Result<(), Status> {
        let mut reached = self.revision();
        loop {
            match self.fresh().await {
                Ok(_) => return Ok(()),
                Err(_) if self.revision() > reached => reached = self.revision(),
                Err(status) => return Err(status),
            }
        }
    }
}
