//! Tasks that follow a resource: whenever it changes, all of it is reconciled again.
//!
//! A failed reconciliation is repeated a second later.

use std::time::Duration;

use corten_meta::Status;
use corten_store::Revision;
use futures::future::{BoxFuture, select_all};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::registry::Registry;

const AGAIN: Duration = Duration::from_secs(1);

/// Reconciles a resource that has changed. Doing it twice is harmless. Returns other changes that it waits for.
pub type Reconcile<'a> = dyn Fn() -> BoxFuture<'a, Result<Vec<watch::Receiver<Revision>>, Status>> + Send + Sync + 'a;

/// Follows a resource, by its group and plural, until shutdown.
pub async fn follow(
    registry: &Registry,
    group: &str,
    plural: &str,
    reconcile: &Reconcile<'_>,
    shutdown: &CancellationToken,
) {
    let Some(mut changes) = registry.cache(group, "v1", plural).map(|cache| cache.changes()) else { return };
    loop {
        changes.mark_unchanged();
        let reconciled = reconcile().await;
        let again = reconciled.is_err();
        let mut others = reconciled.unwrap_or_else(|status| {
            tracing::warn!(plural, message = status.message, "a change could not be followed; trying again");
            Vec::new()
        });
        let other = async {
            match others.is_empty() {
                true => std::future::pending().await,
                false => drop(select_all(others.iter_mut().map(|one| Box::pin(one.changed()))).await),
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = other => {}
            () = tokio::time::sleep(AGAIN), if again => {}
        }
    }
}
