//! The writers of audit events: a log file that is rotated, and a webhook that gets batches.
//!
//! Each is a task with a bounded queue. Requests wait for a slow file, so that no event is lost; the webhook drops
//! events when its queue is full and logs it, because a dead receiver must not stop a cluster.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::config::{Audit, AuditLog, AuditWebhook};
use crate::error::Error;
use crate::outbound;
use crate::tasks::Tasks;

/// A batch is sent when it has this many events, or when its first event has waited this long.
const BATCH: usize = 400;
const BATCH_WAIT: Duration = Duration::from_secs(5);
/// The maximum number of events that wait for the webhook.
const WEBHOOK_QUEUE: usize = 10_000;
/// The number of attempts to send a batch, and their timeout.
const TRIES: u32 = 5;
const TRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts the writers.
pub fn start(config: &Audit, mut events: mpsc::Receiver<String>, tasks: &Tasks) -> Result<(), Error> {
    let mut log = config.log.as_ref().map(|log| Log::open(log.clone())).transpose()?;
    let webhook = config.webhook.as_ref().map(|webhook| start_webhook(webhook, tasks)).transpose()?;
    // Writes to files block, so they have a thread. It ends after the events of the last request.
    let runtime = tokio::runtime::Handle::current();
    let drained = tasks.drained.clone();
    let (done, written) = oneshot::channel::<()>();
    tasks.spawn(async move { _ = written.await });
    std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
        let _done = done;
        while let Some(event) = runtime.block_on(next(&mut events, &drained)) {
            if let Some(log) = &mut log
                && let Err(e) = log.write(&event)
            {
                tracing::error!(error = %e, "an audit event could not be written");
            }
            if let Some(webhook) = &webhook
                && webhook.try_send(event).is_err()
            {
                tracing::error!("the audit webhook is behind; an event was dropped");
            }
        }
    })?;
    Ok(())
}

/// Returns the next event; after `end` only those that are queued.
async fn next(events: &mut mpsc::Receiver<String>, end: &CancellationToken) -> Option<String> {
    tokio::select! {
        biased;
        event = events.recv() => event,
        () = end.cancelled() => events.try_recv().ok(),
    }
}

/// A log file that is rotated when it has grown too big.
struct Log {
    config: AuditLog,
    file: Option<File>,
    size: u64,
}

impl Log {
    fn open(config: AuditLog) -> Result<Log, Error> {
        let mut log = Log { config, file: None, size: 0 };
        log.reopen()?;
        Ok(log)
    }

    fn reopen(&mut self) -> std::io::Result<()> {
        if self.config.path == Path::new("-") {
            return Ok(());
        }
        if let Some(parent) = self.config.path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&self.config.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    fn write(&mut self, event: &str) -> std::io::Result<()> {
        let Some(file) = &mut self.file else {
            return writeln!(std::io::stdout().lock(), "{event}");
        };
        let limit = self.config.max_size_bytes;
        if limit > 0 && self.size + event.len() as u64 + 1 > limit && self.size > 0 {
            self.rotate()?;
            return self.write(event);
        }
        self.size += event.len() as u64 + 1;
        file.write_all(format!("{event}\n").as_bytes())
    }

    /// Renames the file to its backup name, and removes backups that are too old or too many.
    fn rotate(&mut self) -> std::io::Result<()> {
        let now = jiff::Timestamp::now();
        let mut aside = backup_name(&self.config.path, &now.strftime("%Y-%m-%dT%H-%M-%S%.6f").to_string());
        // Two backups in the same microsecond must not overwrite each other.
        for more in 1.. {
            if !aside.exists() {
                break;
            }
            aside = backup_name(&self.config.path, &format!("{}-{more}", now.strftime("%Y-%m-%dT%H-%M-%S%.6f")));
        }
        self.file = None;
        std::fs::rename(&self.config.path, &aside)?;
        self.reopen()?;
        self.clean_up()
    }

    fn clean_up(&self) -> std::io::Result<()> {
        let mut backups = backups(&self.config.path)?;
        backups.sort_unstable();
        let too_many = match self.config.max_backups {
            0 => 0,
            most => backups.len().saturating_sub(most),
        };
        for (at, backup) in backups.iter().enumerate() {
            let age = std::fs::metadata(backup)?.modified()?.elapsed().unwrap_or_default();
            let max_age = self.config.max_age;
            let too_old = !max_age.is_zero() && age > max_age;
            if at < too_many || too_old {
                std::fs::remove_file(backup)?;
            }
        }
        Ok(())
    }
}

/// Returns the name of a backup: `audit-<time>.log` for `audit.log`.
fn backup_name(path: &Path, time: &str) -> PathBuf {
    let (stem, extension) = parts(path);
    path.with_file_name(format!("{stem}-{time}{extension}"))
}

fn parts(path: &Path) -> (String, String) {
    let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    (stem, extension)
}

fn backups(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (stem, extension) = parts(path);
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let of_log = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(&format!("{stem}-")) && name.ends_with(&extension)
    };
    Ok(std::fs::read_dir(directory)?.flatten().map(|entry| entry.path()).filter(of_log).collect())
}

fn start_webhook(config: &AuditWebhook, tasks: &Tasks) -> Result<mpsc::Sender<String>, Error> {
    let (sender, mut events) = mpsc::channel::<String>(WEBHOOK_QUEUE);
    let caller = outbound::Caller::new(&config.server)?;
    let drained = tasks.drained.clone();
    // The task ends with the thread that holds the sender, after the events of the last request.
    tasks.spawn(async move {
        while let Some(first) = events.recv().await {
            let mut batch = vec![first];
            let gathered = tokio::time::timeout(BATCH_WAIT, async {
                while batch.len() < BATCH {
                    let Some(event) = events.recv().await else { return };
                    batch.push(event);
                }
            });
            tokio::select! {
                biased;
                _ = gathered => {}
                () = drained.cancelled() => {}
            }
            deliver(&caller, &batch).await;
        }
    });
    Ok(sender)
}

/// Sends a batch, and retries later if it fails.
async fn deliver(caller: &outbound::Caller, batch: &[String]) {
    let list = format!(
        r#"{{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{{}},"items":[{}]}}"#,
        batch.join(",")
    );
    let mut wait = Duration::from_millis(500);
    for attempt in 1..=TRIES {
        match caller.post(list.clone().into(), TRY_TIMEOUT).await {
            Ok(_) => return,
            Err(e) if attempt == TRIES => tracing::error!(events = batch.len(), error = e, "audit events were lost"),
            Err(_) => tokio::time::sleep(wait).await,
        }
        wait *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_has_grown_is_rotated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let config = AuditLog { path: path.clone(), max_size_bytes: 20, max_backups: 2, max_age: Duration::ZERO };
        let mut log = Log::open(config).unwrap();
        for number in 0..10 {
            log.write(&format!("event number {number}")).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "event number 9\n");
        let mut kept: Vec<String> =
            backups(&path).unwrap().iter().map(|b| std::fs::read_to_string(b).unwrap()).collect();
        kept.sort();
        assert_eq!(kept, ["event number 7\n", "event number 8\n"]);
    }
}
