//! Notifies followers of log files that a file has grown, been replaced or appeared: one inotify instance for the
//! kubelet (hosts allow few), one notification per follower. It reads no file.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::fs::inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

/// The watcher of the log directories.
#[derive(Clone)]
pub struct LogWatcher {
    inner: Arc<Inner>,
    /// The task that reads the notifications; it ends with the last watcher.
    _dispatching: Arc<AbortOnDropHandle<()>>,
}

struct Inner {
    descriptor: AsyncFd<OwnedFd>,
    directories: Mutex<Directories>,
}

#[derive(Default)]
struct Directories {
    by_watch: HashMap<i32, PathBuf>,
    followers: HashMap<PathBuf, Vec<Weak<Notify>>>,
}

impl LogWatcher {
    /// Makes a watcher. It needs a running tokio runtime.
    pub fn new() -> std::io::Result<LogWatcher> {
        let descriptor = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        // SAFETY: an `OwnedFd` is open and stays the same descriptor until it is dropped, and the `AsyncFd`
        // owns it from here on.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
        let descriptor = descriptor.map_err(|error| error.into_parts().1)?;
        let inner = Arc::new(Inner { descriptor, directories: Mutex::default() });
        let dispatching = AbortOnDropHandle::new(tokio::spawn(dispatch(Arc::clone(&inner))));
        Ok(LogWatcher { inner, _dispatching: Arc::new(dispatching) })
    }

    /// Notifies of every change in the directory, until the returned value is dropped.
    pub fn follow(&self, directory: &Path) -> std::io::Result<Arc<Notify>> {
        let flags = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::MOVED_FROM
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::ONLYDIR;
        let mut directories = self.inner.lock();
        let watch = inotify::add_watch(&self.inner.descriptor, directory, flags)?;
        directories.by_watch.insert(watch, directory.to_path_buf());
        let notify = Arc::new(Notify::new());
        directories.followers.entry(directory.to_path_buf()).or_default().push(Arc::downgrade(&notify));
        Ok(notify)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Directories> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, watch: i32) {
        let mut directories = self.lock();
        let Some(directory) = directories.by_watch.get(&watch).cloned() else { return };
        let followers = directories.followers.entry(directory.clone()).or_default();
        followers.retain(|follower| follower.upgrade().inspect(|notify| notify.notify_one()).is_some());
        if followers.is_empty() {
            directories.followers.remove(&directory);
            directories.by_watch.remove(&watch);
            // The kernel may have dropped the watch with its directory already.
            let _ = inotify::remove_watch(&self.descriptor, watch);
        }
    }
}

async fn dispatch(inner: Arc<Inner>) {
    loop {
        let mut guard = match inner.descriptor.readable().await {
            Ok(guard) => guard,
            Err(error) => {
                warn!(%error, "log files are not watched any more");
                return;
            }
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inner.descriptor.get_ref(), &mut buffer);
        while let Ok(event) = reader.next() {
            inner.wake(event.wd());
            if reader.is_buffer_empty() {
                break;
            }
        }
        // The descriptor is level-triggered and may hold more than one buffer, so it is read again.
        if reader_would_block(&inner.descriptor) {
            guard.clear_ready();
        }
    }
}

fn reader_would_block(descriptor: &AsyncFd<OwnedFd>) -> bool {
    rustix::io::ioctl_fionread(descriptor.get_ref()).is_ok_and(|waiting| waiting == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    #[tokio::test]
    async fn growth_and_new_files_wake_the_follower() {
        let directory = tempfile::tempdir().unwrap();
        let watcher = LogWatcher::new().unwrap();
        let notify = watcher.follow(directory.path()).unwrap();
        let mut file = std::fs::File::create(directory.path().join("0.log")).unwrap();
        tokio::time::timeout(Duration::from_secs(300), notify.notified()).await.expect("a new file wakes");
        for _ in 0..3 {
            file.write_all(b"x\n").unwrap();
            tokio::time::timeout(Duration::from_secs(300), notify.notified()).await.expect("growth wakes");
        }
    }
}
