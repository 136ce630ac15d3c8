//! Configuration files that may change while the cluster runs: their content now and after every change.
//!
//! The directory is watched, not the file, so that a file that is replaced by a rename or a swapped symbolic link is
//! noticed too.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::tasks::Tasks;

/// Returns the content of a file, now and after every change.
pub fn follow(path: &Path, tasks: &mut Tasks) -> Result<watch::Receiver<String>> {
    let changes = Changes::of(path)?;
    let (sender, receiver) = watch::channel(read(path)?);
    tasks.spawn("configuration file", publish(path.to_owned(), changes, sender, tasks.shutdown()));
    Ok(receiver)
}

pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the CAs that this machine trusts, in the file of its distribution; none if there is none.
pub fn trusted_roots() -> String {
    const BUNDLES: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    BUNDLES.iter().find_map(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
}

/// The changes in the directory of a file.
struct Changes(AsyncFd<OwnedFd>);

impl Changes {
    fn of(path: &Path) -> Result<Changes> {
        let absolute = std::path::absolute(path)?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let what = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CREATE;
        inotify.add_watch(folder, what).with_context(|| format!("cannot watch {}", folder.display()))?;
        // SAFETY: an `OwnedFd` is open and stays the same descriptor until it is dropped, and the `AsyncFd` owns it
        // from here on.
        let registered = unsafe { AsyncFd::register_with_interest(OwnedFd::from(inotify), Interest::READABLE) };
        Ok(Changes(registered.map_err(|error| error.into_parts().1)?))
    }

    async fn next(&self) -> Result<()> {
        let mut ready = self.0.readable().await?;
        // The kind of the change does not matter: the file is read again anyway.
        while nix::unistd::read(self.0.get_ref(), &mut [0; 4096]).is_ok_and(|read| read > 0) {}
        ready.clear_ready();
        Ok(())
    }
}

async fn publish(
    path: PathBuf,
    changes: Changes,
    sender: watch::Sender<String>,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = changes.next() => changed?,
        }
        match read(&path) {
            Ok(text) => {
                sender.send_if_modified(|current| {
                    let changed = *current != text;
                    *current = text;
                    changed
                });
            }
            // The file may be missing for a moment; its last content stays in force.
            Err(error) => tracing::warn!("{error:#}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_written_or_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, "a").unwrap();
        let shutdown = CancellationToken::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let mut text = follow(&path, &mut tasks).unwrap();
        assert_eq!(*text.borrow(), "a");
        std::fs::write(folder.path().join("other"), "x").unwrap();
        std::fs::write(&path, "b").unwrap();
        let patience = std::time::Duration::from_secs(300);
        tokio::time::timeout(patience, text.wait_for(|text| text == "b")).await.unwrap().unwrap();
        std::fs::write(folder.path().join("new"), "c").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        tokio::time::timeout(patience, text.wait_for(|text| text == "c")).await.unwrap().unwrap();
        shutdown.cancel();
        tasks.run().await.unwrap();
    }
}
