//! The certificates of the etcd member while it runs: signed anew long before they expire, and by a new authority when
//! the cluster rotates.
//!
//! etcd reads its certificates for every connection, but the authority that it trusts only at its start. So it is restarted
//! after a rotation: one member at a time, by a lock among the servers, while the API server uses the other members.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use corten_members::values::Held;
use corten_members::{Config, Members, Restarts};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::members::Endpoints;
use crate::directories::Directories;
use crate::membership::member;
use crate::pki::{Authorities, Authority, validity};

/// The lock of the server whose member restarts.
const LOCK: &str = "/corten/member-restart";
/// The time after which the lock of a server that died is free, and the interval in which a living one extends it.
const LOCK_TIME: Duration = Duration::from_secs(20);
const EXTENSION: Duration = Duration::from_secs(5);
/// The time that the others, and then the restarted member, have to answer.
const PATIENCE: Duration = Duration::from_secs(45);
/// The time in which requests that use the member end, and no new ones come.
const DRAIN: Duration = Duration::from_secs(2);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// A member, and all that is signed for it.
pub struct Renewed {
    pub config: Config,
    pub directories: Directories,
    pub leaf_lifetime: Duration,
    pub addresses: Vec<IpAddr>,
    pub authorities: Authorities,
    pub members: Members,
    pub restarts: Restarts,
    pub endpoints: Arc<Endpoints>,
    /// The certificates of the authority that the running etcd trusts.
    pub trusting: watch::Sender<String>,
}

/// Keeps the member's certificates fresh until the shutdown.
pub async fn renew(mut renewed: Renewed, shutdown: CancellationToken) -> Result<()> {
    // They were signed a moment ago.
    let mut due = renewed.authority()?.renewal();
    loop {
        let is_due = tokio::select! {
            () = validity::until(due) => true,
            changed = renewed.authorities.changed() => match changed {
                Ok(()) => false,
                Err(_) => return Ok(()),
            },
            () = shutdown.cancelled() => return Ok(()),
        };
        let authority = renewed.authority()?;
        if is_due || *renewed.trusting.borrow() != authority.certificate {
            renewed.sign(&authority)?;
            due = authority.renewal();
        }
        if *renewed.trusting.borrow() != authority.certificate {
            tokio::select! {
                restarted = renewed.restart_in_turn() => restarted?,
                () = shutdown.cancelled() => return Ok(()),
            }
            renewed.trusting.send_replace(authority.certificate.clone());
        }
    }
}

impl Renewed {
    fn authority(&self) -> Result<Authority> {
        Ok(member::authority(&self.directories)?.with_leaf_lifetime(self.leaf_lifetime))
    }

    /// Signs the certificates of the member and of its clients.
    fn sign(&self, authority: &Authority) -> Result<()> {
        member::write_certificates(&self.config, &self.addresses, authority)?;
        let credentials = member::credentials(authority)?;
        member::write_client(&self.config, &credentials)?;
        Ok(self.members.set_credentials(&credentials)?)
    }

    /// Restarts the member while no other server restarts its own.
    async fn restart_in_turn(&self) -> Result<()> {
        let held = loop {
            match self.members.lock(LOCK, &self.config.name, LOCK_TIME).await {
                Ok(Some(held)) => break held,
                Ok(None) => {}
                Err(error) => tracing::debug!("the lock of restarts cannot be taken: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        };
        let restarted = tokio::select! {
            restarted = self.restart() => restarted,
            never = self.extend(&held) => match never {},
        };
        if let Err(error) = self.members.release(held).await {
            tracing::debug!("the lock of restarts ends by itself: {error}");
        }
        Ok(restarted?)
    }

    /// Restarts the member while its API server uses the others.
    async fn restart(&self) -> Result<(), corten_members::Error> {
        tracing::info!("etcd restarts with the authority that the cluster has now");
        self.others_answer().await;
        let all = self.endpoints.drain();
        tokio::time::sleep(DRAIN).await;
        let restarted = self.restarts.restart().await;
        if restarted.is_ok() {
            self.answers(&self.members.at(vec![self.config.client_url()])).await;
        }
        self.endpoints.restore(all);
        restarted
    }

    /// Keeps the lock.
    async fn extend(&self, held: &Held) -> Infallible {
        loop {
            tokio::time::sleep(EXTENSION).await;
            if let Err(error) = self.members.extend(held).await {
                tracing::debug!("the lock of restarts cannot be extended: {error}");
            }
        }
    }

    /// Waits until every other voter answers, for some time: one that is gone must not keep this one from restarting.
    async fn others_answer(&self) {
        let Ok(list) = self.members.list().await else { return };
        let own = self.config.client_url();
        let others = list.members.into_iter().filter(|member| !member.is_learner && !member.client_urls.contains(&own));
        for other in others {
            self.answers(&self.members.at(other.client_urls)).await;
        }
    }

    /// Waits until a member answers and knows its leader, for some time.
    async fn answers(&self, member: &Members) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match member.status().await {
                Ok(_) => return,
                Err(error) => tracing::debug!("a member does not answer: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
