//! The error type of the runtime.
//!
//! `From<Error> for tonic::Status` is the only place that turns errors into gRPC codes, because the kubelet decides by
//! the code: `NotFound` of a container means "already removed".

use std::path::{Path, PathBuf};

/// An error of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// The action that failed, e.g. `create`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A system call failed that has no path.
    #[error("{action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A sandbox, container or image that does not exist.
    #[error("{kind} {id:?} not found")]
    NotFound {
        /// `container`, `pod sandbox` or `image`.
        kind: &'static str,
        /// The requested identifier.
        id: String,
    },
    /// The request itself is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The object is not in the state that the request needs.
    #[error("{0}")]
    State(String),
    /// An image or its archive is malformed or does not match its digest.
    #[error("image: {0}")]
    Image(String),
    /// A registry refused, or could not be reached.
    #[error("pull image {reference:?}: {message}")]
    Pull {
        /// The requested reference.
        reference: String,
        /// The error of the registry or the transport.
        message: String,
    },
    /// The container's process could not be started; the message is the executor's.
    #[error("failed to start container: {0}")]
    Start(String),
    /// The pod network refused.
    #[error("pod network: {0}")]
    Network(String),
    /// A shim broke its protocol, or did not answer.
    #[error("shim of container {id}: {message}")]
    Shim {
        /// The container.
        id: String,
        /// The error.
        message: String,
    },
    /// The command ran longer than its caller allowed.
    #[error("command {command:?} timed out")]
    ExecTimeout {
        /// The command line.
        command: String,
    },
    /// The gRPC server failed.
    #[error("serve the container runtime interface: {0}")]
    Serve(String),
}

impl Error {
    /// Makes an I/O error that names the file; for `map_err`.
    pub(crate) fn file(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::File { action, path, source }
    }

    /// Makes an error of a system call that names the action; for `map_err`.
    pub(crate) fn system<E: Into<std::io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::NotFound { .. } => Self::not_found(message),
            Error::Invalid(_) => Self::invalid_argument(message),
            Error::State(_) => Self::failed_precondition(message),
            Error::ExecTimeout { .. } => Self::deadline_exceeded(message),
            _ => Self::unknown(message),
        }
    }
}
