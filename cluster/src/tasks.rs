//! The tasks of a process: each component is one, all are awaited, and the end of one ends all.
//!
//! A component that fails ends the process with an error: its supervisor (systemd, `corten up`) starts a complete one
//! again, and containers do not notice. A partial cluster that looks alive would be worse.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The time limit of a component's end at shutdown, unless it needs more.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Tasks {
    set: JoinSet<(&'static str, Result<()>)>,
    shutdown: CancellationToken,
    patience: Duration,
}

impl Tasks {
    /// Makes a set of tasks that end when `shutdown` is cancelled.
    pub fn new(shutdown: CancellationToken) -> Tasks {
        Tasks { set: JoinSet::new(), shutdown, patience: PATIENCE }
    }

    /// Gives the components at least this time to end at shutdown.
    pub fn wait_at_least(&mut self, time: Duration) {
        self.patience = self.patience.max(time);
    }

    /// Returns the token that ends these tasks.
    pub fn shutdown(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Starts a component.
    pub fn spawn<E>(&mut self, name: &'static str, task: impl Future<Output = Result<(), E>> + Send + 'static)
    where
        E: std::fmt::Display,
    {
        // The task is boxed, so that the runtime's own code around a task is compiled once and not per component.
        let task: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { (name, task.await.map_err(|error| anyhow!("{name}: {error:#}"))) });
        self.set.spawn(task);
    }

    /// Waits until a component ends by itself, which none should.
    pub async fn failed(&mut self) -> Result<()> {
        let ended = self.set.join_next().await;
        self.premature(ended)
    }

    /// Waits until the shutdown or until a component ends by itself; then ends the others and waits for them.
    pub async fn run(mut self) -> Result<()> {
        let outcome = tokio::select! {
            () = self.shutdown.cancelled() => Ok(()),
            ended = self.set.join_next() => self.premature(ended),
        };
        self.shutdown.cancel();
        let rest = async {
            while let Some(ended) = self.set.join_next().await {
                match ended {
                    Ok((_, Err(error))) => tracing::warn!("{error:#}"),
                    Ok((name, Ok(()))) => tracing::debug!(name, "ended"),
                    Err(error) => tracing::error!("a component panicked: {error}"),
                }
            }
        };
        let patience = self.patience;
        if tokio::time::timeout(patience, rest).await.is_err() {
            tracing::warn!("some components did not end within {patience:?}; they are dropped");
        }
        outcome
    }

    fn premature(&self, ended: Option<Result<(&'static str, Result<()>), tokio::task::JoinError>>) -> Result<()> {
        match ended {
            None => Ok(()),
            Some(Ok((_, Err(error)))) => Err(error),
            Some(Ok((_, Ok(())))) if self.shutdown.is_cancelled() => Ok(()),
            Some(Ok((name, Ok(())))) => Err(anyhow!("{name} ended by itself")),
            Some(Err(error)) => Err(anyhow!("a component panicked: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failing_component_ends_the_others_and_is_named() {
        let mut tasks = Tasks::new(CancellationToken::new());
        let stop = tasks.shutdown();
        tasks.spawn("patient", async move {
            stop.cancelled().await;
            Ok::<(), anyhow::Error>(())
        });
        tasks.spawn("hasty", async { Err(anyhow!("no luck")) });
        assert_eq!(tasks.run().await.unwrap_err().to_string(), "hasty: no luck");
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_has_the_time_that_it_needs_to_end() {
        let shutdown = CancellationToken::new();
        for (time, is_awaited) in [(Duration::ZERO, false), (PATIENCE * 3, true)] {
            let ended = CancellationToken::new();
            let mut tasks = Tasks::new(shutdown.clone());
            tasks.wait_at_least(time);
            let end = ended.clone();
            tasks.spawn("slow", async move {
                tokio::time::sleep(PATIENCE * 2).await;
                end.cancel();
                Ok::<(), anyhow::Error>(())
            });
            shutdown.cancel();
            tasks.run().await.unwrap();
            assert_eq!(ended.is_cancelled(), is_awaited);
        }
    }

    #[tokio::test]
    async fn a_shutdown_ends_all_without_an_error() {
        let shutdown = CancellationToken::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let stop = tasks.shutdown();
        tasks.spawn("patient", async move {
            stop.cancelled().await;
            Ok::<(), anyhow::Error>(())
        });
        shutdown.cancel();
        tasks.run().await.unwrap();
    }
}
