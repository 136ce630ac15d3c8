//! Scheduled backups: one server of the cluster takes them, and old ones are deleted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use corten_backup::{Secret, Target, target};
use corten_client::{Client, LeaderConfig, LeaderElector};
use corten_controllers::Schedule;
use corten_meta::metrics::{Family, Kind, Registry};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio_util::sync::CancellationToken;

use crate::backup::{self, Source, Subject, Success};
use crate::config::Cluster;
use crate::directories::Directories;
use crate::files;
use crate::tasks::Tasks;

/// The Lease of the server that takes the backups.
const LEASE: &str = "corten-backup";
/// The pause after a failure, unless the schedule is earlier.
const RETRY: Duration = Duration::from_secs(5 * 60);
/// The longest sleep: the clock of the machine may be set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

static TAKEN: Family = Family {
    name: "corten_backups_total",
    kind: Kind::Counter,
    labels: &["result"],
    help: "The number of scheduled backups by result: success or failure.",
};
/// The metrics of scheduled backups.
pub const METRICS: &[&Family] = &[&TAKEN];

/// Starts the schedule, if the flags ask for one. Flags that cannot work are refused here, not at three in the morning.
pub fn start(cluster: &Cluster, client: &Client, metrics: Arc<Registry>, tasks: &mut Tasks) -> Result<()> {
    let options = &cluster.backup;
    let (Some(schedule), Some(path)) = (&options.backup_schedule, &options.backup_target) else { return Ok(()) };
    let schedule = Schedule::parse(schedule).map_err(|error| anyhow!("--backup-schedule {schedule:?}: {error}"))?;
    let directories = &cluster.node.directories;
    let target = backup::directory(path, &options.s3, &directories.data).context("--backup-target")?;
    if let Target::Directory(directory) = &target {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let scheduled = Scheduled {
        schedule,
        keep: usize::from(options.backup_keep),
        place: path.clone(),
        target,
        secret: backup::secret(&options.secret()).context("--backup-passphrase-file or --backup-key-file")?,
        cluster: cluster.clone(),
        metrics,
    };
    let election = cluster.several_servers.then(|| LeaderConfig::new("kube-system", LEASE, &cluster.node.name));
    tasks.spawn("backups", run(scheduled, client.clone(), election, tasks.shutdown()));
    Ok(())
}

fn subject(cluster: &Cluster) -> Result<Subject> {
    let directories = cluster.node.directories.clone();
    Ok(Subject {
        source: Source::of_server(&directories, &cluster.store)?,
        node: cluster.node.name.clone(),
        settings: cluster.settings(),
        prefix: cluster.store.etcd_prefix.clone(),
        encryption: cluster.access.encryption_provider_config.clone(),
        flags: Vec::new(),
        directories,
    })
}

struct Scheduled {
    schedule: Schedule,
    keep: usize,
    /// The target as the flag has it.
    place: PathBuf,
    target: Target,
    secret: Secret,
    cluster: Cluster,
    metrics: Arc<Registry>,
}

/// Takes backups until the shutdown; among several servers, while this one leads.
async fn run(
    scheduled: Scheduled,
    client: Client,
    election: Option<LeaderConfig>,
    shutdown: CancellationToken,
) -> Result<()> {
    let Some(election) = election else {
        scheduled.run(shutdown).await;
        return Ok(());
    };
    while !shutdown.is_cancelled() {
        let elector = LeaderElector::new(client.clone(), election.clone());
        elector.run(shutdown.clone(), |stop| scheduled.run(stop)).await;
    }
    Ok(())
}

impl Scheduled {
    async fn run(&self, stop: CancellationToken) {
        let mut last = self.last().await.unwrap_or_else(Timestamp::now);
        loop {
            let Some(due) = self.schedule.next(last, &TimeZone::UTC) else { return stop.cancelled().await };
            if stop.run_until_cancelled(until(due)).await.is_none() {
                return;
            }
            let now = Timestamp::now();
            // A backup that was begun is finished, also while the server ends: a part of a backup is none.
            match self.take(now).await {
                Ok(()) => last = now,
                Err(error) => {
                    let reason = format!("{error:#}");
                    tracing::warn!("the scheduled backup failed: {reason}");
                    self.metrics.series(&TAKEN, &["failure"]).add(1.0);
                    backup::record_failure(self.directories(), now, reason);
                    let next = self.schedule.next(now, &TimeZone::UTC).unwrap_or(now);
                    let retry = now.checked_add(RETRY).unwrap_or(now).min(next);
                    if stop.run_until_cancelled(until(retry)).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Returns the time of the newest scheduled backup there is, also of another server.
    async fn last(&self) -> Option<Timestamp> {
        let cluster = self.id().ok()?;
        let names = self.target.names().await.ok()?;
        names.iter().filter_map(|name| target::time_of(name, &cluster)).max()
    }

    fn directories(&self) -> &Directories {
        &self.cluster.node.directories
    }

    /// Returns the id of the cluster.
    fn id(&self) -> Result<String> {
        let authority = files::read(&self.directories().pki().join("ca.crt"))?;
        Ok(backup::cluster_id(authority.as_bytes()))
    }

    async fn take(&self, time: Timestamp) -> Result<()> {
        // The members of etcd change while the server runs.
        let subject = subject(&self.cluster)?;
        let contents = backup::collect(&subject, &self.secret, time).await?;
        let cluster = contents.header.cluster.clone();
        let name = target::name(&cluster, time);
        let bytes = self.target.write(&name, contents, &self.secret).await?;
        self.metrics.series(&TAKEN, &["success"]).add(1.0);
        let place = format!("{}/{name}", self.place.display());
        tracing::info!(place, bytes, "the cluster is backed up");
        backup::record_success(self.directories(), Success { time, place, bytes });
        for removed in self.target.prune(&cluster, self.keep).await? {
            tracing::info!(name = removed, "an old backup is deleted");
        }
        Ok(())
    }
}

/// Sleeps until a time of the wall clock.
async fn until(due: Timestamp) {
    loop {
        let left = due.duration_since(Timestamp::now());
        let Ok(left) = Duration::try_from(left) else { return };
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}
