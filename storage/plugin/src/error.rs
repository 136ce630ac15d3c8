//! The errors of a driver, by the gRPC code that a caller of CSI gets.

use std::io;

use tonic::Status;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    AlreadyExists(String),
    /// A size or a starting point that the driver cannot serve.
    #[error("{0}")]
    OutOfRange(String),
    /// The storage has no room, or a limit is reached.
    #[error("{0}")]
    Exhausted(String),
    /// The volume, or the node, is in a state that forbids the call.
    #[error("{0}")]
    Precondition(String),
    /// Another call works on the same volume.
    #[error("{0}")]
    Aborted(String),
    /// The storage system did not answer, or asks to wait; the call may have had its effect.
    #[error("{0}")]
    Unavailable(String),
    #[error("{action}: {source}")]
    Io { action: String, source: io::Error },
    #[error("{0}")]
    Internal(String),
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let message = error.to_string();
        match error {
            Error::Invalid(_) => Status::invalid_argument(message),
            Error::NotFound(_) => Status::not_found(message),
            Error::AlreadyExists(_) => Status::already_exists(message),
            Error::OutOfRange(_) => Status::out_of_range(message),
            Error::Exhausted(_) => Status::resource_exhausted(message),
            Error::Precondition(_) => Status::failed_precondition(message),
            Error::Aborted(_) => Status::aborted(message),
            Error::Unavailable(_) => Status::unavailable(message),
            Error::Io { .. } | Error::Internal(_) => Status::internal(message),
        }
    }
}

/// Adds the action that failed to an error of the operating system.
pub trait During<T> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, action: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { action: action(), source: error.into() })
    }
}
