//! Snapshot files: the database and its SHA-256 behind it.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::bolt::Database;
use super::{Contents, Member, decode, encode};
use crate::Error;

/// The length of the SHA-256 at the end of a file.
pub const DIGEST_BYTES: u64 = 32;
/// Databases are a multiple of this long, by which a digest behind them is recognised.
const BLOCK_BYTES: u64 = 512;

/// The bounds of what is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The size of the longest file.
    pub file_bytes: u64,
}

impl Default for Limits {
    /// Returns the largest database that etcd recommends.
    fn default() -> Limits {
        Limits { file_bytes: 8 << 30 }
    }
}

/// Writes a snapshot into an empty file, with its digest; returns its length. The caller syncs the file.
pub fn save(contents: &Contents, member: &Member, file: &File) -> io::Result<u64> {
    let (mut written, length) = encode(contents, member, BufWriter::with_capacity(1 << 18, file))?;
    written.flush()?;
    let digest = digest(file, length)?;
    let mut end = file;
    end.seek(SeekFrom::Start(length))?;
    end.write_all(&digest)?;
    Ok(length + DIGEST_BYTES)
}

/// Reads a snapshot, after checking its digest. A database without a digest, such as a member's own file, is read too.
pub fn load(path: &Path, limits: Limits) -> Result<Contents, Error> {
    let failed = |error| Error::io("read the snapshot", path, error);
    let corrupt = |what: String| Error::corrupt(path, what);
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > limits.file_bytes {
        return Err(corrupt(format!("the snapshot has {length} bytes, more than {}", limits.file_bytes)));
    }
    let has_digest = length % BLOCK_BYTES == DIGEST_BYTES;
    let length = if has_digest { length - DIGEST_BYTES } else { length };
    if has_digest {
        let expected = digest(&file, length).map_err(failed)?;
        let mut found = [0; DIGEST_BYTES as usize];
        (&file).read_exact(&mut found).map_err(failed)?;
        if found != expected {
            return Err(corrupt("the SHA-256 of the snapshot does not match".to_owned()));
        }
    }
    let database = Database::open(file, length).map_err(corrupt)?;
    decode(&database).map_err(corrupt)
}

/// Returns the SHA-256 of the first `length` bytes, and leaves the file there.
fn digest(mut file: &File, length: u64) -> io::Result<[u8; DIGEST_BYTES as usize]> {
    file.seek(SeekFrom::Start(0))?;
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    let mut left = length;
    while left > 0 {
        let step = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact(&mut buffer[..step])?;
        sum.update(&buffer[..step]);
        left -= step as u64;
    }
    Ok(sum.finalize().into())
}
