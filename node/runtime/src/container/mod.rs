//! A container as the daemon knows it: its configuration and its state.
//!
//! The shim is the source of truth about a running container; this is a view that can be rebuilt from disk and from the
//! shim at any time.

pub(crate) mod shim_client;

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_cri::v1;
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::Error;
use crate::cgroup::Limits;
use crate::images::Digest;
use crate::paths::{Paths, write_atomically};
use crate::sandbox::read;
use crate::shim::protocol::Exit;
use crate::spec::Identity;

/// The state of a container beyond its configuration. Written whenever it changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub sandbox_id: String,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub pid: Option<i32>,
    pub identity: Option<Identity>,
    pub image_id: String,
    pub image_ref: String,
    /// Digests of the layers of all its images, which must not be removed while the container exists.
    pub layers: Vec<Digest>,
    pub log_path: String,
    pub stop_signal: i32,
    pub cgroup: String,
    /// The OCI runtime that runs the container; `None` for this runtime.
    #[serde(default)]
    pub oci_runtime: Option<std::path::PathBuf>,
    pub limits: Limits,
    pub oom_score_adj: i64,
    pub exit: Option<Exit>,
    /// The reason why the container ended, if it did not exit by itself.
    pub reason: String,
    pub message: String,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub id: String,
    pub config: v1::ContainerConfig,
    record: Mutex<ContainerRecord>,
    /// True when the container has ended.
    ended: watch::Sender<bool>,
    /// The process of its shim, while the daemon follows it.
    shim: Mutex<Option<OwnedFd>>,
    /// The lock that serializes changes of the container.
    pub changing: tokio::sync::Mutex<()>,
}

impl Container {
    pub fn new(id: String, config: v1::ContainerConfig, record: ContainerRecord) -> Self {
        let ended = watch::Sender::new(record.exit.is_some());
        let changing = tokio::sync::Mutex::default();
        Self { id, config, record: Mutex::new(record), ended, shim: Mutex::default(), changing }
    }

    /// Reads a container from its folder, with the exit that its shim recorded while no daemon ran.
    pub fn load(paths: &Paths, id: &str) -> Result<Self, Error> {
        let folder = paths.container(id);
        let config = v1::ContainerConfig::decode(read(&folder.join("config.pb"))?.as_slice())
            .map_err(|error| Error::Invalid(format!("configuration of container {id}: {error}")))?;
        let mut record: ContainerRecord = serde_json::from_slice(&read(&folder.join("record.json"))?)
            .map_err(|error| Error::Invalid(format!("record of container {id}: {error}")))?;
        if record.exit.is_none() {
            record.exit = recorded_exit(paths, id);
        }
        Ok(Self::new(id.to_string(), config, record))
    }

    /// Writes the container for the first time.
    pub fn save(&self, paths: &Paths) -> Result<(), Error> {
        let folder = paths.container(&self.id);
        write_atomically(&folder.join("config.pb"), &self.config.encode_to_vec())?;
        self.save_record(paths)
    }

    pub fn record(&self) -> ContainerRecord {
        self.lock().clone()
    }

    /// Reports whether the container belongs to the sandbox.
    pub fn is_of(&self, sandbox_id: &str) -> bool {
        self.lock().sandbox_id == sandbox_id
    }

    pub fn cgroup(&self) -> String {
        self.lock().cgroup.clone()
    }

    /// Returns the process id of its first process.
    pub fn pid(&self) -> Option<i32> {
        self.lock().pid
    }

    fn lock(&self) -> MutexGuard<'_, ContainerRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the record and writes it.
    pub fn update(&self, paths: &Paths, change: impl FnOnce(&mut ContainerRecord)) -> Result<(), Error> {
        change(&mut self.lock());
        self.save_record(paths)
    }

    /// Records the container's exit and wakes its waiters. Only the first exit counts.
    pub fn end(&self, paths: &Paths, exit: Exit, reason: &str, message: &str) {
        let written = self.update(paths, |record| {
            if record.exit.is_none() {
                record.exit = Some(exit);
                record.reason = reason.to_string();
                record.message = message.to_string();
            }
        });
        if let Err(error) = written {
            tracing::error!(container = self.id, %error, "the end of a container could not be recorded");
        }
        self.ended.send_replace(true);
    }

    /// Remembers the process of the shim.
    pub fn follow_shim(&self, shim: Option<OwnedFd>) {
        *self.shim.lock().unwrap_or_else(PoisonError::into_inner) = shim;
    }

    /// Kills the shim, if it still runs. The resources that it held of the container are freed with it.
    pub fn kill_shim(&self) {
        if let Some(shim) = &*self.shim.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = rustix::process::pidfd_send_signal(shim, rustix::process::Signal::KILL);
        }
    }

    /// Waits until the container has ended.
    pub async fn wait(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    pub fn state(&self) -> v1::ContainerState {
        let record = self.lock();
        match (&record.exit, record.started_at) {
            (Some(_), _) => v1::ContainerState::ContainerExited,
            (None, Some(_)) => v1::ContainerState::ContainerRunning,
            (None, None) => v1::ContainerState::ContainerCreated,
        }
    }

    pub fn require_running(&self) -> Result<(), Error> {
        match self.state() {
            v1::ContainerState::ContainerRunning => Ok(()),
            state => Err(Error::State(format!("container is in {} state", state.as_str_name()))),
        }
    }

    fn save_record(&self, paths: &Paths) -> Result<(), Error> {
        let bytes = serde_json::to_vec(&self.record())
            .map_err(|error| Error::Invalid(format!("record of container {}: {error}", self.id)))?;
        write_atomically(&paths.container(&self.id).join("record.json"), &bytes)
    }
}

/// Returns the exit that a shim wrote to disk.
pub(crate) fn recorded_exit(paths: &Paths, id: &str) -> Option<Exit> {
    let bytes = std::fs::read(paths.container(id).join("exit.json")).ok()?;
    serde_json::from_slice(&bytes).ok()
}
