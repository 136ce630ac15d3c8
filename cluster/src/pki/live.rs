//! The cluster's CAs and keys as a running process has them: those of the files, now and after each rotation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Pki;
use crate::files::Changes;
use crate::tasks::Tasks;

/// The CAs and keys, and a notification of each change.
pub type Authorities = watch::Receiver<Arc<Pki>>;

/// The time within which a change is noticed that the kernel did not report.
const INTERVAL: Duration = Duration::from_secs(30);

/// Opens the CAs and keys, and follows their files.
pub fn follow(dir: &Path, leaf_lifetime: Duration, tasks: &mut Tasks) -> Result<Authorities> {
    let pki = Pki::open(dir)?.with_leaf_lifetime(leaf_lifetime);
    let changes = Changes::of(&dir.join("ca.crt"))?;
    let (sender, receiver) = watch::channel(Arc::new(pki));
    let followed = Followed { dir: dir.to_owned(), leaf_lifetime, changes, sender };
    tasks.spawn("authorities", publish(followed, tasks.shutdown()));
    Ok(receiver)
}

struct Followed {
    dir: PathBuf,
    leaf_lifetime: Duration,
    changes: Changes,
    sender: watch::Sender<Arc<Pki>>,
}

async fn publish(followed: Followed, shutdown: CancellationToken) -> Result<()> {
    let Followed { dir, leaf_lifetime, changes, sender } = followed;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = changes.next() => changed?,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        // A process that changes several files holds the lock, which blocks.
        let path = dir.clone();
        let read = tokio::task::spawn_blocking(move || Pki::open(&path)).await?;
        match read {
            Ok(pki) if pki.digest == sender.borrow().digest => {}
            Ok(pki) => {
                tracing::info!("the cluster's authorities or keys have changed");
                sender.send_replace(Arc::new(pki.with_leaf_lifetime(leaf_lifetime)));
            }
            Err(error) => tracing::error!("the changed authorities are not used: {error:#}"),
        }
    }
}

/// Returns authorities that never change.
#[cfg(test)]
pub fn fixed(pki: Pki) -> Authorities {
    watch::channel(Arc::new(pki)).1
}
