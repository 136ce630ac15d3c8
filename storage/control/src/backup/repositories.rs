//! The loop over VolumeBackupRepositories: opens those that are this node's, prunes them when it is time, and verifies
//! them on request.

use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_meta::time::{now, rfc3339};
use corten_meta::{Key, Value};
use corten_snapshots::{INTACT, PRUNE_REQUEST, READY, VERIFY_REQUEST, VolumeBackupRepository, with_condition};
use corten_storage_backup::{Error, Repository};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::Failure;
use super::open::open;
use crate::worker::{Loop, Next, Watch};
use crate::world::{World, annotation, is_deleted};

/// The time between two looks at a repository.
const POLL: Duration = Duration::from_secs(300);
/// The time after which a prune that another session excluded is tried again.
const BUSY: Duration = Duration::from_secs(60);

pub struct Repositories {
    world: Arc<World>,
    node: String,
}

/// The work on an open repository that is due.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    prune: bool,
    verify: bool,
}

/// Decides what is due: a prune by the interval or on request, a verification on request.
fn due(repository: &VolumeBackupRepository, now: Timestamp) -> Due {
    let status = repository.status.clone().unwrap_or_default();
    let last: Option<Timestamp> = status.last_prune_time.and_then(|time| time.parse().ok());
    let interval = SignedDuration::from_hours(repository.spec.prune_interval_hours.clamp(1, 8760));
    let is_time = last.is_none_or(|last| now.duration_since(last) >= interval);
    let is_new = |request: &str, handled: Option<String>| {
        annotation(repository, request).is_some_and(|value| Some(value) != handled.as_deref())
    };
    Due {
        prune: is_time || is_new(PRUNE_REQUEST, status.last_prune_request),
        verify: is_new(VERIFY_REQUEST, status.last_verify_request),
    }
}

impl Loop for Repositories {
    fn name(&self) -> &'static str {
        "volume-backup-repositories"
    }

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own(self.world.cache::<VolumeBackupRepository>())]
    }

    fn work<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Next> {
        async { self.world.shutdown.run_until_cancelled(self.sync(key)).await.unwrap_or(Next::Done) }.boxed()
    }
}

impl Repositories {
    pub fn new(world: Arc<World>, node: String) -> Repositories {
        Repositories { world, node }
    }

    async fn sync(&self, key: &Key) -> Next {
        let Some(object) = self.world.get::<VolumeBackupRepository>("", &key.name) else { return Next::Done };
        let node = object.status.as_ref().and_then(|status| status.node_name.as_ref());
        if is_deleted(&object) || node != Some(&self.node) {
            return Next::Done;
        }
        match self.care(&object).await {
            Ok(next) => next,
            Err(failure) => {
                let set = with_condition(object.conditions(), READY, false, failure.reason, &failure.message, now());
                if let Some(conditions) = set {
                    self.world.warning(&object, failure.reason, failure.message);
                    let _ = self.world.patch_status(&object, json!({"conditions": conditions})).await;
                }
                Next::Retry
            }
        }
    }

    async fn care(&self, object: &VolumeBackupRepository) -> Result<Next, Failure> {
        let repository = open(&self.world, &object.spec).await?;
        let backups = repository.list().await?.len();
        let message = format!("the repository {} is open", repository.id);
        if let Some(conditions) = with_condition(object.conditions(), READY, true, "Opened", &message, now()) {
            let status = json!({"conditions": conditions, "repositoryID": repository.id, "backups": backups});
            self.world.patch_status(object, status).await?;
            // The change of the status leads here again.
            return Ok(Next::After(POLL));
        }
        let due = due(object, now());
        let mut status = json!({});
        if due.verify {
            self.verify(object, &repository, &mut status).await?;
        }
        let mut next = Next::After(POLL);
        if due.prune && !self.prune(object, &repository, &mut status).await? {
            next = Next::After(BUSY);
        }
        if object.status.as_ref().and_then(|status| status.backups) != Some(backups) {
            status["backups"] = json!(backups);
        }
        if status.as_object().is_some_and(|fields| !fields.is_empty()) {
            self.world.patch_status(object, status).await?;
        }
        Ok(next)
    }

    /// Prunes a repository; false if another session excludes it.
    async fn prune(
        &self,
        object: &VolumeBackupRepository,
        repository: &Repository,
        status: &mut Value,
    ) -> Result<bool, Failure> {
        let pruned = match repository.prune().await {
            Err(Error::Busy(message)) => {
                tracing::info!(repository = object.name(), message, "the repository is not pruned now");
                return Ok(false);
            }
            pruned => pruned?,
        };
        status["lastPruneTime"] = json!(rfc3339(now()));
        status["lastPruneRequest"] = json!(annotation(object, PRUNE_REQUEST));
        let message = format!("{} chunks were deleted, and {} are in use", pruned.deleted, pruned.kept);
        self.world.normal(object, "Pruned", message);
        Ok(true)
    }

    async fn verify(
        &self,
        object: &VolumeBackupRepository,
        repository: &Repository,
        status: &mut Value,
    ) -> Result<(), Failure> {
        let verified = repository.verify().await?;
        let is_intact = verified.problems.is_empty();
        let message = match is_intact {
            true => format!("{} backups and {} chunks were read", verified.backups, verified.chunks),
            false => verified.problems.join("; "),
        };
        let reason = if is_intact { "Verified" } else { "Damaged" };
        match is_intact {
            true => self.world.normal(object, reason, message.clone()),
            false => self.world.warning(object, reason, message.clone()),
        }
        if let Some(conditions) = with_condition(object.conditions(), INTACT, is_intact, reason, &message, now()) {
            status["conditions"] = conditions;
        }
        status["lastVerifyTime"] = json!(rfc3339(now()));
        status["lastVerifyRequest"] = json!(annotation(object, VERIFY_REQUEST));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prune_is_due_by_the_interval_or_on_request() {
        let at: Timestamp = "2026-11-18T12:00:00Z".parse().unwrap();
        let shown = |line: &str| {
            let due = due(&testkit_fixture::typed(&format!("vbr r spec.pruneIntervalHours=24 {line}")), at);
            format!("{}{}", if due.prune { "prune " } else { "" }, if due.verify { "verify" } else { "" })
        };
        assert_eq!(shown(""), "prune ");
        let pruned = "status={lastPruneTime: \"2026-11-18T00:00:00Z\", lastPruneRequest: a}";
        assert_eq!(shown(pruned), "");
        assert_eq!(shown("status.lastPruneTime=2026-11-17T11:00:00Z"), "prune ");
        let asked = |prune: &str, verify: &str| {
            shown(&format!(
                "{pruned} metadata.annotations={{storage.corten.dev/prune: {prune}, storage.corten.dev/verify: {verify}}}"
            ))
        };
        assert_eq!(asked("a", "b"), "verify");
        assert_eq!(asked("b", "b"), "prune verify");
    }
}
