//! Repositories of volume backups, in a directory or a bucket.
//!
//! A backup is a [`Manifest`]: the volume's properties and the ids of its chunks of 1 MiB. Chunks are stored once,
//! whichever backups name them, compressed and sealed. So a backup sends only chunks that the repository lacks.
//!
//! | object | content |
//! |---|---|
//! | `repository` | the format, the repository's id and the way to its key, in the clear |
//! | `chunks/XX/ID` | a chunk, sealed; its id is a keyed hash of its plaintext |
//! | `backups/ID` | a manifest, sealed; written last |
//! | `sessions/ID` | a backup, restore or prune under way, sealed |
//! | `tmp/ID` | a file of a directory that is being written |
//!
//! The package knows nothing of Kubernetes' API or of volumes: an image is a file.
//!
//! *Invariants: a backup exists if its manifest does, and then all its chunks do. Prune deletes only chunks that no
//! manifest names, and never beside another session. No plaintext leaves the node, and no object can be exchanged for
//! another.*

mod bucket;
mod directory;
mod error;
mod image;
mod manifest;
mod objects;
mod repository;
mod sealed;
mod session;
#[cfg(test)]
mod tests;
mod upkeep;
mod vault;

pub use corten_backup::Secret;
pub use corten_backup::s3;
pub use directory::Directory;
pub use error::{Error, Result};
pub use image::{CHUNK_BYTES, chunk_count, read_chunk, write_chunk};
pub use manifest::{Header, Manifest, is_backup_id};
pub use objects::Objects;
pub use repository::{Repository, Sent};
pub use upkeep::{Pruned, Verified};
pub use vault::{Clock, Owner};
