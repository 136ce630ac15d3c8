//! Sessions: backups, restores and prunes under way, each with an object in the repository, so that a prune never runs
//! beside another.
//!
//! A session writes its object, and then lists the others: of two that exclude each other at least one sees the other,
//! and gives up. A session that was not renewed for an hour is taken for killed, as is one of an earlier process of the
//! same node, and its object is deleted. So a session that slept checks that its object is still there before it relies on
//! it.

use std::sync::Mutex;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sealed;
use crate::vault::{Owner, Vault};

/// The directory of sessions.
pub const SESSIONS: &str = "sessions/";
/// The time after which a session that was not renewed is taken for killed.
pub const STALE: SignedDuration = SignedDuration::from_hours(1);
/// The time between two renewals.
const RENEWAL: SignedDuration = SignedDuration::from_mins(5);
/// The most sessions that are read.
const MOST_SESSIONS: usize = 10_000;
const MOST_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A restore; it runs beside everything. A prune waits for it, so that a backup that is deleted now is still restored.
    Read,
    /// A backup or a verification; any number of them run at once.
    Use,
    /// A prune; it runs alone.
    Prune,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Content {
    kind: Kind,
    /// The time of the last renewal.
    renewed: Timestamp,
    owner: Owner,
}

impl Content {
    /// Reports whether the session was killed: it was not renewed, or its node runs another process now.
    fn is_killed(&self, owner: &Owner, age: SignedDuration) -> bool {
        age > STALE || (self.owner.node == owner.node && self.owner.process != owner.process)
    }

    fn excludes(&self, kind: Kind) -> bool {
        match kind {
            Kind::Read => false,
            Kind::Use => self.kind == Kind::Prune,
            Kind::Prune => true,
        }
    }
}

/// A session under way.
pub struct Session<'a> {
    vault: &'a Vault,
    name: String,
    kind: Kind,
    renewed: Mutex<Timestamp>,
}

impl<'a> Session<'a> {
    /// Begins a session, unless one that excludes it is under way.
    pub async fn begin(vault: &'a Vault, kind: Kind) -> Result<Session<'a>> {
        let name = format!("{SESSIONS}{}", uuid::Uuid::new_v4().simple());
        let session = Session { vault, name, kind, renewed: Mutex::new(vault.now()) };
        session.write().await?;
        match session.exclude().await {
            Ok(()) => Ok(session),
            Err(error) => {
                session.end().await;
                Err(error)
            }
        }
    }

    /// Fails if a session that excludes this one is under way; deletes those that were killed.
    async fn exclude(&self) -> Result<()> {
        let objects = &self.vault.objects;
        for name in objects.list(SESSIONS, MOST_SESSIONS).await? {
            let Some(bytes) = objects.get(&name, MOST_BYTES).await?.filter(|_| name != self.name) else { continue };
            let content = self.decode(&name, &bytes)?;
            let age = self.vault.now().duration_since(content.renewed);
            if content.is_killed(&self.vault.owner, age) {
                tracing::info!(session = name, "a session of the repository was killed");
                objects.delete(&name).await?;
            } else if content.excludes(self.kind) {
                let other = if content.kind == Kind::Prune { "a prune" } else { "a backup or a restore" };
                let seconds = age.as_secs().max(0);
                return Err(Error::Busy(format!("{other} of the repository is under way, last seen {seconds} s ago")));
            }
        }
        Ok(())
    }

    fn decode(&self, name: &str, bytes: &[u8]) -> Result<Content> {
        let opened = sealed::open(&self.vault.keys, name, bytes, MOST_BYTES)?;
        serde_json::from_slice(&opened).map_err(|error| Error::damaged(name, error.to_string()))
    }

    async fn write(&self) -> Result<()> {
        let now = self.vault.now();
        let content = Content { kind: self.kind, renewed: now, owner: self.vault.owner.clone() };
        let encoded = serde_json::to_vec(&content).map_err(|error| Error::Invalid(error.to_string()))?;
        let bytes: Bytes = sealed::seal(&self.vault.keys, &self.name, &encoded)?;
        self.vault.objects.put(&self.name, bytes).await?;
        *self.renewed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = now;
        Ok(())
    }

    /// Renews the session when that is due. Fails if another one has taken it for killed.
    pub async fn renew(&self) -> Result<()> {
        let renewed = *self.renewed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match self.vault.now().duration_since(renewed) < RENEWAL {
            true => Ok(()),
            false => {
                self.check().await?;
                self.write().await
            }
        }
    }

    /// Fails if another session has taken this one for killed.
    pub async fn check(&self) -> Result<()> {
        match self.vault.objects.exists(&self.name).await? {
            true => Ok(()),
            false => Err(Error::Busy("the work was interrupted for too long, and is begun again".to_owned())),
        }
    }

    /// Ends the session. An object that cannot be deleted is stale in an hour.
    pub async fn end(self) {
        if let Err(error) = self.vault.objects.delete(&self.name).await {
            tracing::info!(%error, session = self.name, "cannot end a session of the repository");
        }
    }
}
