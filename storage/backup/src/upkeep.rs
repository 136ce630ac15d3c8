//! The upkeep of a repository: verify reads everything, prune deletes chunks that no backup names.

use std::collections::HashSet;

use futures::{StreamExt, TryStreamExt, stream};

use crate::directory::TEMPORARY;
use crate::error::{Error, Result};
use crate::repository::{CHUNKS, MOST_BACKUPS, Repository, chunk_name};
use crate::sealed::ChunkId;
use crate::session::{Kind, Session};

/// The most chunks of one of the 256 directories that one prune deletes; the next one goes on.
const MOST_CHUNKS: usize = 1_000_000;
/// The most problems that a verification reports.
const MOST_PROBLEMS: usize = 20;
const PARALLEL: usize = 4;

/// The outcome of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub backups: usize,
    pub chunks: usize,
    /// The first problems: backups and chunks that are damaged or missing.
    pub problems: Vec<String>,
}

/// The outcome of a prune.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub kept: usize,
    pub deleted: usize,
}

impl Repository {
    /// Reads every backup and every chunk that one names, and compares all with their ids.
    pub async fn verify(&self) -> Result<Verified> {
        let session = Session::begin(&self.vault, Kind::Use).await?;
        let verified = self.read_all(&session).await;
        session.end().await;
        verified
    }

    async fn read_all(&self, session: &Session<'_>) -> Result<Verified> {
        let mut verified = Verified::default();
        let mut used: HashSet<ChunkId> = HashSet::new();
        for id in self.list().await? {
            session.renew().await?;
            verified.backups += 1;
            match self.manifest(&id).await {
                Ok(manifest) => used.extend(manifest.chunks.into_iter().flatten()),
                Err(error) => verified.add(error)?,
            }
        }
        verified.chunks = used.len();
        let mut read = stream::iter(used)
            .map(|id| async move {
                session.renew().await?;
                self.chunk(&id).await.map(drop)
            })
            .buffer_unordered(PARALLEL);
        while let Some(chunk) = read.next().await {
            if let Err(error) = chunk {
                verified.add(error)?;
            }
        }
        Ok(verified)
    }

    /// Deletes chunks that no backup names, and files that a killed writer left. Runs alone: a backup that is under way
    /// may rely on a chunk that no manifest names yet.
    pub async fn prune(&self) -> Result<Pruned> {
        let session = Session::begin(&self.vault, Kind::Prune).await?;
        let pruned = self.sweep(&session).await;
        session.end().await;
        pruned
    }

    async fn sweep(&self, session: &Session<'_>) -> Result<Pruned> {
        for name in self.vault.objects.list(TEMPORARY, MOST_CHUNKS).await? {
            self.vault.objects.delete(&name).await?;
        }
        let backups = self.list().await?;
        if backups.len() >= MOST_BACKUPS {
            return Err(Error::Invalid(format!("the repository has more than {MOST_BACKUPS} backups")));
        }
        let mut used: HashSet<String> = HashSet::new();
        for id in backups {
            session.renew().await?;
            // A backup that cannot be read may name any chunk: then nothing is deleted.
            let manifest = self.manifest(&id).await?;
            used.extend(manifest.chunks.iter().flatten().map(chunk_name));
        }
        let mut pruned = Pruned::default();
        for first in 0..=u8::MAX {
            let listed = self.vault.objects.list(&format!("{CHUNKS}{first:02x}/"), MOST_CHUNKS).await?;
            let (kept, unused): (Vec<String>, Vec<String>) = listed.into_iter().partition(|name| used.contains(name));
            pruned.kept += kept.len();
            if unused.is_empty() {
                continue;
            }
            session.check().await?;
            pruned.deleted += unused.len();
            stream::iter(unused)
                .map(|name| async move {
                    session.renew().await?;
                    self.vault.objects.delete(&name).await
                })
                .buffer_unordered(PARALLEL)
                .try_collect::<()>()
                .await?;
        }
        Ok(pruned)
    }
}

impl Verified {
    /// Notes a damaged or missing object. Another error ends the verification: it says nothing of the objects.
    fn add(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Damaged { .. } | Error::NoBackup(_) | Error::Invalid(_) => {
                if self.problems.len() < MOST_PROBLEMS {
                    self.problems.push(error.to_string());
                }
                Ok(())
            }
            other => Err(other),
        }
    }
}
