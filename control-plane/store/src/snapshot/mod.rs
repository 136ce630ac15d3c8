//! Snapshots in etcd's format: a bbolt file, followed by its SHA-256.
//!
//! `etcdctl snapshot save` receives such a file from the embedded store, `etcdutl` restores it into a new etcd member,
//! and a snapshot of etcd becomes an embedded store: keys, values, revisions, leases and the history since the last
//! compaction stay the same. Between the engines and the files stands [`Contents`].
//!
//! A file is not trusted: reading one never panics, and memory is bounded by its size.

pub mod bolt;
mod contents;
mod decode;
mod encode;
mod file;
mod first_member;
mod records;

pub use contents::{Contents, Grant};
pub use decode::decode;
pub use encode::{Member, encode};
pub use file::{DIGEST_BYTES, Limits, load, save};
pub use first_member::{FirstMember, create};
pub use records::hash;

#[cfg(test)]
mod tests;
