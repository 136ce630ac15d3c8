//! The tasks beside the requests. The server waits for their end at shutdown, so that none outlives it.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of one server. Clones share them.
#[derive(Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Cancelled at shutdown; every watch, stream and task ends with it.
    pub shutdown: CancellationToken,
    /// Cancelled after shutdown, when all requests are answered or have taken too long.
    pub drained: CancellationToken,
}

impl Tasks {
    /// Spawns a task that ends by itself after shutdown.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task);
    }

    /// Spawns a task that is dropped at shutdown.
    pub fn spawn_until_shutdown(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_until(self.shutdown.clone(), task);
    }

    /// Spawns a task that serves requests: after shutdown it is dropped only when they are answered.
    pub fn spawn_until_drained(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_until(self.drained.clone(), task);
    }

    fn spawn_until(&self, end: CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Ends all tasks, without waiting for them.
    pub fn abort(&self) {
        self.shutdown.cancel();
        self.drained.cancel();
    }

    /// Drops the tasks of requests, and waits for the end of all tasks. Needs a shutdown before.
    pub async fn ended(&self) {
        self.drained.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_end_with_their_phase_of_the_shutdown() {
        let tasks = Tasks::default();
        let own = tasks.shutdown.clone();
        tasks.spawn(async move { own.cancelled().await });
        tasks.spawn_until_shutdown(std::future::pending());
        tasks.spawn_until_drained(std::future::pending());
        assert_eq!(tasks.tracker.len(), 3);
        tasks.shutdown.cancel();
        while tasks.tracker.len() > 1 {
            tokio::task::yield_now().await;
        }
        tasks.ended().await;
        assert!(tasks.tracker.is_empty());
    }
}
