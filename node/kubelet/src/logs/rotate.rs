//! Log rotation: a log that is too large is renamed, the runtime reopens it, and its oldest files are removed. Files
//! are renamed, never copied, so that no line is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::cri::Runtime;
use crate::error::{Error, Result};
use crate::pod::observed::InstanceState;
use crate::pod::view::Views;
use crate::services::Services;

/// Rotates the logs of running containers until shutdown.
pub async fn run(services: Arc<Services>, views: Views, shutdown: CancellationToken) {
    // Nothing notifies of sizes, so they are checked at an interval.
    let mut ticks = tokio::time::interval(services.config.log_monitor_interval.max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        for view in views.all() {
            for instance in &view.observed.instances {
                let path = Path::new(&instance.log_path);
                let big = fs::metadata(path).is_ok_and(|metadata| metadata.len() > services.config.log_max_bytes);
                if instance.state == InstanceState::Running
                    && big
                    && let Err(error) =
                        rotate(&services.runtime.client, &instance.id, path, services.config.log_max_files).await
                {
                    warn!(%error, path = %path.display(), "log not rotated");
                }
            }
        }
    }
}

async fn rotate(runtime: &Runtime, container_id: &str, path: &Path, max_files: usize) -> Result<()> {
    let rotated = rename(path)?;
    if let Err(error) = runtime.reopen_log(container_id).await {
        // The runtime still writes to the renamed file; it must have its name again until the next attempt.
        fs::rename(&rotated, path).map_err(Error::file("rename", &rotated))?;
        return Err(error);
    }
    remove_oldest(path, max_files)
}

fn rename(path: &Path) -> Result<PathBuf> {
    let stamp = Timestamp::now().strftime("%Y%m%d-%H%M%S.%6f");
    let rotated = PathBuf::from(format!("{}.{stamp}", path.display()));
    fs::rename(path, &rotated).map_err(Error::file("rename", path))?;
    Ok(rotated)
}

/// Removes all but the current file and the newest rotated ones.
fn remove_oldest(path: &Path, max_files: usize) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    let prefix = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut former: Vec<PathBuf> = fs::read_dir(directory)
        .map_err(Error::file("read", directory))?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect();
    former.sort_unstable();
    let excess = former.len().saturating_sub(max_files.saturating_sub(1));
    for path in &former[..excess] {
        fs::remove_file(path).map_err(Error::file("remove", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        fs::write(&path, "x").unwrap();
        for day in 1..=6 {
            fs::write(directory.path().join(format!("0.log.2026010{day}-000000.000000")), "x").unwrap();
        }
        let rotated = rename(&path).unwrap();
        fs::write(&path, "new").unwrap();
        remove_oldest(&path, 3).unwrap();
        let left = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 3, "the current file and two former ones");
        assert!(rotated.exists() && path.exists());
    }
}
