//! The error type of this package.

use corten_meta::Status;

/// The error of a request, or of a component built on requests.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The API server answered with a failure.
    #[error(transparent)]
    Api(#[from] Status),
    /// No answer: the connection could not be made or broke.
    #[error("{0}")]
    Transport(String),
    /// The request took longer than the client waits.
    #[error("request timed out after {0:?}")]
    Timeout(std::time::Duration),
    /// The answer could not be decoded.
    #[error("{0}")]
    Decode(String),
    /// A kubeconfig, a certificate or an address is invalid.
    #[error("{0}")]
    Config(String),
}

impl Error {
    /// Returns the server's `Status` if there is one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Api(status) => Some(status),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }
    /// Reports whether a write that failed so may have succeeded: no answer arrived, or one that does not say.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Transport(_) | Error::Timeout(_) | Error::Decode(_) => true,
            Error::Api(status) => status.code >= 500,
            Error::Config(_) => false,
        }
    }

    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(Status::is_conflict)
    }
    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(Status::is_already_exists)
    }
    pub fn is_invalid(&self) -> bool {
        self.status().is_some_and(Status::is_invalid)
    }
    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(Status::is_forbidden)
    }
    pub fn is_unauthorized(&self) -> bool {
        self.status().is_some_and(Status::is_unauthorized)
    }
    /// Reports whether the resource version is too old, so that the client must list again.
    pub fn is_expired(&self) -> bool {
        self.status().is_some_and(Status::is_expired)
    }
    pub fn is_too_many_requests(&self) -> bool {
        self.status().is_some_and(Status::is_too_many_requests)
    }
    pub fn is_method_not_allowed(&self) -> bool {
        self.status().is_some_and(Status::is_method_not_allowed)
    }
}

impl From<corten_meta::Error> for Error {
    fn from(error: corten_meta::Error) -> Error {
        Error::Decode(error.to_string())
    }
}

impl From<corten_api::Error> for Error {
    fn from(error: corten_api::Error) -> Error {
        Error::Decode(error.to_string())
    }
}
