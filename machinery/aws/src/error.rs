//! The errors of a call, by what its caller can do about them.

use std::time::Duration;

/// An error of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the cloud does not accept the credentials: {0}")]
    Denied(String),
    /// AWS wants fewer requests; the time is the one that it named.
    #[error("the cloud asks to wait: {message}")]
    Throttled { message: String, after: Option<Duration> },
    /// The answer was lost, or AWS failed: the call may have had its effect.
    #[error("{0}")]
    Unknown(String),
    /// AWS refused the call, which had no effect.
    #[error("{0}")]
    Refused(String),
}
