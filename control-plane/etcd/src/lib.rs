//! etcd's v3 API: its messages, clients and servers.
//!
//! The store's etcd engine is a client of it, and the embedded store serves it, so that each can be swapped for etcd's
//! own. This package holds no behaviour of either side: the messages of `proto/`, whose names, types and numbers are
//! etcd's, and the limits that both sides share.

/// Keys, values and their changes: the package `mvccpb`.
pub mod mvccpb {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("mvccpb");
}

/// Requests, answers, clients and servers: the package `etcdserverpb`.
pub mod etcdserverpb {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("etcdserverpb");
}

/// The largest request that etcd takes by default.
pub const MAX_REQUEST_BYTES: usize = 1_536 << 10;

/// The most operations of a transaction that etcd takes by default.
pub const MAX_TXN_OPS: usize = 128;
