//! The file of a volume, read and written in chunks. Holes and chunks of zeros are not stored.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;

use crate::error::{Error, Result};

/// The bytes of a chunk; the last one of a volume may be shorter.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Returns the number of chunks of a volume.
pub fn chunk_count(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_BYTES)
}

/// Reads a chunk; none if it is zero throughout.
pub fn read_chunk(file: &File, bytes: u64, index: u64) -> Result<Option<Vec<u8>>> {
    let failed = |source| Error::Image { action: "read", source };
    let start = index * CHUNK_BYTES;
    let length = CHUNK_BYTES.min(bytes.saturating_sub(start));
    if is_hole(file, start, length) {
        return Ok(None);
    }
    let mut chunk = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut chunk, start).map_err(failed)?;
    Ok(Some(chunk).filter(|chunk| chunk.iter().any(|byte| *byte != 0)))
}

/// Reports whether a part of a file has no data. A file system that knows no holes reports data.
fn is_hole(file: &File, start: u64, length: u64) -> bool {
    match rustix::fs::seek(file, SeekFrom::Data(start)) {
        Ok(next) => next >= start + length,
        Err(error) => error == rustix::io::Errno::NXIO,
    }
}

/// Writes a chunk.
pub fn write_chunk(file: &File, index: u64, chunk: &[u8]) -> Result<()> {
    let written = file.write_all_at(chunk, index * CHUNK_BYTES);
    written.map_err(|source| Error::Image { action: "written", source })
}
