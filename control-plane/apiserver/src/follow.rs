//! Tasks that follow a resource: whenever it changes, all of it is looked at again.
//!
//! What a task did not manage it tries again a second later. It never keeps the server alive.

use std::sync::Weak;
use std::time::Duration;

use corten_meta::Status;
use corten_store::Revision;
use futures::future::{BoxFuture, select_all};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::server::Server;

const AGAIN: Duration = Duration::from_secs(1);

/// What is done when a resource has changed. Doing it twice is harmless. Gives what else it waits for the change of.
pub type Reconcile = for<'a> fn(&'a Server) -> BoxFuture<'a, Result<Vec<watch::Receiver<Revision>>, Status>>;

/// Follows a resource, by its group and plural, until shutdown.
pub async fn follow(
    server: Weak<Server>,
    (group, plural): (&str, &str),
    reconcile: Reconcile,
    shutdown: CancellationToken,
) {
    let Some(mut changes) = server.upgrade().and_then(|s| {
        let resource = s.registry.resource(group, "v1", plural)?;
        resource.stored.as_ref().map(|stored| stored.cache.changes())
    }) else {
        return;
    };
    loop {
        changes.mark_unchanged();
        let reconciled = match server.upgrade() {
            Some(server) => reconcile(&server).await,
            None => return,
        };
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
