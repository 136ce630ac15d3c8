//! Keeps the etcd of this machine running.

use std::process::Command;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::log::Log;
use crate::process::{Lock, Process};
use crate::state::{State, make_directory};
use crate::{Binary, Config, Error, Members, Start};

/// The time that etcd has to write its last words to the disk.
const STOP_PATIENCE: Duration = Duration::from_secs(8);
/// The pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The time after which a process has proved itself, and the pauses begin anew.
const STEADY: Duration = Duration::from_secs(60);

/// The etcd of this machine, which runs while [`Supervisor::run`] does.
pub struct Supervisor {
    config: Config,
    binary: Binary,
    lock: Lock,
    restarts: Restarts,
    requests: mpsc::Receiver<oneshot::Sender<()>>,
}

/// The requests to restart the etcd of this machine.
#[derive(Clone)]
pub struct Restarts(mpsc::Sender<oneshot::Sender<()>>);

impl Restarts {
    /// Restarts etcd, which reads its files again; returns when the old process has ended.
    pub async fn restart(&self) -> Result<(), Error> {
        let (done, ended) = oneshot::channel();
        let gone = || Error::Process(std::io::Error::other("it is no longer supervised"));
        self.0.send(done).await.map_err(|_| gone())?;
        ended.await.map_err(|_| gone())
    }
}

impl Supervisor {
    /// Takes the member's directory, once no etcd of an earlier run uses it.
    pub async fn new(config: Config, binary: Binary) -> Result<Supervisor, Error> {
        make_directory(&config.directory)?;
        let lock = Lock::acquire(&config.directory).await?;
        let (sender, requests) = mpsc::channel(1);
        Ok(Supervisor { config, binary, lock, restarts: Restarts(sender), requests })
    }

    /// Returns the way to restart etcd while it is supervised.
    pub fn restarts(&self) -> Restarts {
        self.restarts.clone()
    }

    /// Runs etcd, again after it failed, until the shutdown; fails once the cluster has removed the member.
    pub async fn run(mut self, start: Start, members: Members, shutdown: CancellationToken) -> Result<(), Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            let started = Instant::now();
            let mut process = self.start(&start).await?;
            tokio::select! {
                ended = process.ended() => {
                    let status = ended.map_err(Error::Process)?;
                    if self.is_removed(&members).await {
                        return Err(Error::Removed);
                    }
                    let log = self.log_path();
                    tracing::warn!("etcd ended ({status}); {} says why; it is started again", log.display());
                }
                Some(done) = self.requests.recv() => {
                    process.stop(STOP_PATIENCE).await.map_err(Error::Process)?;
                    // A requester that has gone needs no answer.
                    let _ = done.send(());
                    continue;
                }
                () = shutdown.cancelled() => return process.stop(STOP_PATIENCE).await.map_err(Error::Process),
            }
            pause = next_pause(pause, started.elapsed());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    pub(crate) async fn start(&self, start: &Start) -> Result<Process, Error> {
        let mut command = Command::new(&self.binary.path);
        command.args(self.config.arguments(self.binary.version, start)).current_dir(&self.config.directory);
        // Variables of this name are etcd's flags.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        let path = self.log_path();
        let log = Log::open(&path).map_err(Error::file("write", &path))?;
        Process::start(command, &self.lock, log).await.map_err(Error::Process)
    }

    pub(crate) fn log_path(&self) -> std::path::PathBuf {
        self.config.directory.join("etcd.log")
    }

    /// Reports whether the other members say that this one was removed.
    async fn is_removed(&self, members: &Members) -> bool {
        let Ok(Some(state)) = State::read(&self.config.directory) else { return false };
        let own = self.config.client_url();
        let others: Vec<String> = state.endpoints.iter().filter(|endpoint| **endpoint != own).cloned().collect();
        if others.is_empty() || state.member == 0 {
            return false;
        }
        let list = members.at(others).list().await;
        list.is_ok_and(|list| list.members.iter().all(|member| member.id != state.member))
    }
}

/// Returns the pause before the next start, after a process that ran for a time.
fn next_pause(pause: Duration, ran: Duration) -> Duration {
    if ran >= STEADY { FIRST_PAUSE } else { LONGEST_PAUSE.min(pause * 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_process_proved_itself() {
        let soon = Duration::from_millis(10);
        let mut pause = FIRST_PAUSE;
        let seconds: Vec<u64> = (0..6)
            .map(|_| {
                pause = next_pause(pause, soon);
                pause.as_secs()
            })
            .collect();
        assert_eq!(seconds, [2, 4, 8, 16, 30, 30]);
        assert_eq!(next_pause(pause, STEADY), FIRST_PAUSE);
    }
}
