//! The errors of a store.
//!
//! One failed write can fail a group of commits, so the error can be cloned.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{LeaseId, Revision};

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The requested revision is compacted.
    #[error("required revision has been compacted; the oldest revision kept is {compacted}")]
    Compacted { compacted: Revision },

    /// The requested revision does not exist yet.
    #[error("required revision {requested} is a future revision; the store is at {current}")]
    Future { requested: Revision, current: Revision },

    /// The watcher was too slow. It resumes by watching from its last revision plus one.
    #[error("the watcher fell behind and was ended")]
    Lagged,

    #[error("duplicate key given in one commit")]
    DuplicateKey,

    #[error("key is empty")]
    EmptyKey,

    #[error("a commit of {bytes} bytes exceeds the limit of {limit} bytes")]
    TooLarge { bytes: usize, limit: usize },

    #[error("lease {0} not found")]
    LeaseNotFound(LeaseId),

    #[error("lease {0} already exists")]
    LeaseExists(LeaseId),

    /// No space is left for the log. Reads work; writes work again once there is space.
    #[error("no space left for the store in {dir}")]
    Full { dir: PathBuf },

    /// The disk refused a write or a sync, so its content is unknown. Reads work; writes are refused until the store is
    /// opened again.
    #[error("the store takes no more writes, since its log failed: {reason}")]
    Broken { reason: Arc<str> },

    /// An operator froze the store: reads work, and writes work again after a while or once it is thawed.
    #[error("the store takes no writes while it is moved to another one")]
    Frozen,

    /// The store has been closed.
    #[error("the store is closed")]
    Closed,

    #[error("the store in {dir} is in use by another process")]
    Locked { dir: PathBuf },

    #[error("the store in {dir} has format {found}, and this version knows formats up to {known}")]
    NewerFormat { dir: PathBuf, found: u32, known: u32 },

    #[error("{dir} is not empty: a store is only made in a directory of its own")]
    NotEmpty { dir: PathBuf },

    /// Acknowledged data is damaged or lost. The store does not open: silent loss would be worse.
    #[error("the store is corrupt: {file}: {what}")]
    Corrupt { file: PathBuf, what: String },

    /// No member of the cluster answered; nothing was changed.
    #[error("{reason}")]
    Unavailable { reason: Arc<str> },

    /// The answer to a commit was lost, and it could not be found out whether it happened or will still happen.
    #[error("{reason}")]
    UnknownOutcome { reason: Arc<str> },

    /// The cluster refused a request for a reason of its own, such as an alarm or missing rights.
    #[error("{reason}")]
    Refused { reason: Arc<str> },

    /// The cluster cannot be used: a sentence for the operator.
    #[error("{reason}")]
    Unsuitable { reason: Arc<str> },

    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: Arc<io::Error> },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn corrupt(file: &Path, what: impl Into<String>) -> Error {
        Error::Corrupt { file: file.to_owned(), what: what.into() }
    }

    /// Reports whether the cause is a disk or a quota without space.
    pub(crate) fn is_no_space(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Error::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}
