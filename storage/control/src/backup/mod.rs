//! Volume backups on a node: [`Backups`] sends the volumes of this node to repositories, [`Repositories`] opens, prunes
//! and verifies those of which this node takes care, and [`restore`] fills new volumes.
//!
//! The controllers of the control plane decide which node handles an object, and write it into the status. Here is all
//! that touches data.
//!
//! *Invariant: a VolumeBackup is ready only after its manifest is durable, and its object goes only after the manifest
//! does, unless it is retained.*

mod open;
mod repositories;
mod restore;
mod work;

use std::fs::File;

pub use repositories::Repositories;
pub use restore::restore;
pub use work::Backups;

/// The data of a driver's volumes. The calls may block.
pub trait VolumeData: Send + Sync {
    /// Opens the content of a volume as it is at this moment.
    fn open(&self, volume: &str) -> Result<Image, String>;
    /// Opens a volume that was never used, in order to fill it; none if it has a content already.
    fn fill(&self, volume: &str) -> Result<Option<Filling>, String>;
}

/// The content of a volume at one moment.
pub struct Image {
    pub file: File,
    pub bytes: u64,
    pub block: bool,
    /// The file system on it, if there is one.
    pub file_system: Option<String>,
    /// Keeps the content as it is.
    pub guard: Box<dyn Send + Sync>,
}

/// Makes the content of a volume known: takes its file system, if there is one, and the size of that.
pub type Commit = Box<dyn FnOnce(Option<&str>, u64) -> Result<(), String> + Send>;

/// A volume that is being filled.
pub struct Filling {
    /// The file of the volume: a hole of its whole size.
    pub file: File,
    /// Without this call the volume stays empty.
    pub commit: Commit,
}

/// The failure of work on an object: a reason for its condition, and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: &'static str,
    pub message: String,
}

impl Failure {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Failure {
        Failure { reason, message: message.into() }
    }
}

impl From<corten_storage_backup::Error> for Failure {
    fn from(error: corten_storage_backup::Error) -> Failure {
        Failure::new(error.reason(), error.to_string())
    }
}

impl From<corten_client::Error> for Failure {
    fn from(error: corten_client::Error) -> Failure {
        Failure::new("ApiError", error.to_string())
    }
}

/// Runs work on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    let failed = |message: String| Failure::new("VolumeUnavailable", message);
    done.map_err(|error| failed(error.to_string()))?.map_err(failed)
}
