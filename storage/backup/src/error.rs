//! The errors of repositories: each is one sentence for the operator.

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The place has content, and it is not a repository.
    #[error("{0}")]
    Foreign(String),
    #[error("the key does not open the repository: its Secret has another passphrase or key")]
    WrongSecret,
    #[error("the repository has format {found}, and this version reads formats up to {known}")]
    NewerFormat { found: u32, known: u32 },
    /// An object is missing, changed or cut off.
    #[error("{object} is damaged: {reason}")]
    Damaged { object: String, reason: String },
    #[error("the repository has no backup {0}")]
    NoBackup(String),
    /// Another session excludes this one.
    #[error("{0}")]
    Busy(String),
    /// The place cannot be read or written: it is full, or not reachable.
    #[error("{0}")]
    Place(String),
    /// The volume's file cannot be read or written.
    #[error("the volume cannot be {action}: {source}")]
    Image { action: &'static str, source: std::io::Error },
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub fn damaged(object: &str, reason: impl Into<String>) -> Error {
        Error::Damaged { object: object.to_owned(), reason: reason.into() }
    }

    /// Returns a word for the condition of an object of the API.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Foreign(_) => "ForeignRepository",
            Error::WrongSecret => "WrongKey",
            Error::NewerFormat { .. } => "NewerFormat",
            Error::Damaged { .. } => "Damaged",
            Error::NoBackup(_) => "BackupNotFound",
            Error::Busy(_) => "Busy",
            Error::Place(_) => "RepositoryUnavailable",
            Error::Image { .. } => "VolumeUnavailable",
            Error::Invalid(_) => "Invalid",
        }
    }
}
