//! Failures of orders.

use std::time::Duration;

use thiserror::Error;

/// The problem type of a request that came too often.
const RATE_LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";

#[derive(Debug, Error)]
pub enum Error {
    #[error("the authority cannot be reached: {0}")]
    Unreachable(String),
    #[error("the authority refused the request: {detail} ({kind})")]
    Refused {
        /// The URN of the problem.
        kind: String,
        detail: String,
        /// The time after which the authority wants to be asked again.
        retry_after: Option<Duration>,
    },
    #[error("the authority's answer is not valid: {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Invalid(String),
    #[error("the authority did not decide in time")]
    TooLate,
    #[error("cryptography failed: {0}")]
    Cryptography(String),
    #[error("{0}")]
    Kubernetes(#[from] corten_client::Error),
}

impl Error {
    /// Returns the time that the authority asks to wait; none if it does not.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Reports whether the authority limits the rate of requests.
    pub fn is_rate_limited(&self) -> bool {
        matches!(self, Error::Refused { kind, .. } if kind == RATE_LIMITED)
    }

    /// Reports whether the failure costs nothing at the authority: it may be tried again soon.
    pub fn is_local(&self) -> bool {
        matches!(self, Error::Unreachable(_) | Error::Kubernetes(_))
    }

    /// Reports whether the problem has this name after `urn:ietf:params:acme:error:`.
    pub fn is_problem(&self, name: &str) -> bool {
        matches!(self, Error::Refused { kind, .. } if kind.strip_prefix("urn:ietf:params:acme:error:") == Some(name))
    }
}
