//! The one error type of the runtime.
//!
//! Errors are turned into gRPC codes in one place (`From<Error> for tonic::Status`), because the
//! kubelet decides by the code: `NotFound` of a container means "already gone".

use std::path::{Path, PathBuf};

/// What can go wrong in the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was being done, e.g. `create`.
        action: &'static str,
        /// The file it was done to.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A system call failed where no path tells the story.
    #[error("{action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A sandbox, container or image that does not exist.
    #[error("{kind} {id:?} not found")]
    NotFound {
        /// `container`, `pod sandbox` or `image`.
        kind: &'static str,
        /// The identifier that was asked for.
        id: String,
    },
    /// The request itself cannot be served as written.
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
        /// The reference that was asked for.
        reference: String,
        /// What the registry or the transport said.
        message: String,
    },
    /// The container's process could not be started; the text is the executor's.
    #[error("failed to start container: {0}")]
    Start(String),
    /// The pod network refused.
    #[error("pod network: {0}")]
    Network(String),
    /// A shim answered something else than its protocol allows, or not at all.
    #[error("shim of container {id}: {message}")]
    Shim {
        /// The container.
        id: String,
        /// What happened.
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
    /// Names the file in an I/O error; for `map_err`.
    pub(crate) fn file(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::File { action, path, source }
    }

    /// Names the action in an error of a system call; for `map_err`.
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
