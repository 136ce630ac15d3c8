//! The errors between a batch and the kernel.

use std::io;

/// An error of this package.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open a netfilter netlink socket: {0}")]
    Open(#[source] io::Error),
    #[error("cannot send {bytes} bytes to nf_tables: {source}")]
    Send { bytes: usize, source: io::Error },
    #[error("cannot receive from nf_tables: {0}")]
    Receive(#[source] io::Error),
    /// The kernel refused one operation, and with it the whole batch.
    #[error("nf_tables refused to {operation}: {}{}", io::Error::from_raw_os_error(*.errno), detail(.message))]
    Refused { operation: String, errno: i32, message: Option<String> },
    /// Another writer changed the ruleset between the reading of its generation and the batch.
    #[error("the nf_tables ruleset changed since it was read")]
    Stale,
    /// The kernel did not answer where it always answers.
    #[error("nf_tables did not acknowledge the batch")]
    Unacknowledged,
    #[error("malformed netlink answer: {0}")]
    Malformed(&'static str),
}

impl Error {
    /// Reports whether the kernel's error is that the named object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Refused { errno: libc::ENOENT, .. })
    }

    /// Reports whether the kernel's error is that the object exists already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Error::Refused { errno: libc::EEXIST, .. })
    }
}

fn detail(message: &Option<String>) -> String {
    message.as_ref().map(|message| format!(" ({message})")).unwrap_or_default()
}
