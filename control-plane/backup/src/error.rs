//! The errors of backups: each is one sentence for the operator.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why bytes are no usable backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("it is no backup of corten")]
    Foreign,
    #[error("it has format {found}, and this version reads formats up to {known}; use the version that wrote it")]
    NewerFormat { found: u32, known: u32 },
    #[error("it was sealed for {wanted}, and {given} was given")]
    OtherSecret { wanted: &'static str, given: &'static str },
    #[error("the {0} does not open it")]
    WrongSecret(&'static str),
    #[error("it is cut off, or its end is damaged")]
    Truncated,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it exceeds a limit: {0}")]
    TooLarge(String),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file} cannot be used: {fault}")]
    Unusable { file: String, fault: Fault },
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{0} exists: a backup does not replace a file")]
    Exists(PathBuf),
    #[error("{0}")]
    Secret(String),
    #[error("{0}")]
    Target(String),
    #[error("the store in the backup cannot be used: {0}")]
    Store(#[from] corten_store::Error),
    /// A restore was interrupted after everything was staged.
    #[error(
        "a restore of {source_file} into {data} was interrupted; go on with it by `corten restore --finish`, or take it \
         back by `corten restore --undo`"
    )]
    Pending { source_file: String, data: PathBuf },
    #[error("no restore of {0} was interrupted")]
    NothingPending(PathBuf),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }

    /// Returns the error of a read: the fault that the reader found, or that of the file system.
    pub(crate) fn reading(file: &Path, error: io::Error) -> Error {
        match fault_of(&error) {
            Some(fault) => Error::Unusable { file: file.display().to_string(), fault },
            None => Error::Io { action: "read", path: file.to_owned(), source: error },
        }
    }

    /// Returns the fault of an unusable backup.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Error::Unusable { fault, .. } => Some(fault),
            _ => None,
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::other(fault)
    }
}

/// Returns the fault inside of an error of a reader.
pub fn fault_of(error: &io::Error) -> Option<Fault> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Fault>()).cloned()
}
