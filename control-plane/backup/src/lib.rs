//! Backups of a cluster: one sealed file, the places where such files are kept, and the way back to a data directory.
//!
//! A backup holds a snapshot of the store in etcd's format, and every file without which the snapshot is useless: the
//! authorities, the ServiceAccount keys, the keys of Secrets, the settings. It is therefore always sealed, for a
//! passphrase or for a key file ([`Secret`]).
//!
//! - [`container`]: the bytes of the file: a header in the clear, then authenticated chunks.
//! - [`archive`]: the plaintext of the chunks: the manifest, small files, the snapshot.
//! - [`file`]: backups as files: written beside their name and renamed, verified, listed.
//! - [`target`]: a directory or an S3 bucket ([`s3`]), and which backups are kept there.
//! - [`rebuild`]: the content of a new data directory, made of a backup.
//! - [`restore`]: the change of a data directory, which can be finished or undone whenever it was interrupted.
//!
//! Must never: write a secret in the clear under a name outside of a data directory, or replace a file that it did not write.

pub mod archive;
pub mod container;
mod error;
pub mod file;
mod key;
pub mod rebuild;
pub mod restore;
pub mod s3;
pub mod target;

pub use archive::{Manifest, Opened};
pub use container::Header;
pub use error::{Error, Fault};
pub use key::{Derivation, Keys, SALT_BYTES, Secret};
pub use target::Target;
