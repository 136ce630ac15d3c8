//! The one error of this package. It names the operation that failed, so that a message in an event or a container
//! status can be read alone. It never becomes a Kubernetes `Status` (the API server does that).

use std::path::{Path, PathBuf};

/// An operation of the kubelet that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] corten_client::Error),
    /// The channel to the container runtime could not be opened.
    #[error(transparent)]
    Connect(#[from] corten_cri::Error),
    /// The container runtime refused; the message is the runtime's own, as upstream shows it.
    #[error("{}", .0.message())]
    Runtime(#[from] Box<tonic::Status>),
    /// A file or directory of the node could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// The operation, for example `create`.
        action: &'static str,
        /// The path of the operation.
        path: PathBuf,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// The node API could not be served.
    #[error("serve the node API on {address}: {source}")]
    Listen {
        /// The address to bind.
        address: std::net::SocketAddr,
        /// The error of the kernel.
        source: std::io::Error,
    },
    /// A certificate, key or CA of the configuration is unusable.
    #[error("TLS configuration of the node API: {0}")]
    Tls(String),
    /// A setting is invalid, or needs a feature that this kubelet does not have.
    #[error("{0}")]
    Configuration(String),
    /// Another component must act first. The pod is woken when it has; this is no failure.
    #[error("{0}")]
    Waiting(String),
    /// The pod needs something that this node does not have, or that does not exist.
    #[error("{0}")]
    Pod(String),
    /// The node does not admit the pod.
    #[error("{message}")]
    Admission {
        /// The reason of the pod's status.
        reason: &'static str,
        /// The message of the pod's status.
        message: String,
    },
}

impl Error {
    /// Wraps an I/O error with its operation and path.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source }
    }

    /// Makes an error about the pod itself, in upstream's words where it has some.
    pub(crate) fn pod(message: impl Into<String>) -> Error {
        Error::Pod(message.into())
    }

    /// Makes the error of a pod that the node does not admit.
    pub(crate) fn admission(reason: &'static str, message: String) -> Error {
        Error::Admission { reason, message }
    }

    /// Reports whether the API server answered that the object does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::Client(error) if error.is_not_found())
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Error {
        Error::Runtime(Box::new(status))
    }
}

/// The result of everything fallible in this package.
pub type Result<T> = std::result::Result<T, Error>;
