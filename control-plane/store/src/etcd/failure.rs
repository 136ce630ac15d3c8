//! The failures of a call to a member, by what the caller may do next.
//!
//! etcd reports its errors by the message of the status; the messages are part of its API.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::Error;

/// A failed call.
#[derive(Debug)]
pub(super) enum Failure {
    /// etcd refused the request; every member would.
    Refused(Refusal),
    /// The request had no effect. Another member may take it.
    NotDone(String),
    /// The outcome is unknown: the request may have had its effect, or may still have it.
    Lost(String),
}

/// The reason of a refusal, where a caller has an error of the store for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Compacted,
    Future,
    LeaseNotFound,
    LeaseExists,
    TooLarge,
    Other(String),
}

impl Refusal {
    /// Returns the error of a refusal that the request itself does not explain.
    pub fn error(self) -> Error {
        match self {
            Refusal::Compacted => Error::Compacted { compacted: 0 },
            Refusal::Future => Error::Future { requested: 0, current: 0 },
            Refusal::LeaseNotFound => Error::LeaseNotFound(0),
            Refusal::LeaseExists => Error::LeaseExists(0),
            Refusal::TooLarge => Error::TooLarge { bytes: 0, limit: corten_etcd::MAX_REQUEST_BYTES },
            Refusal::Other(reason) => Error::Refused { reason: reason.into() },
        }
    }
}

impl Failure {
    /// Classifies the status of a call.
    pub fn of(status: &Status) -> Failure {
        let message = status.message();
        let refusal = match message {
            "etcdserver: mvcc: required revision has been compacted" => Some(Refusal::Compacted),
            "etcdserver: mvcc: required revision is a future revision" => Some(Refusal::Future),
            "etcdserver: requested lease not found" => Some(Refusal::LeaseNotFound),
            "etcdserver: lease already exists" => Some(Refusal::LeaseExists),
            "etcdserver: request is too large" => Some(Refusal::TooLarge),
            _ if message.contains("message larger than max") => Some(Refusal::TooLarge),
            _ => None,
        };
        if let Some(refusal) = refusal {
            return Failure::Refused(refusal);
        }
        const NOT_DONE: [&str; 4] = [
            "etcdserver: no leader",
            "etcdserver: too many requests",
            "etcdserver: not capable",
            "etcdserver: rpc not supported for learner",
        ];
        if NOT_DONE.contains(&message) || is_dial_error(status) {
            return Failure::NotDone(message.to_owned());
        }
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::NotFound
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented
            | Code::ResourceExhausted
            | Code::DataLoss => Failure::Refused(Refusal::Other(message.to_owned())),
            _ => Failure::Lost(message.to_owned()),
        }
    }

    /// Returns the failure of a call that was not answered in time.
    pub fn timed_out() -> Failure {
        Failure::Lost("context deadline exceeded".to_owned())
    }
}

/// Reports whether no connection could be made, so that nothing was sent.
fn is_dial_error(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_refusal_only_if_the_request_had_no_effect() {
        for (status, is_refused) in [
            (Status::out_of_range("etcdserver: mvcc: required revision has been compacted"), true),
            (Status::resource_exhausted("etcdserver: mvcc: database space exceeded"), true),
            (Status::permission_denied("etcdserver: permission denied"), true),
            (Status::unavailable("etcdserver: request timed out"), false),
            (Status::unavailable("etcdserver: leader changed"), false),
            (Status::unavailable("etcdserver: no leader"), false),
            (Status::unknown("h2 protocol error"), false),
            (Status::deadline_exceeded("context deadline exceeded"), false),
        ] {
            assert_eq!(matches!(Failure::of(&status), Failure::Refused(_)), is_refused, "{status}");
        }
        assert!(matches!(Failure::of(&Status::unavailable("etcdserver: no leader")), Failure::NotDone(_)));
        assert!(matches!(Failure::of(&Status::unavailable("etcdserver: leader changed")), Failure::Lost(_)));
    }
}
