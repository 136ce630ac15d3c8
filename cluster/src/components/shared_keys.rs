//! The authorities and keys that this server shares with the others: taken over when they change, and reported when all
//! parts of this server use them.

use std::time::Duration;

use anyhow::{Context, Result};
use corten_members::Members;
use tokio_util::sync::CancellationToken;

use super::members::Started;
use crate::directories::Directories;
use crate::membership::member;
use crate::membership::shared::SharedKeys;
use crate::pki::{Authorities, digest};

/// The time between two looks at the shared keys.
const INTERVAL: Duration = Duration::from_secs(2);

/// The shared keys as a server follows them.
pub struct Followed {
    directories: Directories,
    keys: SharedKeys,
    members: Members,
    started: Followers,
    reported: Option<String>,
}

/// The parts of a server that must use the keys before it says so.
struct Followers {
    endpoints: tokio::sync::watch::Receiver<Vec<String>>,
    trusted: tokio::sync::watch::Receiver<String>,
    own: u64,
}

/// Takes over the shared keys before the API server starts.
pub async fn start(directories: &Directories, started: &Started, authorities: &mut Authorities) -> Result<Followed> {
    let keys = SharedKeys::new(directories, started.members.clone())?;
    keys.reconcile().await.context("the servers' keys cannot be taken over")?;
    let current = digest(&directories.pki())?;
    let followed = authorities.wait_for(|pki| pki.digest == current).await;
    followed.context("the authorities are no longer followed")?;
    // A server that was off signs its certificates anew first, and its etcd restarts.
    let authority = member::authority(directories)?;
    let mut trusted = started.trusted.clone();
    let trusted = trusted.wait_for(|trusted| *trusted == authority.certificate).await;
    trusted.context("the certificates of etcd are no longer renewed")?;
    let members = started.members.clone();
    let started =
        Followers { endpoints: started.endpoints.clone(), trusted: started.trusted.clone(), own: started.own };
    Ok(Followed { directories: directories.clone(), keys, members, started, reported: None })
}

/// Follows the shared keys until the shutdown.
pub async fn run(mut followed: Followed, shutdown: CancellationToken) -> Result<()> {
    loop {
        followed.keys.members = followed.members.at(followed.started.endpoints.borrow().clone());
        if let Err(error) = followed.keys.reconcile().await {
            tracing::debug!("the servers' keys cannot be followed: {error:#}");
        }
        if let Err(error) = followed.report().await {
            tracing::debug!("the servers' keys cannot be reported: {error:#}");
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

impl Followed {
    /// Reports the keys once the API server and etcd use them.
    async fn report(&mut self) -> Result<()> {
        let current = digest(&self.directories.pki())?;
        if self.reported.as_ref() == Some(&current) {
            return Ok(());
        }
        let loaded = std::fs::read_to_string(self.directories.loaded_authorities()).unwrap_or_default();
        let authority = member::authority(&self.directories)?;
        if loaded != current || *self.started.trusted.borrow() != authority.certificate {
            return Ok(());
        }
        self.keys.report(self.started.own, current.clone()).await?;
        self.reported = Some(current);
        Ok(())
    }
}
