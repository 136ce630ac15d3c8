//! The place of a repository with its key: what sessions and the repository share.

use std::sync::Arc;

use corten_backup::Keys;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::objects::Objects;

/// Returns the time; tests have one of their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The process of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub node: String,
    /// An id of the process: another one of the same node has ended.
    pub process: String,
}

/// The place and the key of a repository, for one process.
pub struct Vault {
    pub objects: Arc<dyn Objects>,
    pub keys: Arc<Keys>,
    pub owner: Owner,
    pub clock: Clock,
}

impl Vault {
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }
}
