//! Errors with etcd's codes and texts, by which clients recognise them.

use corten_store::Error;
use tonic::{Code, Status};

pub fn empty_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

pub fn key_not_found() -> Status {
    Status::invalid_argument("etcdserver: key not found")
}

pub fn value_provided() -> Status {
    Status::invalid_argument("etcdserver: value is provided")
}

pub fn lease_provided() -> Status {
    Status::invalid_argument("etcdserver: lease is provided")
}

pub fn too_many_ops() -> Status {
    Status::invalid_argument("etcdserver: too many operations in txn request")
}

pub fn duplicate_key() -> Status {
    Status::invalid_argument("etcdserver: duplicate key given in txn request")
}

pub fn invalid_sort_option() -> Status {
    Status::invalid_argument("etcdserver: invalid sort option")
}

pub fn too_large() -> Status {
    Status::invalid_argument("etcdserver: request is too large")
}

pub fn compacted() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
}

pub fn future_revision() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
}

pub fn ttl_too_large() -> Status {
    Status::out_of_range("etcdserver: too large lease TTL")
}

pub fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

/// Returns the refusal of a change of the members.
pub fn one_member() -> Status {
    Status::failed_precondition(
        "etcdserver: not capable: the embedded store has one member; a cluster of several needs etcd",
    )
}

/// Returns the status of an error of the store.
pub fn of(error: Error) -> Status {
    match error {
        Error::Compacted { .. } => compacted(),
        Error::Future { .. } => future_revision(),
        Error::DuplicateKey => duplicate_key(),
        Error::EmptyKey => empty_key(),
        Error::TooLarge { .. } => too_large(),
        Error::LeaseNotFound(_) => Status::not_found("etcdserver: requested lease not found"),
        Error::LeaseExists(_) => Status::failed_precondition("etcdserver: lease already exists"),
        Error::Full { .. } | Error::Frozen => Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
        Error::Closed => stopped(),
        Error::Lagged => Status::unavailable("etcdserver: too many requests"),
        error @ Error::Corrupt { .. } => Status::new(Code::DataLoss, format!("etcdserver: corrupt cluster: {error}")),
        error => Status::unavailable(format!("etcdserver: unhealthy cluster: {error}")),
    }
}
