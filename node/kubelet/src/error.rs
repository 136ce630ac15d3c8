//! The one error of this package. It names what was being done, so that a message shown in an event or
//! a container status reads alone; it never becomes a Kubernetes `Status` (the API server does that).

use std::path::{Path, PathBuf};

/// Why the kubelet could not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] corten_client::Error),
    /// The channel to the container runtime could not be opened.
    #[error(transparent)]
    Connect(#[from] corten_cri::Error),
    /// The container runtime refused; the text is the runtime's own, as upstream shows it.
    #[error("{}", .0.message())]
    Runtime(#[from] Box<tonic::Status>),
    /// A file or directory of the node could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was being done, for example `create`.
        action: &'static str,
        /// To which path.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The node API could not be served.
    #[error("serve the node API on {address}: {source}")]
    Listen {
        /// The address that was to be bound.
        address: std::net::SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A certificate, key or CA of the configuration is unusable.
    #[error("TLS configuration of the node API: {0}")]
    Tls(String),
    /// A setting makes no sense, or asks for what this kubelet does not do.
    #[error("{0}")]
    Configuration(String),
    /// Somebody else must do something first, and will be heard when they have; nothing is wrong.
    #[error("{0}")]
    Waiting(String),
    /// The pod asks for something that this node cannot give, or that does not exist.
    #[error("{0}")]
    Pod(String),
    /// The pod cannot be here, for a reason that has a name.
    #[error("{message}")]
    Admission {
        /// What the pod's status says in a word.
        reason: &'static str,
        /// What it says in a sentence.
        message: String,
    },
}

impl Error {
    /// Wraps an I/O error with what was being done to which path.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source }
    }

    /// An error about the pod itself, in upstream's words where it has some.
    pub(crate) fn pod(message: impl Into<String>) -> Error {
        Error::Pod(message.into())
    }

    /// A pod that cannot be here.
    pub(crate) fn admission(reason: &'static str, message: String) -> Error {
        Error::Admission { reason, message }
    }

    /// True when the API server says that the object does not exist.
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
