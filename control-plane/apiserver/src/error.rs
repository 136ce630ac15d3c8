//! Errors of building, starting and serving the API server.
//!
//! Requests never end in this type: they end in a `corten_meta::Status`, which is the response itself.

use corten_meta::Status;

/// An error of the API server as a component.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("configuration: {0}")]
    Config(String),
    #[error("key material: {0}")]
    Key(String),
    #[error("store: {0}")]
    Store(#[from] corten_store::Error),
    #[error("stored object {key}: {reason}")]
    Object { key: String, reason: String },
    #[error("unable to transform key {}: {reason}", corten_meta::quote::quote(key))]
    Sealed { key: String, reason: String },
    #[error("bootstrap: {0}")]
    Bootstrap(String),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("listener: {0}")]
    Io(#[from] std::io::Error),
}

pub fn store_status(e: corten_store::Error) -> Status {
    match e {
        corten_store::Error::TooLarge { .. } => Status::request_too_large(&e.to_string()),
        corten_store::Error::Closed => Status::service_unavailable(e.to_string()),
        // Writes work again soon, in this store or in another one: clients try again.
        corten_store::Error::Frozen => {
            let mut status = Status::service_unavailable(e.to_string());
            status.details.get_or_insert_default().retry_after_seconds = 1;
            status
        }
        // The message that operators of etcd know and search for.
        corten_store::Error::Full { .. } => Status::internal("etcdserver: mvcc: database space exceeded".to_owned()),
        // The write may have happened: a client must read before it tries again.
        corten_store::Error::UnknownOutcome { reason } => {
            Status::timeout(&format!("request did not complete within requested timeout - {reason}"), 0)
        }
        _ => Status::internal(e.to_string()),
    }
}
